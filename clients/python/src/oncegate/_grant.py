"""What the grants of both clients have in common, and the grant that the current work runs under."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, Literal, TypeVar

from . import _claims

Signal = TypeVar("Signal", threading.Event, asyncio.Event)


class BaseGrant(Generic[Signal]):
    """The claim of one operation. How it is renewed and reported is up to its client."""

    def __init__(self, state: _claims.GrantState, lost_event: Signal, caller_gone: Signal):
        self._state = state
        self.global_id = state.terms.global_id
        self.attempt = state.attempt
        #: Rises with every attempt at the operation; for the resource to compare. None where the store has none.
        self.fence = state.fence
        #: True if a repeat of the claim call found the claim that it had already been granted.
        self.repeated = state.repeated
        self.taken_over = state.taken_over
        #: The outage policy that granted the claim; `caller` if no gateway answered.
        self.degraded = state.degraded
        self.would_be = state.would_be
        #: Set once the claim is lost.
        self.lost_event: Signal = lost_event
        state.on_lost.append(self.lost_event.set)
        #: Behind the middleware: set when the caller of the request disconnects. The work continues.
        self.caller_gone: Signal = caller_gone

    @property
    def is_live(self) -> bool:
        """Returns true while the claim is live, to check before an effect that cannot be undone. Only the fence closes the gap."""
        return self._state.is_live

    @property
    def lost(self) -> str | None:
        """Why the claim was lost: the code of the answer to a renewal, or `not_renewed` in time."""
        return self._state.lost

    def mark(self, outcome: Literal["success", "failure", "unknown"]) -> None:
        """Sets the outcome of a request behind the middleware, in place of the status of its response."""
        _claims.mark(self._state, outcome)


_current: ContextVar[BaseGrant[Any] | None] = ContextVar("oncegate_grant", default=None)


def current_grant() -> BaseGrant[Any] | None:
    return _current.get()


@contextmanager
def set_current(grant: BaseGrant[Any]) -> Iterator[None]:
    token = _current.set(grant)
    try:
        yield
    finally:
        _current.reset(token)


def saw(error: BaseException) -> None:
    """Notes the error that a framework answers for the handler of a protected request."""
    grant = _current.get()
    if grant is not None and grant._state.can_be_marked:
        grant._state.seen_error = error
