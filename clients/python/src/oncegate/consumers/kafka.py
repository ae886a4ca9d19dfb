"""Kafka with confluent-kafka: one message of a partition at a time, in a thread, while the poll loop goes on."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from .. import options
from ._decide import Ack, Decision, Park, Redeliver
from ._recipe import Recipe, consume_once


@dataclass
class _AtWork:
    """The message of one partition that is at work, or that waits for its redelivery."""

    message: Any
    work: Future[Decision] | None
    failures: int = 0
    due: float = 0.0


class KafkaConsumer:
    """Consumes topics; the recipe's messages are confluent-kafka messages.

    `consumer` has `enable.auto.commit=false`, `producer` has `acks=all`. A partition is paused while its message is at work or waits, so
    offsets are committed one after the other, without gaps. Unknown outcomes go to `TOPIC.parked`, mistakes to `TOPIC.dead`, delivered
    before the offset is committed. On revocation running work gets `revoke_within` seconds to end; what has not ended stays uncommitted.
    Failures of a message are counted by the process that has its partition.
    """

    def __init__(self, recipe: Recipe[Any], consumer: Any, producer: Any, *, threads: int = 8, revoke_within: float = 10.0):
        self._recipe, self._consumer, self._producer = recipe, consumer, producer
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="oncegate-kafka")
        self._revoke_within = options.seconds("revoke_within", revoke_within) or 10.0
        self._partitions: dict[tuple[str, int], _AtWork] = {}

    def subscribe(self, topics: list[str]) -> None:
        self._consumer.subscribe(topics, on_revoke=self._on_revoke, on_lost=self._on_lost)

    def run(self, stop: threading.Event) -> None:
        """Polls and handles messages until `stop` is set."""
        try:
            while not stop.is_set():
                self.step()
        finally:
            self._threads.shutdown(wait=True)
            self._advance()

    def step(self, timeout: float = 0.1) -> None:
        """Takes one message, and carries out what was decided since."""
        message = self._consumer.poll(timeout)
        if message is not None:
            if message.error() is None:
                self._begin(message)
            elif message.error().code() != KafkaError._PARTITION_EOF:
                raise KafkaException(message.error())
        self._advance()

    def _begin(self, message: Any) -> None:
        key = (message.topic(), message.partition())
        if key in self._partitions:
            # Fetched before the pause took effect: `_carry_out` seeks back to it.
            return
        self._consumer.pause([TopicPartition(*key)])
        self._partitions[key] = _AtWork(message, self._submit(message, 0))

    def _submit(self, message: Any, failures: int) -> Future[Decision]:
        return self._threads.submit(consume_once, self._recipe, message, failures)

    def _advance(self) -> None:
        for key, at in list(self._partitions.items()):
            if at.work is not None and at.work.done():
                self._carry_out(key, at, at.work.result())
            elif at.work is None and time.monotonic() >= at.due:
                at.work = self._submit(at.message, at.failures)

    def _carry_out(self, key: tuple[str, int], at: _AtWork, decision: Decision) -> None:
        if isinstance(decision, Redeliver):
            at.work, at.failures, at.due = None, decision.failures, time.monotonic() + decision.after
            return
        self._finish(key, at, decision)
        del self._partitions[key]
        # Also for what was fetched before the pause.
        self._consumer.seek(TopicPartition(*key, at.message.offset() + 1))
        self._consumer.resume([TopicPartition(*key)])

    def _finish(self, key: tuple[str, int], at: _AtWork, decision: Decision) -> None:
        if not isinstance(decision, Ack):
            self._move(at.message, "parked" if isinstance(decision, Park) else "dead", decision.why)
        offset = TopicPartition(*key, at.message.offset() + 1)
        self._consumer.commit(offsets=[offset], asynchronous=False)

    def _move(self, message: Any, where: str, why: str) -> None:
        """Delivered to all in-sync replicas, or an error: the offset is not committed then."""
        failed: list[Any] = []
        headers = [*(message.headers() or []), ("oncegate-why", why.encode())]
        target = f"{message.topic()}.{where}"
        self._producer.produce(
            target,
            message.value(),
            message.key(),
            headers=headers,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        if self._producer.flush(30) or failed:
            raise KafkaException(failed[0] if failed else KafkaError(KafkaError._MSG_TIMED_OUT))

    def _on_revoke(self, _: Any, partitions: list[Any]) -> None:
        ends = time.monotonic() + self._revoke_within
        for partition in partitions:
            key = (partition.topic, partition.partition)
            at = self._partitions.pop(key, None)
            if at is None or at.work is None:
                continue
            try:
                decision = at.work.result(max(ends - time.monotonic(), 0))
            except concurrent.futures.TimeoutError:
                continue  # Uncommitted: the next owner gets a duplicate until this work has ended.
            if not isinstance(decision, Redeliver):
                self._finish(key, at, decision)

    def _on_lost(self, _: Any, partitions: list[Any]) -> None:
        for partition in partitions:
            self._partitions.pop((partition.topic, partition.partition), None)
