"""The flows of a lock: acquisition with its wait, renewal, release and withdrawal. Locks always fail closed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Union

from . import options
from ._core import Core, Flow, Pause, Request, Scope, call, find, fresh_nonce, json_object, wait_of_call
from ._lease import Lease, keep_lease, renew
from .errors import Cause, LockNotAcquired, Rejected, Unavailable
from .values import LockHolder, LockRecord


@dataclass(frozen=True)
class LockTerms:
    name: str
    mode: str
    limit: int | None
    owner: str | None
    lease: str | None
    fair: bool
    wait: str | None
    nonce: str = field(default_factory=fresh_nonce)

    def path(self, what: str) -> str:
        return f"/v1/locks/{self.name}/{what}"


@dataclass
class HoldState(Lease):
    terms: LockTerms
    fence: int | None
    holds: int

    LOST_EVENT: ClassVar[str] = "lock_lost"
    RENEWED_EVENT: ClassVar[Union[str, None]] = None


def lock_terms(
    name: str,
    mode: str,
    limit: int | None,
    owner: str | None,
    lease: options.Duration | None,
    fair: bool,
    wait: options.Duration | None,
) -> LockTerms:
    if not isinstance(fair, bool):
        raise TypeError(f"fair is True or False, got {fair!r}")
    return LockTerms(
        options.lock_name(name),
        options.choice("mode", mode, ("exclusive", "shared")),
        options.limit(limit, mode),
        options.owner(owner),
        options.duration("lease", lease),
        fair,
        options.duration("wait", wait),
    )


def acquire(core: Core, scope: Scope, terms: LockTerms) -> Flow[HoldState]:
    """Acquires the lock, or raises `LockNotAcquired` or `Unavailable`; then nothing is left behind at the gateways."""
    if not core.enabled:
        return HoldState(scope, None, None, math.inf, terms, None, 1)
    wait_ends = core.clock() + (options.duration_seconds(terms.wait) if terms.wait else 0.0)
    first = True
    while True:
        left = max(wait_ends - core.clock(), 0.0)
        wait, seconds = wait_of_call(terms.wait, left, first)
        fields = {"mode": terms.mode, "attempt_nonce": terms.nonce, "owner": terms.owner, "lease": terms.lease}
        body = json_object({**fields, "limit": terms.limit, "fair": terms.fair or None, "wait": wait})
        request = Request("POST", terms.path("holds"), body, answers_with="attempt")
        try:
            answered = yield from call(scope, request, scope.limits.claim_within, wait=seconds)
        except Unavailable as unavailable:
            scope.emit("unavailable", causes=unavailable.causes)
            yield from withdraw(scope, terms)
            raise
        body_of = answered.body
        if answered.status == 201:
            if body_of.get("name") != terms.name:
                yield from withdraw(scope, terms)
                raise _lock_differs(terms.name, str(body_of.get("name")))
            hold = HoldState(
                scope, body_of["attempt"], answered.at, answered.lease_ends, terms, body_of.get("fence"), body_of.get("holds", 1)
            )
            scope.emit("lock_acquired", fence=hold.fence)
            if hold.is_live:
                return hold
            try:
                yield from release(hold)
            except (Unavailable, Rejected):
                pass  # Each try has emitted its event.
            raise Unavailable([Cause(core.urls[answered.at], "too_late", "the hold arrived after its lease had ended, and was released")])
        code = str(body_of.get("code", ""))
        retry_after = body_of.get("retry_after_ms", 1000) / 1000
        left, pause = wait_ends - core.clock(), answered.pause_after(seconds)
        if code != "lock_held" or left <= max(pause, 0.001) or scope.cancelled:
            scope.emit("lock_held", code=code)
            if terms.fair and code == "lock_held":
                yield from withdraw(scope, terms)
            raise LockNotAcquired(terms.name, code, retry_after, body_of.get("limit"))
        # The gateway has shortened the wait, or has no room for waiters.
        yield Pause(pause)
        first = False


def _lock_differs(name: str, granted: str) -> Rejected:
    """The error of a grant of another lock than the one that was asked for: it would protect nothing that others ask for."""
    why = f"the gateway granted the lock {granted[:130]!r} for {name!r}; the request was withdrawn, and nothing has run"
    return Rejected(201, {"code": "identity_differs", "detail": f"{why}. Is something between client and gateway that changes paths?"})


def withdraw(scope: Scope, terms: LockTerms) -> Flow[None]:
    """Takes back hold and ticket of this acquisition, where they may exist. Without an answer the lease ends them."""
    request = Request("POST", terms.path("release"), json_object({"attempt_nonce": terms.nonce}), answers_with="holds")
    try:
        yield from call(scope, request, scope.core.timeout)
    except (Unavailable, Rejected):
        pass  # Each try has emitted its event.


def keep_renewing(hold: HoldState) -> Flow[None]:
    if hold.attempt is None:
        return
    fields = {"attempt": hold.attempt, "lease": hold.terms.lease}
    request = Request("POST", hold.terms.path("renewal"), json_object(fields), answers_with="lease_ms")
    yield from keep_lease(hold, lambda: renew(hold, request))


def release(hold: HoldState) -> Flow[None]:
    """Releases the hold, and repeats that until it is answered. If the hold has already ended, the event `lock_lost` is emitted."""
    scope = hold.scope
    was_lost, hold.ended = hold.lost is not None, True
    if hold.attempt is None:
        return
    request = Request("POST", hold.terms.path("release"), json_object({"attempt": hold.attempt}), answers_with="holds")
    answered = yield from call(scope, request, scope.limits.settle_within, start=hold.at)
    if answered.status == 200:
        scope.emit("lock_released", fence=hold.fence)
    elif not was_lost:
        scope.emit("lock_lost", code=str(answered.body.get("code", "")))


def lookup(core: Core, name: str) -> Flow[LockRecord | None]:
    if not core.enabled:
        return None
    scope = Scope(core, name, None, core.clock())
    fields = yield from find(scope, Request("GET", f"/v1/locks/{name}", None, answers_with="waiting"))
    if fields is None:
        return None
    holders = tuple(
        LockHolder(each["hash"], each["mode"], each["claimed_at"], each["lease_ms"] / 1000) for each in fields.get("holders", [])
    )
    return LockRecord(name, fields.get("mode"), fields.get("fence"), holders, fields["waiting"], fields.get("limit"))
