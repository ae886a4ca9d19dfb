"""NATS JetStream with nats-py: `in_progress` during the work, `nak` with a delay, parked before the acknowledgement."""

from __future__ import annotations

import asyncio
from typing import Any

from .. import options
from ._decide import Ack, Park, Redeliver
from ._recipe import Recipe, consume_once_async

FAILURES = "Oncegate-Failures"
WHY = "Oncegate-Why"


class NatsConsumer:
    """Handles messages of a pull subscription with explicit acknowledgement; the recipe's messages are nats-py messages.

    Unknown outcomes go to the subject `parked`, mistakes to `dead`: subjects of a stream, but not of the consumed one. A message whose work
    found that nothing happened is published again with its count of failures. `progress_every` is below the consumer's `ack_wait`.
    """

    def __init__(self, recipe: Recipe[Any], jetstream: Any, *, parked: str, dead: str, progress_every: float = 10.0):
        self._recipe, self._jetstream = recipe, jetstream
        self._parked, self._dead = parked, dead
        self._progress_every = options.seconds("progress_every", progress_every) or 10.0

    async def run(self, subscription: Any, stop: asyncio.Event, batch: int = 16) -> None:
        """Fetches and handles messages until `stop` is set."""
        while not stop.is_set():
            try:
                messages = await subscription.fetch(batch, timeout=1)
            except (TimeoutError, asyncio.TimeoutError):
                continue
            await asyncio.gather(*map(self.on_message, messages))

    async def on_message(self, message: Any) -> None:
        failures = _failures_of(message.headers)
        progress = asyncio.ensure_future(self._report_progress(message))
        try:
            decision = await consume_once_async(self._recipe, message, failures)
            if isinstance(decision, Ack):
                await message.ack_sync()
            elif isinstance(decision, Redeliver) and decision.failures == failures:
                await message.nak(delay=decision.after)
            elif isinstance(decision, Redeliver):
                # JetStream counts deliveries, not failures, and keeps no header: so it is another message.
                await asyncio.sleep(decision.after)
                await self._move(message, message.subject, {FAILURES: str(decision.failures)})
            else:
                target = self._parked if isinstance(decision, Park) else self._dead
                await self._move(message, target, {WHY: decision.why})
        finally:
            progress.cancel()

    async def _move(self, message: Any, subject: str, headers: dict[str, str]) -> None:
        """Accepted by its stream first, then acknowledged here."""
        # An expectation or a time to live of the first publisher is not one of the copy.
        kept = {name: value for name, value in (message.headers or {}).items() if not name.startswith("Nats-")}
        await self._jetstream.publish(subject, message.data, headers={**kept, **headers})
        await message.ack_sync()

    async def _report_progress(self, message: Any) -> None:
        while True:
            await asyncio.sleep(self._progress_every)
            await message.in_progress()


def _failures_of(headers: Any) -> int:
    value = (headers or {}).get(FAILURES, "0")
    return int(value) if value.isdigit() else 0
