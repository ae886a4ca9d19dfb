"""Looks for the grant of a claim call that ended without an answer."""

from __future__ import annotations

import hashlib
import random
from typing import Any

from ._core import PAUSE_MIN, ClaimTerms, Flow, Pause, Request, Scope, call
from .errors import Rejected

#: The longest time that such a grant is looked for, and its release is reported; less if `settle_within` is.
GIVE_BACK_SECONDS_MAX = 30.0
#: Grants that one client looks for at once. Those above it wait for the end of their leases: a gateway that comes back has enough to do.
GIVE_BACKS_MAX = 64


def find_grant(scope: Scope, terms: ClaimTerms, ends: float) -> Flow[str | None]:
    """The attempt with the nonce of this call, if it holds the claim.

    A lookup, and no further claim: that one would take the key if it was free.
    """
    yield Pause(random.uniform(0, PAUSE_MIN))
    record = yield from _look(scope, terms, ends)
    if record is None:
        # The call may still be on its way.
        yield Pause(scope.core.timeout)
        record = yield from _look(scope, terms, ends)
    if record is None or record.get("state") not in ("in_progress", "unknown"):
        return None
    attempt = f"{record.get('timestamp')}-{terms.nonce}"
    is_ours = record.get("attempt_hash") == hashlib.sha256(attempt.encode()).hexdigest()[:8]
    return attempt if is_ours else None


def _look(scope: Scope, terms: ClaimTerms, ends: float) -> Flow[dict[str, Any] | None]:
    request = Request("GET", f"/v1/claims/{terms.global_id}", None)
    try:
        return (yield from call(scope, request, max(ends - scope.core.clock(), 0.001))).body
    except Rejected as rejected:
        if rejected.status == 404 and rejected.code == "not_found":
            return None
        raise
