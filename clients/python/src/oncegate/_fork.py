"""Forgets connections and threads in a forked child: two processes on one connection would read each other's answers."""

from __future__ import annotations

import os
import threading
import weakref


class Forgetful:
    """What has connections or threads of one process."""

    _process = 0

    def forget(self) -> None:
        """Begins anew, as in a new process."""
        self._process = os.getpid()

    def own(self) -> None:
        """Forgets if this is a child that was forked without Python's hooks, as uWSGI forks its workers."""
        if self._process != os.getpid():
            with _lock:
                if self._process != os.getpid():
                    self.forget()


_lock = threading.Lock()
_known: weakref.WeakSet[Forgetful] = weakref.WeakSet()


def forget_after_fork(one: Forgetful) -> None:
    _known.add(one)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    for one in list(_known):
        one.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
