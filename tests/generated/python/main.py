"""The life of a claim with the client that openapi-python-client generated. Arguments: the gateway's URL and a credential."""

import sys
from datetime import datetime, timezone
from random import random
from uuid import uuid4

from oncegate_client import AuthenticatedClient
from oncegate_client.api.claims import (
    claim,
    claim_batch,
    compute_global_id,
    inspect_claim,
    renew_claim,
    settle_batch,
    settle_claim,
)
from oncegate_client.models import (
    ClaimBatchRequest,
    ClaimGranted,
    ClaimRequest,
    OutcomeBatchRequest,
    OutcomeBatchRequestItem,
    OutcomeBatchRequestItemOutcome,
    OutcomeRequest,
    OutcomeRequestOutcome,
    Problem,
    RenewalRequest,
    State,
)
from oncegate_client.types import UNSET

base_url, credential = sys.argv[1:]
client = AuthenticatedClient(base_url=base_url, token=credential)


def nonce():
    return uuid4().hex


def good(answer):
    """The success of a call."""
    assert answer is not None and not isinstance(answer, Problem), answer
    return answer


def problem(answer, code):
    """The problem of a call, which must have this code."""
    assert isinstance(answer, Problem) and answer.code == code, answer
    return answer


# An operation from its claim to its duplicate, with an object as contents and as result.
order = {"order_id": f"py-{nonce()}", "lines": [1, 2.5, None, True]}
request = ClaimRequest(contents=order, operation="order.submit", attempt_nonce=nonce(), lease="30s")
granted = good(claim.sync(client=client, body=request))
assert granted.state is State.IN_PROGRESS and granted.degraded is None and granted.fence > 0
assert 20_000 < granted.lease_ms <= 30_000
assert good(claim.sync(client=client, body=request)).repeated

renewal = RenewalRequest(attempt=granted.attempt, lease="2m")
assert good(renew_claim.sync(granted.global_id, client=client, body=renewal)).lease_ms > 60_000
other = ClaimRequest(contents=order, operation="order.submit", attempt_nonce=nonce())
running = problem(claim.sync(client=client, body=other), "duplicate")
assert running.state is State.IN_PROGRESS and running.retry_after_ms > 0

success = OutcomeRequest(attempt=granted.attempt, outcome=OutcomeRequestOutcome.SUCCESS, result={"order_number": 90017})
taken = good(settle_claim.sync(granted.global_id, client=client, body=success))
assert taken.state == "succeeded" and taken.late is False
done = problem(claim.sync(client=client, body=request), "duplicate")
assert done.state is State.SUCCEEDED and done.result == {"order_number": 90017}

record = good(inspect_claim.sync(granted.global_id, client=client))
assert record.contents == order and record.expires_at > datetime.now(timezone.utc)

# Contents of all other kinds, and all other outcomes.
for contents, outcome, state in [
    (f"py-{nonce()}", OutcomeRequestOutcome.FAILURE, "released"),
    (random(), OutcomeRequestOutcome.UNKNOWN, "unknown"),
    (["py", nonce()], OutcomeRequestOutcome.SUCCESS, "succeeded"),
]:
    held = good(claim.sync(client=client, body=ClaimRequest(contents=contents)))
    report = OutcomeRequest(attempt=held.attempt, outcome=outcome)
    assert good(settle_claim.sync(held.global_id, client=client, body=report)).state == state
    again = claim.sync(client=client, body=ClaimRequest(contents=contents, take_over=True, attempt_nonce=nonce()))
    if state == "succeeded":
        assert problem(again, "duplicate").result is UNSET
    else:
        assert (good(again).taken_over is True) == (state == "unknown")

# Batches: items are grants and problems.
item = ClaimRequest(contents={"order_id": f"py-{nonce()}"})
batch = ClaimBatchRequest(items=[item, item, ClaimRequest(contents="")])
first, second, third = good(claim_batch.sync(client=client, body=batch)).items
assert (first.status, second.status, third.status) == (201, 409, 422)
assert second.code == "duplicate" and second.state is State.IN_PROGRESS
named = {"global_id": first.global_id, "attempt": first.attempt}
reports = [
    OutcomeBatchRequestItem(**named, outcome=OutcomeBatchRequestItemOutcome.SUCCESS, result=None),
    OutcomeBatchRequestItem(**named, outcome=OutcomeBatchRequestItemOutcome.FAILURE),
]
outcomes = good(settle_batch.sync(client=client, body=OutcomeBatchRequest(items=reports))).items
assert [item.status for item in outcomes] == [200, 409] and outcomes[1].code == "already_succeeded"
assert problem(claim.sync(client=client, body=item), "duplicate").result is None

# Problems.
problem(claim.sync(client=client, body=ClaimRequest(contents=1, lease="soon")), "invalid_request")
problem(claim.sync(client=client, body=ClaimRequest(contents="")), "contents_empty")
changed = ClaimRequest(contents=order, operation="order.submit", fingerprint=1)
problem(claim.sync(client=client, body=changed), "fingerprint_mismatch")
problem(inspect_claim.sync("0" * 32, client=client), "not_found")
stranger = AuthenticatedClient(base_url=base_url, token="nobody.aaaaaaaaaaaaaaaaaaaaaaaa")
problem(claim.sync(client=stranger, body=request), "unauthenticated")

assert good(compute_global_id.sync(client=client, body=request)).global_id == granted.global_id

# A later version adds fields and codes.
later = granted.to_dict() | {"field_of_a_later_version": [1]}
assert ClaimGranted.from_dict(later).attempt == granted.attempt
later = done.to_dict() | {"field_of_a_later_version": [1], "code": "code_of_a_later_version"}
assert Problem.from_dict(later).code == "code_of_a_later_version"
print("ok")
