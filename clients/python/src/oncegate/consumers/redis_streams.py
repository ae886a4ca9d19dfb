"""Redis Streams with redis-py: entries that another consumer left pending, then new ones; acknowledged after the report."""

from __future__ import annotations

import threading
from typing import Any

from .. import options
from ._decide import Ack, Park, Redeliver
from ._recipe import Recipe, consume_once


class RedisStreamConsumer:
    """Consumes a stream in a group; the recipe's messages are the fields of an entry, as redis-py returns them.

    An entry for redelivery stays pending, and is claimed once it was idle for `claim_idle` seconds. Unknown outcomes go to the
    stream `STREAM:parked`, mistakes to `STREAM:dead`, in one transaction with the acknowledgement. Failures are counted in the hash
    `STREAM:failures`.
    """

    def __init__(
        self,
        recipe: Recipe[Any],
        redis: Any,
        stream: str,
        group: str,
        consumer: str,
        *,
        claim_idle: float = 30.0,
        block: float = 1.0,
    ):
        self._recipe, self._redis = recipe, redis
        self._stream, self._group, self._consumer = stream, group, consumer
        self._claim_idle = int((options.seconds("claim_idle", claim_idle) or 0) * 1000)
        self._block = int((options.seconds("block", block) or 0) * 1000)
        self._cursor: Any = "0-0"

    def declare(self) -> None:
        """Makes stream and group, unless they are there."""
        try:
            self._redis.xgroup_create(self._stream, self._group, id="0", mkstream=True)
        except Exception as error:
            if "BUSYGROUP" not in str(error):
                raise

    def run(self, stop: threading.Event) -> None:
        """Handles entries until `stop` is set."""
        while not stop.is_set():
            self.step()

    def step(self, count: int = 16) -> int:
        """Handles pending entries that are idle, or else new ones; returns how many."""
        names = (self._stream, self._group, self._consumer)
        answer = self._redis.xautoclaim(*names, self._claim_idle, self._cursor, count=count)
        self._cursor, entries = answer[0], list(answer[1])
        if not entries:
            entries = self._new(count)
        for entry, fields in entries:
            # An entry that was deleted from the stream has no fields.
            if fields is None:
                self._redis.xack(self._stream, self._group, entry)
            else:
                self._handle(entry, fields)
        return len(entries)

    def _new(self, count: int) -> list[Any]:
        streams = {self._stream: ">"}
        answer = self._redis.xreadgroup(self._group, self._consumer, streams, count=count, block=self._block) or []
        if isinstance(answer, dict):  # RESP3
            return [entry for lists in answer.values() for entries in lists for entry in entries]
        return [entry for _, entries in answer for entry in entries]

    def _handle(self, entry: Any, fields: Any) -> None:
        counts = f"{self._stream}:failures"
        failures = int(self._redis.hget(counts, entry) or 0)
        decision = consume_once(self._recipe, fields, failures)
        if isinstance(decision, Redeliver):
            if decision.failures != failures:
                self._redis.hset(counts, entry, decision.failures)
            return
        pipeline = self._redis.pipeline(transaction=True)
        if not isinstance(decision, Ack):
            target = f"{self._stream}:parked" if isinstance(decision, Park) else f"{self._stream}:dead"
            pipeline.xadd(target, {**fields, "oncegate-why": decision.why, "oncegate-entry": entry})
        pipeline.xack(self._stream, self._group, entry)
        pipeline.hdel(counts, entry)
        pipeline.execute()
