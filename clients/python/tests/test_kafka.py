"""The Kafka adapter over a consumer and a producer in memory: pauses, commits without gaps, parking before the commit, revocation."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from oncegate import Client, Done, NothingHappened
from oncegate.consumers import Recipe
from oncegate.consumers.kafka import KafkaConsumer


class Message:
    def __init__(self, partition: int, offset: int):
        self._partition, self._offset = partition, offset

    def error(self) -> None:
        return None

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def headers(self) -> None:
        return None

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"%d-%d" % (self._partition, self._offset)


class Consumer:
    """Two partitions of five messages; like librdkafka it may hand out one that was fetched before the pause."""

    def __init__(self) -> None:
        self.next = {0: 0, 1: 0}
        self.paused: set[int] = set()
        self.log: list[tuple[str, int, int]] = []
        self.polls = 0

    def poll(self, _: float) -> Message | None:
        self.polls += 1
        time.sleep(0.001)
        for partition, offset in self.next.items():
            if partition not in self.paused and offset < 5:
                self.next[partition] += 1
                return Message(partition, offset)
        return None

    def pause(self, partitions: list[Any]) -> None:
        self.paused |= {each.partition for each in partitions}

    def resume(self, partitions: list[Any]) -> None:
        self.paused -= {each.partition for each in partitions}

    def seek(self, at: Any) -> None:
        self.next[at.partition] = at.offset

    def commit(self, offsets: list[Any], asynchronous: bool) -> None:
        assert not asynchronous
        self.log += [("commit", each.partition, each.offset) for each in offsets]


class Producer:
    def __init__(self, consumer: Consumer):
        self.consumer = consumer

    def produce(self, topic: str, value: bytes, _: Any, headers: Any, on_delivery: Any) -> None:
        partition, offset = map(int, value.split(b"-"))
        self.consumer.log.append((topic, partition, offset))
        on_delivery(None, None)

    def flush(self, _: float) -> int:
        return 0


class Direct(Client):
    """Runs each message, as a gateway that grants all."""

    def once(self, operation: str, contents: Any, work: Any, **_: Any) -> Any:
        return Done(work(None), "succeeded", None, False, None, None, "")


def consumer_of(handle: Any, **more: Any) -> tuple[KafkaConsumer, Consumer]:
    recipe: Recipe[Any] = Recipe(
        Direct(["http://127.0.0.1:1"]), "orders", lambda message: message.value(), handle, redeliver_after=0.01, **more
    )
    consumer = Consumer()
    return KafkaConsumer(recipe, consumer, Producer(consumer), revoke_within=0.2), consumer


def until(kafka: KafkaConsumer, consumer: Consumer, commits: int) -> None:
    ends = time.monotonic() + 10
    while sum(each[0] == "commit" for each in consumer.log) < commits:
        assert time.monotonic() < ends, consumer.log
        kafka.step()


def test_offsets_are_committed_one_after_the_other_while_polling_goes_on() -> None:
    polled: list[int] = []

    def handle(message: Any, _: Any) -> None:
        before = consumer.polls
        time.sleep(0.02)
        polled.append(consumer.polls - before)

    kafka, consumer = consumer_of(handle)
    until(kafka, consumer, 10)
    for partition in (0, 1):
        assert [each[2] for each in consumer.log if each[1] == partition] == [1, 2, 3, 4, 5]
    assert min(polled) > 1


def test_what_is_unknown_is_parked_before_its_commit_and_failures_are_dead_after_three() -> None:
    runs: list[bytes] = []

    def handle(message: Any, _: Any) -> None:
        runs.append(message.value())
        if message.value() == b"0-1":
            raise RuntimeError("who knows")
        if message.value() == b"0-2":
            raise NothingHappened("not now")

    kafka, consumer = consumer_of(handle)
    until(kafka, consumer, 10)
    of_first = [each for each in consumer.log if each[1] == 0]
    assert of_first[1:5] == [("orders.parked", 0, 1), ("commit", 0, 2), ("orders.dead", 0, 2), ("commit", 0, 3)]
    assert runs.count(b"0-2") == 3


def test_on_revocation_work_that_ends_is_committed_and_other_work_is_not() -> None:
    from confluent_kafka import TopicPartition

    hang = threading.Event()

    def handle(message: Any, _: Any) -> None:
        if message.partition() == 1:
            hang.wait(5)

    kafka, consumer = consumer_of(handle)
    while len(kafka._partitions) < 2:
        kafka._begin(consumer.poll(0.0))
    kafka._on_revoke(None, [TopicPartition("orders", 0), TopicPartition("orders", 1)])
    assert [each for each in consumer.log if each[1] == 1] == []
    assert ("commit", 0, 1) in consumer.log
    hang.set()
