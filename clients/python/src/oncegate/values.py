"""Results of calls. Times are in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Union


@dataclass(frozen=True)
class Done:
    """The work ran here, and its outcome was reported."""

    result: Any
    #: `succeeded`, `observed`, `spooled` (a gateway delivers it later), or None if nothing was recorded.
    state: str | None
    #: The outage policy that answered in place of the store; `caller` is this client's own `proceed`. None: all promises hold.
    degraded: str | None
    #: True: the claim had ended before the outcome arrived, so another attempt may have run. None: not known.
    late: bool | None
    #: In observe mode, the code of the answer that enforcing would have given to the claim.
    would_be: str | None
    #: Why the result was not stored: it is not JSON, is too long, or was refused. None if it was stored.
    result_omitted: str | None
    global_id: str


@dataclass(frozen=True)
class Duplicate:
    """Another attempt is running or has completed the operation. `state` is `in_progress`, `succeeded` or `unknown`."""

    state: str
    #: The result stored with the success.
    result: Any
    #: Seconds until it is worth asking again, while it is in progress.
    retry_after: float
    claimed_at: str | None
    expires_at: str | None
    #: False where the contents of the other claim are not known, so that they could not be compared.
    contents_verified: bool
    degraded: str | None
    global_id: str
    #: True if the result was too large for the answer to a batch: look the claim up by itself.
    result_omitted: bool = False


@dataclass(frozen=True)
class Mismatch:
    """The operation was claimed with another fingerprint, or with other contents of the same ID."""

    code: str
    global_id: str


@dataclass(frozen=True)
class Settled:
    """A report was accepted. Fields as in `Done`."""

    state: str
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

    @property
    def held(self) -> bool:
        return self.mode is not None


#: The result of `once`.
Answer = Union[Done, Duplicate, Mismatch]


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
