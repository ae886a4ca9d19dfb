"""Results of calls. Times are in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NoReturn, TypeVar, Union

from .errors import NotRun, ResultNotStored

#: `succeeded`, `released` and `unknown` are recorded; `observed` enforces nothing, `spooled` is delivered later.
SettledState = Literal["succeeded", "released", "unknown", "observed", "spooled", "disabled"]
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Done(Generic[T_co]):
    """The work ran here, and its outcome was reported."""

    result: T_co
    #: None if nothing was recorded.
    state: SettledState | None
    #: The outage policy that answered in place of the store; `caller` is this client's own `proceed`. None: all promises hold.
    degraded: str | None
    #: True: the claim had ended before the outcome arrived, so another attempt may have run. None: not known.
    late: bool | None
    #: In observe mode, the code of the answer that enforcing would have given to the claim.
    would_be: str | None
    #: Why the result was not stored: `not_serialisable`, `too_large`, or `refused` by the gateway. None if it was stored.
    result_omitted: str | None
    global_id: str

    def value(self) -> T_co:
        """The result."""
        return self.result


@dataclass(frozen=True)
class Duplicate(Generic[T_co]):
    """Another attempt is running or has completed the operation."""

    state: Literal["in_progress", "succeeded", "unknown"]
    #: The result stored with the success; None where it was not stored (`result_omitted`).
    result: T_co | None
    #: Seconds until it is worth asking again, while it is in progress.
    retry_after: float
    claimed_at: str | None
    expires_at: str | None
    #: False if the contents of the other claim are unknown, so that no comparison was possible.
    contents_verified: bool
    degraded: str | None
    global_id: str
    #: Why the result is not here, as in `Done`; `batch`: it was too large for the answer to a batch, so look the claim up alone.
    result_omitted: str | None = None

    def value(self) -> T_co:
        """The result of the success. Raises `NotRun` without one, and `ResultNotStored` if its result was not stored."""
        if self.state != "succeeded":
            raise NotRun(self)
        if self.result_omitted is not None:
            raise ResultNotStored(self.result_omitted, self.global_id)
        return self.result  # type: ignore[return-value]


@dataclass(frozen=True)
class Mismatch:
    """The operation was claimed with another fingerprint, or with other contents of the same ID."""

    code: str
    global_id: str

    def value(self) -> NoReturn:
        """Raises `NotRun`."""
        raise NotRun(self)


@dataclass(frozen=True)
class Settled:
    """A report was accepted. Fields as in `Done`."""

    state: SettledState
    late: bool | None
    degraded: str | None
    result_omitted: str | None
    global_id: str


@dataclass(frozen=True)
class Record:
    """A claim as the store has it, for people and reports: only a grant lets a caller go ahead."""

    state: str
    operation: str | None
    result: Any
    #: All fields of the answer.
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class LockHolder:
    """One hold of a lock, without its attempt."""

    #: The first 8 hex digits of the SHA-256 of the hold's nonce.
    hash: str
    mode: str
    claimed_at: str
    #: Seconds that are left of the lease.
    lease: float


@dataclass(frozen=True)
class LockRecord:
    """A lock as the store has it, for people and reports: it may change right after the lookup."""

    name: str
    #: `exclusive` or `shared`; None if the lock is free and requests queue for it.
    mode: str | None
    #: None if the lock is free.
    fence: int | None
    holders: tuple[LockHolder, ...]
    #: Number of requests in the queue.
    waiting: int
    # : Maximum number of holds at once; None if the holders have named none.
    limit: int | None = None

    @property
    def held(self) -> bool:
        return self.mode is not None


#: The result of `once`.
Answer = Union[Done[T_co], Duplicate[T_co], Mismatch]


@dataclass(frozen=True)
class Event:
    """One step of a call, for logs and metrics. It never holds contents, attempts or secrets."""

    name: str
    #: The operation, or the name of the lock.
    operation: str
    global_id: str | None
    fields: Mapping[str, Any] = field(default_factory=dict)
    #: Seconds since the call began.
    seconds: float = 0.0
