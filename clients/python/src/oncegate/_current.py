"""The grant that the current work runs under."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    from .aio import AsyncGrant
    from .client import Grant

    AnyGrant = Union[Grant, AsyncGrant]

_current: ContextVar[AnyGrant | None] = ContextVar("oncegate_grant", default=None)


def current() -> AnyGrant | None:
    """The grant of the work that runs here, for its fence and `is_live`. None outside of `once`."""
    return _current.get()


@contextmanager
def set_current(grant: AnyGrant) -> Iterator[None]:
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
