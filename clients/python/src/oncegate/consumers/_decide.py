"""The decision about a message: one table for all brokers (`clients/vectors/decisions.json`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Union

from ..errors import (
    NotCanonical,
    NothingHappened,
    NotSettled,
    OncegateError,
    OutcomeRefused,
    Rejected,
    Unavailable,
)
from ..values import Answer, Done, Duplicate


@dataclass(frozen=True)
class Ack:
    """Done, here or before."""

    why: str = "done"
    #: The answer, where there is one: its `value()` is the result.
    answer: Any = field(default=None, compare=False)


@dataclass(frozen=True)
class Redeliver:
    """Again after this many seconds. `failures` counts the runs that ended with `NothingHappened`."""

    after: float
    why: str
    failures: int = 0


@dataclass(frozen=True)
class Park:
    """Its outcome is unknown: for a program or person who looks up the effect, and takes over."""

    why: str
    #: What was raised, if anything was.
    error: BaseException | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class DeadLetter:
    """A mistake that a repeat cannot correct, or a poison message."""

    why: str
    #: What was raised, if anything was.
    error: BaseException | None = field(default=None, compare=False, repr=False)


Decision = Union[Ack, Redeliver, Park, DeadLetter]


class ContentsNotDerived(OncegateError):
    """The function that derives the contents from a message raised; `__cause__` is its error."""


def decide(
    end: Answer[Any] | BaseException,
    *,
    failures: int = 0,
    max_failures: int = 3,
    redeliver_after: float = 5.0,
    report_is_kept: bool = False,
) -> Decision:
    """The decision for the end of `once`: its answer, or the exception that it raised."""
    if isinstance(end, Done):
        return Ack(answer=end)
    if isinstance(end, Duplicate):
        if end.state == "succeeded":
            return Ack("duplicate", end)
        if end.state == "in_progress":
            return Redeliver(end.retry_after, "in_progress", failures)
        return Park("unknown")
    if not isinstance(end, BaseException):
        return DeadLetter(end.code)
    if isinstance(end, OutcomeRefused):
        # The effect has happened here; the alarm is the event `outcome_refused`.
        return Ack(end.code)
    if isinstance(end, NotSettled):
        return Ack("report_is_kept") if report_is_kept else Redeliver(redeliver_after, "not_settled", failures)
    if isinstance(end, NothingHappened):
        if failures + 1 >= max_failures:
            return DeadLetter("poison", end)
        return Redeliver(redeliver_after, "nothing_happened", failures + 1)
    if isinstance(end, Rejected):
        if end.status == 429:
            return Redeliver(end.retry_after or redeliver_after, "quota_exceeded", failures)
        # These say nothing about the message: with a wrong credential every message would be lost.
        if end.status in (401, 403, 404, 405) or end.code == "identity_differs":
            return Redeliver(redeliver_after, end.code or str(end.status), failures)
        return DeadLetter(end.code or str(end.status), end)
    if isinstance(end, Unavailable):
        return Redeliver(redeliver_after, "unavailable", failures)
    if isinstance(end, (NotCanonical, ContentsNotDerived)):
        return DeadLetter("contents", end)
    return Park("error", end)
