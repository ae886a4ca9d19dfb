"""The locks of the gateway in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import options
from ._memory_claims import LEASE_SECONDS, Answer, instant, problem


@dataclass
class _Hold:
    nonce: str
    attempt: str
    mode: str
    owner: str | None
    lease: float
    ends: float
    claimed_at: float


class Locks:
    """All locks, by their names. Requests queue in no order."""

    def __init__(self, now: Callable[[], float]):
        self._now = now
        self._fences = 0
        self._holds: dict[str, list[_Hold]] = {}
        self._mode_of: dict[str, str | None] = {}
        self._fence_of: dict[str, int] = {}
        self._limit_of: dict[str, int | None] = {}

    def _live(self, name: str) -> list[_Hold]:
        holds = [hold for hold in self._holds.get(name, []) if hold.ends > self._now()]
        self._holds[name] = holds
        self._follow_mode(name)
        return holds

    def _follow_mode(self, name: str) -> None:
        """A new fence each time the lock becomes held, or its mode changes."""
        holds = self._holds[name]
        mode = _mode(holds) if holds else None
        if mode not in (None, self._mode_of.get(name)):
            self._fences += 1
            self._fence_of[name] = self._fences
        self._mode_of[name] = mode

    def acquire(self, name: str, body: dict[str, Any]) -> Answer:
        holds, nonce, owner = self._live(name), body["attempt_nonce"], body.get("owner")
        mine = next((hold for hold in holds if hold.nonce == nonce), None)
        if mine is None:
            mode = body.get("mode", "exclusive")
            limit, used = body.get("limit"), self._limit_of.get(name) if holds else body.get("limit")
            others = [hold for hold in holds if owner is None or hold.owner != owner]
            is_busy = bool(others) and (mode == "exclusive" or any(hold.mode == "exclusive" for hold in others))
            if limit is not None and used is not None and limit != used:
                return problem(409, "limit_differs", "The holders share the lock with another limit.", limit=used)
            if limit != used:
                is_busy = True
            elif limit is not None:
                is_busy = len(holds) >= limit
            elif is_busy and mode == "exclusive" and len(others) < len(holds):
                return problem(409, "upgrade_refused", "Others share the lock.", retry_after_ms=1000)
            if is_busy:
                more = {"retry_after_ms": 1000, "mode": _mode(holds), "holders": len(holds), "waiting": 0}
                return problem(409, "lock_held", "Others hold the lock. Ask again after Retry-After, or send `wait`.", **more)
            now = self._now()
            lease = options.duration_in_seconds(body.get("lease")) or LEASE_SECONDS
            mine = _Hold(nonce, f"{int(now * 1_000_000):016}-{nonce}", mode, owner, lease, now + lease, now)
            holds.append(mine)
            self._limit_of[name] = limit
            self._follow_mode(name)
            repeated = False
        else:
            repeated = True
        same = [hold for hold in holds if hold is mine or (owner is not None and hold.owner == owner)]
        left = int((mine.ends - self._now()) * 1000)
        shown = {"name": name, "mode": mine.mode, "attempt": mine.attempt, "fence": self._fence_of[name], "holds": len(same)}
        return 201, {**shown, "lease_ms": left, "lease_expires_at": instant(mine.ends), "repeated": repeated, "waited_ms": 0}

    def renew(self, name: str, body: dict[str, Any]) -> Answer:
        mine = next((hold for hold in self._live(name) if hold.attempt == body["attempt"]), None)
        if mine is None:
            return problem(409, "not_held", "This attempt does not hold the lock: it was released, or its lease has ended.")
        mine.ends = self._now() + (options.duration_in_seconds(body.get("lease")) or mine.lease)
        left = int((mine.ends - self._now()) * 1000)
        return 200, {"name": name, "lease_ms": left, "lease_expires_at": instant(mine.ends)}

    def release(self, name: str, body: dict[str, Any]) -> Answer:
        holds = self._live(name)
        mine = next((hold for hold in holds if body.get("attempt") == hold.attempt or body.get("attempt_nonce") == hold.nonce), None)
        if mine is None:
            return problem(409, "not_held", "This attempt does not hold the lock: it was released, or its lease has ended.")
        holds.remove(mine)
        self._follow_mode(name)
        same = [hold for hold in holds if mine.owner is not None and hold.owner == mine.owner]
        return 200, {"name": name, "holds": len(same), "fence": self._fence_of[name] if same else None, "late": False}

    def lookup(self, name: str) -> Answer:
        holds = self._live(name)
        if not holds:
            return problem(404, "not_found", "The lock is free, and no request waits for it.")
        holders = [
            {
                "hash": hashlib.sha256(hold.nonce.encode()).hexdigest()[:8],
                "mode": hold.mode,
                "claimed_at": instant(hold.claimed_at),
                "lease_ms": int((hold.ends - self._now()) * 1000),
            }
            for hold in holds
        ]
        found = {"name": name, "mode": _mode(holds), "fence": self._fence_of[name], "holders": holders, "waiting": 0}
        return 200, found if self._limit_of[name] is None else {**found, "limit": self._limit_of[name]}


def _mode(holds: list[_Hold]) -> str:
    return "exclusive" if any(hold.mode == "exclusive" for hold in holds) else "shared"
