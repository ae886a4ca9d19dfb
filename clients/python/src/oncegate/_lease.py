"""A lease and its renewal, the same for claims and locks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from ._core import Flow, Pause, Request, Scope, call
from .errors import Rejected, Unavailable


@dataclass
class Lease:
    """Something held until its lease ends."""

    scope: Scope
    #: None: nothing is held at a gateway.
    attempt: str | None
    #: The position of the gateway that granted it.
    at: int | None
    #: By the monotonic clock.
    ends: float

    LOST_EVENT: ClassVar[str] = "lost"
    RENEWED_EVENT: ClassVar[str | None] = "renewed"

    def __post_init__(self) -> None:
        self.lost: str | None = None
        #: By the monotonic clock; it is not renewed later.
        self.renewed_until = math.inf
        # : Its settlement or release has started: a renewal has no meaning any more.
        self.ended = False
        #: Called once it is lost.
        self.on_lost: list[Callable[[], None]] = []

    @property
    def is_live(self) -> bool:
        return self.lost is None and self.scope.core.clock() < self.ends

    def lose(self, code: str) -> None:
        if self.lost is None and not self.ended:
            self.lost = code
            self.scope.emit(self.LOST_EVENT, code=code)
            for callback in self.on_lost:
                callback()


def renew(lease: Lease, request: Request) -> Flow[bool]:
    """One renewal call. Returns true if it is still held; false, and `lost` is set, if it is not."""
    core = lease.scope.core
    answered = yield from call(lease.scope, request, max(lease.ends - core.clock(), 0.001), start=lease.at)
    if answered.status == 200:
        lease.ends = max(lease.ends, answered.lease_ends)
        if lease.RENEWED_EVENT and not lease.ended:
            lease.scope.emit(lease.RENEWED_EVENT)
        return True
    lease.lose(str(answered.body.get("code", "")))
    return False


def keep_lease(lease: Lease, renewal: Callable[[], Flow[bool]]) -> Flow[None]:
    """Renews at a third of the lease, which leaves time to repeat a lost answer; ends when the lease has ended here."""
    clock = lease.scope.core.clock
    while (left := lease.ends - clock()) > 0:
        yield Pause(max(left / 3, 0.001))
        if clock() >= lease.renewed_until:
            return
        # Below this no answer would come in time.
        if lease.ends - clock() < 0.002:
            continue
        try:
            if not (yield from renewal()):
                return
        except (Unavailable, Rejected):
            continue  # Each try has emitted its event; the last answer that came counts.
    lease.lose("not_renewed")
