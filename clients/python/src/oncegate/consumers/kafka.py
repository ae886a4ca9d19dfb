"""Kafka with confluent-kafka: one message of a partition at a time, in a thread, while the poll loop continues."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from .. import options
from ..events import logger
from ._decide import Ack, Decision, Park, Redeliver
from ._recipe import Recipe, consume_once

#: Seconds of a poll while work is running, so that its end is noticed soon.
_POLL_AT_WORK = 0.005
#: Seconds until a commit that failed is repeated.
_COMMIT_AGAIN = 0.2
#: A commit that fails with one of these is repeated: the broker restarts, or the group is being rebalanced.
_TRANSIENT = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._DESTROY,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._WAIT_COORD,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_COORDINATOR,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.UNKNOWN_MEMBER_ID,
}


@dataclass
class _Partition:
    """Messages of one partition. The first is at work or waits for its redelivery; the others wait behind it."""

    messages: deque[Any] = field(default_factory=deque)
    work: Future[Decision] | None = None
    failures: int = 0
    due: float = 0.0
    #: The offset that is not committed yet.
    commit: int | None = None
    paused: bool = False


class KafkaConsumer:
    """Consumes topics; the recipe's messages are confluent-kafka messages.

    `consumer` has `enable.auto.commit=false`, `producer` has `acks=all`. Messages of a partition are handled one after the other, so
    offsets are committed without gaps; a partition with `buffered` messages that wait is paused. Unknown outcomes go to `TOPIC.parked`,
    mistakes to `TOPIC.dead`, delivered before the offset is committed. On revocation running work gets `revoke_within` seconds to end; what
    has not ended stays uncommitted. Failures of a message are counted by the process that has its partition.
    """

    def __init__(
        self, recipe: Recipe[Any], consumer: Any, producer: Any, *, threads: int = 8, revoke_within: float = 10.0, buffered: int = 100
    ):
        self._recipe, self._consumer, self._producer = recipe, consumer, producer
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="oncegate-kafka")
        self._revoke_within = options.seconds("revoke_within", revoke_within) or 10.0
        if isinstance(buffered, bool) or not isinstance(buffered, int) or buffered < 1:
            raise ValueError(f"buffered is a whole number from 1, got {buffered!r}")
        self._buffered = buffered
        self._partitions: dict[tuple[str, int], _Partition] = {}
        self._commit_due = 0.0

    def subscribe(self, topics: list[str]) -> None:
        self._consumer.subscribe(topics, on_revoke=self._on_revoke, on_lost=self._on_lost)

    def run(self, stop: threading.Event) -> None:
        """Polls and handles messages until `stop` is set."""
        try:
            while not stop.is_set():
                self.step()
        finally:
            self._threads.shutdown(wait=True)
        self._commit_due = 0.0
        self._finish(self._partitions)

    def step(self, timeout: float = 0.1) -> None:
        """Takes one message, and carries out what was decided since."""
        at_work = any(at.messages for at in self._partitions.values())
        message = self._consumer.poll(_POLL_AT_WORK if at_work else timeout)
        if message is not None:
            if message.error() is None:
                self._take(message)
            elif message.error().code() != KafkaError._PARTITION_EOF:
                raise KafkaException(message.error())
        self._finish(self._partitions)
        for key, at in self._partitions.items():
            if at.work is None and at.messages and time.monotonic() >= at.due:
                at.work = self._threads.submit(consume_once, self._recipe, at.messages[0], at.failures)
            if at.paused and len(at.messages) <= self._buffered // 2:
                self._consumer.resume([TopicPartition(*key)])
                at.paused = False

    def _take(self, message: Any) -> None:
        key = (message.topic(), message.partition())
        at = self._partitions.setdefault(key, _Partition())
        at.messages.append(message)
        if len(at.messages) >= self._buffered and not at.paused:
            self._consumer.pause([TopicPartition(*key)])
            at.paused = True

    def _finish(self, partitions: dict[tuple[str, int], _Partition]) -> None:
        """Carries out the decisions of work that has ended, and commits."""
        for at in partitions.values():
            if at.work is not None and at.work.done():
                self._carry_out(at, at.work.result())
        self._commit(partitions)

    def _carry_out(self, at: _Partition, decision: Decision) -> None:
        at.work = None
        if isinstance(decision, Redeliver):
            at.failures, at.due = decision.failures, time.monotonic() + decision.after
            return
        if not isinstance(decision, Ack):
            self._move(at.messages[0], "parked" if isinstance(decision, Park) else "dead", decision.why)
        at.commit, at.failures, at.due = at.messages.popleft().offset() + 1, 0, 0.0

    def _commit(self, partitions: dict[tuple[str, int], _Partition]) -> None:
        """Commits what is due. After a failure that passes it stays due; a later offset of the partition may replace it."""
        due = {key: at.commit for key, at in partitions.items() if at.commit is not None}
        if not due or time.monotonic() < self._commit_due:
            return
        try:
            offsets = [TopicPartition(*key, offset) for key, offset in due.items()]
            for committed in self._consumer.commit(offsets=offsets, asynchronous=False) or []:
                if committed.error is not None:
                    raise KafkaException(committed.error)
        except KafkaException as error:
            if error.args[0].code() not in _TRANSIENT:
                raise
            logger.warning("Offsets of %s are not committed, and will be committed later: %s", self._recipe.operation, error)
            self._commit_due = time.monotonic() + _COMMIT_AGAIN
            return
        for key in due:
            partitions[key].commit = None

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
        """What has not ended in time stays uncommitted: the next owner gets a duplicate until this work has ended."""
        revoked = self._take_away(partitions)
        work = [at.work for at in revoked.values() if at.work is not None]
        concurrent.futures.wait(work, self._revoke_within)
        self._commit_due = 0.0
        self._finish(revoked)

    def _on_lost(self, _: Any, partitions: list[Any]) -> None:
        self._take_away(partitions)

    def _take_away(self, partitions: list[Any]) -> dict[tuple[str, int], _Partition]:
        """Forgets partitions that another consumer will own, and the messages that wait there."""
        keys = [(each.topic, each.partition) for each in partitions]
        taken = {key: at for key in keys if (at := self._partitions.pop(key, None)) is not None}
        if paused := [TopicPartition(*key) for key, at in taken.items() if at.paused]:
            # They may come back, and are not paused then.
            self._consumer.resume(paused)
        return taken
