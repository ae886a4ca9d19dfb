"""Forgets connections and threads in a forked child: two processes on one connection would read each other's answers."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forgets(Protocol):
    def forget(self) -> None: ...


_known: weakref.WeakSet[Forgets] = weakref.WeakSet()


def forget_after_fork(one: Forgets) -> None:
    _known.add(one)


def _after_fork() -> None:
    for one in list(_known):
        one.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
