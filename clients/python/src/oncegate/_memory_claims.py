"""The claims of the gateway in memory: the transitions of a real one, in a dictionary."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from . import contents as _contents
from . import options
from .errors import NotCanonical

LEASE_SECONDS = 30.0
#: Seconds for which a success and an unknown outcome stay.
RETENTION = {"succeeded": 86400.0, "unknown": 7 * 86400.0}
Answer = tuple[int, dict[str, Any]]


@dataclass
class MemoryClaim:
    """One operation as the gateway in memory has it."""

    operation: str
    contents: Any
    state: str
    result: Any = None
    fingerprint: str | None = None
    attempt: str = ""
    nonce: str = ""
    fence: int = 0
    claimed_at: float = 0.0
    #: The end of the lease, or of the retention.
    ends: float = 0.0
    lease: float = LEASE_SECONDS
    retention: str | None = None
    unknown_on_lease_end: bool = False
    app: str = field(default="default", repr=False)


class Claims:
    """All claims, by their global IDs. Not safe for threads: the gateway locks."""

    def __init__(self, now: Callable[[], float]):
        self._now = now
        self._fences = 0
        self.by_id: dict[str, MemoryClaim] = {}
        #: Successes of attempts, which are never undone.
        self._succeeded: set[str] = set()

    def find(self, global_id: str) -> MemoryClaim | None:
        """The live claim or its outcome. An ended lease releases it or makes it unknown, and an ended retention removes it."""
        found = self.by_id.get(global_id)
        if found is not None and found.state == "in_progress" and found.unknown_on_lease_end and found.ends <= self._now():
            found.state, found.ends = "unknown", float("inf")
        if found is not None and found.ends <= self._now():
            del self.by_id[global_id]
            return None
        return found

    def claim(self, app: str, body: dict[str, Any]) -> Answer:
        try:
            operation = options.operation(body.get("operation", ""))
            contents = _contents.canonical(_contents.JsonText(_json(body.get("contents"))))
            lease = options.duration_in_seconds(body.get("lease")) or LEASE_SECONDS
        except (ValueError, NotCanonical) as error:
            return problem(400, "invalid_request", str(error))
        global_id = _contents.id_of(app, operation, contents)
        mark = None
        if body.get("fingerprint") is not None:
            mark = _contents.canonical_fingerprint(_contents.JsonText(_json(body["fingerprint"])))
        found, nonce = self.find(global_id), body["attempt_nonce"]
        if found is not None and found.nonce == nonce and found.state == "in_progress":
            return 201, self._granted(global_id, found, repeated=True)
        if found is not None and found.fingerprint != mark:
            return problem(422, "fingerprint_mismatch", "The same operation was claimed with another fingerprint; nothing was changed.")
        taken_over = found is not None and found.state == "unknown" and body.get("take_over") is True
        if found is not None and not taken_over:
            return self.duplicate(global_id, found)
        self._fences += 1
        now = self._now()
        attempt = f"{int(now * 1_000_000):016}-{nonce}"
        kept = MemoryClaim(operation, body["contents"], "in_progress", None, mark, attempt, nonce, self._fences, now, now + lease, lease)
        kept.app, kept.retention, kept.unknown_on_lease_end = app, body.get("retention"), body.get("on_lease_end") == "unknown"
        self.by_id[global_id] = kept
        more = {"taken_over": True} if taken_over else {}
        return 201, {**self._granted(global_id, kept, repeated=False), **more}

    def _granted(self, global_id: str, claim: MemoryClaim, *, repeated: bool) -> dict[str, Any]:
        return {
            "global_id": global_id,
            "attempt": claim.attempt,
            "timestamp": int(claim.claimed_at * 1_000_000),
            "fence": claim.fence,
            "state": "in_progress",
            "repeated": repeated,
            "claimed_at": instant(claim.claimed_at),
            "lease_ms": max(0, int((claim.ends - self._now()) * 1000)),
            "lease_expires_at": instant(claim.ends),
            "degraded": None,
        }

    def duplicate(self, global_id: str, claim: MemoryClaim) -> Answer:
        more: dict[str, Any] = {"retry_after_ms": 1000} if claim.state == "in_progress" else {}
        if claim.state == "succeeded" and claim.result is not None:
            more["result"] = claim.result
        return problem(409, "duplicate", f"The operation is {claim.state}.", **self._shown(global_id, claim), **more)

    def _shown(self, global_id: str, claim: MemoryClaim) -> dict[str, Any]:
        return {
            "global_id": global_id,
            "state": claim.state,
            "timestamp": int(claim.claimed_at * 1_000_000),
            "attempt_hash": hashlib.sha256(claim.attempt.encode()).hexdigest()[:8],
            "claimed_at": instant(claim.claimed_at),
            "expires_at": instant(claim.ends),
        }

    def lookup(self, global_id: str) -> Answer:
        found = self.find(global_id)
        if found is None:
            return problem(404, "not_found", "There is no claim under this global ID: it was never claimed, was released, or has ended.")
        result = {} if found.result is None else {"result": found.result}
        shown = {"operation": found.operation, "fence": found.fence, "contents": found.contents}
        more = {"has_fingerprint": found.fingerprint is not None, "retention": found.retention or "1d"}
        more["on_lease_end"] = "unknown" if found.unknown_on_lease_end else "release"
        return 200, {**self._shown(global_id, found), **shown, **more, **result}

    def renew(self, global_id: str, body: dict[str, Any]) -> Answer:
        found, attempt = self.find(global_id), body["attempt"]
        if attempt in self._succeeded:
            return problem(409, "already_succeeded", "This attempt has reported success before, which is never undone.")
        if found is None or found.attempt != attempt or found.state != "in_progress":
            return problem(409, "lease_lost" if found is None else "superseded", "This attempt does not hold the claim.")
        found.ends = self._now() + found.lease
        return 200, {"global_id": global_id, "lease_ms": int(found.lease * 1000), "lease_expires_at": instant(found.ends), "degraded": None}

    def settle(self, app: str, global_id: str, body: dict[str, Any]) -> Answer:
        found, attempt, outcome = self.find(global_id), body["attempt"], body["outcome"]
        if attempt in self._succeeded and (found is None or outcome != "success"):
            return problem(
                409, "already_succeeded", "This attempt has reported success before, which is never undone; nothing was changed."
            )
        if found is not None and found.attempt != attempt:
            return problem(409, "superseded", "Another attempt's claim stands and was not touched.", state=found.state)
        late = found is None
        state = {"success": "succeeded", "failure": "released", "unknown": "unknown"}[outcome]
        if found is None:
            now = self._now()
            nonce = attempt.partition("-")[2]
            found = MemoryClaim(body.get("operation", "-"), body.get("contents"), state, None, None, attempt, nonce, 0, now, app=app)
        if outcome == "failure":
            self.by_id.pop(global_id, None)
            return 200, {"global_id": global_id, "state": state, "expires_at": None, "late": late, "degraded": None}
        if found.state == "in_progress" or late:
            found.state, found.result = state, body.get("result") if outcome == "success" else None
            found.ends = self._now() + self._retained(found, state)
            self.by_id[global_id] = found
        if outcome == "success":
            self._succeeded.add(attempt)
        return 200, {"global_id": global_id, "state": found.state, "expires_at": instant(found.ends), "late": late, "degraded": None}

    def _retained(self, claim: MemoryClaim, state: str) -> float:
        if state == "succeeded" and claim.retention is not None:
            return float("inf") if claim.retention == "forever" else options.duration_seconds(claim.retention)
        return RETENTION[state]


def problem(status: int, code: str, detail: str, **more: Any) -> Answer:
    title = code.replace("_", " ").capitalize()
    document = {"type": f"urn:oncegate:problem:{code}", "title": title, "status": status, "detail": detail, "code": code}
    return status, {**document, "request_id": "memory", **more}


def instant(seconds: float) -> str | None:
    if seconds == float("inf"):
        return None
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")


def _json(value: Any) -> str:
    return json.dumps(value)
