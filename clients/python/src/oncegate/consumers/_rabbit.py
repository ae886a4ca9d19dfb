"""Names that both RabbitMQ adapters share: the queues next to the main one, and the header that counts failures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._decide import Park, Redeliver

#: Delays of the retry queues in seconds: the time to live of a whole queue, so that no message waits behind a later one.
DELAYS = (1, 5, 30, 300)
FAILURES = "x-oncegate-failures"
WHY = "x-oncegate-why"
#: A classic queue removes a message before the main queue has stored it: a kill of the broker loses it.
_KEPT_UNTIL_BACK = {"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}


def retry_queue(queue: str, after: float) -> str:
    """The queue with the shortest delay that is long enough."""
    delay = next((delay for delay in DELAYS if delay >= after), DELAYS[-1])
    return f"{queue}.retry.{delay}s"


def queues_of(queue: str) -> dict[str, dict[str, Any]]:
    """The queues to declare in addition to `queue`, all durable, and their arguments."""
    retries = {
        retry_queue(queue, delay): {
            **_KEPT_UNTIL_BACK,
            "x-message-ttl": delay * 1000,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": queue,
        }
        for delay in DELAYS
    }
    return {**retries, f"{queue}.parked": {}, f"{queue}.dead": {}}


def failures_of(headers: Mapping[str, Any] | None) -> int:
    value = (headers or {}).get(FAILURES, 0)
    return value if isinstance(value, int) else 0


def moved(queue: str, decision: Any, headers: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
    """The queue that a message goes to, and its headers there."""
    kept = {name: value for name, value in (headers or {}).items() if name != "x-death"}
    kept[WHY] = decision.why
    if isinstance(decision, Redeliver):
        return retry_queue(queue, decision.after), {**kept, FAILURES: decision.failures}
    return f"{queue}.parked" if isinstance(decision, Park) else f"{queue}.dead", kept
