"""The Kafka adapter over a consumer and a producer in memory: pauses, commits without gaps, parking before the commit, revocation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError, KafkaException, TopicPartition

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
    """Two partitions of five messages."""

    def __init__(self) -> None:
        self.refusals: list[int] = []
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

    def commit(self, offsets: list[Any], asynchronous: bool) -> None:
        assert not asynchronous
        if self.refusals:
            raise KafkaException(KafkaError(self.refusals.pop()))
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


def consumer_of(handle: Any, buffered: int = 100) -> tuple[KafkaConsumer, Consumer]:
    recipe: Recipe[Any] = Recipe(Direct(["http://127.0.0.1:1"]), "orders", lambda message: message.value(), handle, redeliver_after=0.01)
    consumer = Consumer()
    return KafkaConsumer(recipe, consumer, Producer(consumer), revoke_within=0.2, buffered=buffered), consumer


def until(kafka: KafkaConsumer, consumer: Consumer, commits: int) -> None:
    step_until(kafka, lambda: sum(each[0] == "commit" for each in consumer.log) >= commits)


def step_until(kafka: KafkaConsumer, is_so: Callable[[], bool]) -> None:
    ends = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < ends, "not in time"
        kafka.step()


def test_offsets_are_committed_one_after_the_other_while_polling_goes_on() -> None:
    stuck: list[bytes] = []

    def handle(message: Any, _: Any) -> None:
        before, ends = consumer.polls, time.monotonic() + 10
        while consumer.polls < before + 2:
            time.sleep(0.001)
            if time.monotonic() > ends:
                stuck.append(message.value())
                break

    kafka, consumer = consumer_of(handle)
    until(kafka, consumer, 10)
    for partition in (0, 1):
        assert [each[2] for each in consumer.log if each[1] == partition] == [1, 2, 3, 4, 5]
    assert stuck == []


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
    hang = threading.Event()

    def handle(message: Any, _: Any) -> None:
        if message.partition() == 1:
            hang.wait(5)

    kafka, consumer = consumer_of(handle, buffered=1)
    step_until(kafka, lambda: sum(at.work is not None for at in kafka._partitions.values()) == 2)
    kafka._on_revoke(None, [TopicPartition("orders", 0), TopicPartition("orders", 1)])
    assert [each for each in consumer.log if each[1] == 1] == []
    assert ("commit", 0, 1) in consumer.log
    hang.set()


def test_a_partition_with_enough_messages_is_paused_and_resumed() -> None:
    hang = threading.Event()

    def handle(message: Any, _: Any) -> None:
        hang.wait(5)

    kafka, consumer = consumer_of(handle, buffered=2)
    step_until(kafka, lambda: consumer.polls >= 20)
    assert consumer.paused == {0, 1}
    assert consumer.next == {0: 2, 1: 2}
    hang.set()
    until(kafka, consumer, 10)
    assert consumer.paused == set()


def test_a_commit_that_fails_while_the_broker_restarts_is_repeated() -> None:
    kafka, consumer = consumer_of(lambda message, _: None)
    consumer.refusals = [KafkaError.REBALANCE_IN_PROGRESS, KafkaError._WAIT_COORD]
    step_until(kafka, lambda: {("commit", 0, 5), ("commit", 1, 5)} <= set(consumer.log))
    assert consumer.refusals == []


def test_a_commit_that_is_not_permitted_is_raised() -> None:
    kafka, consumer = consumer_of(lambda message, _: None)
    consumer.refusals = [KafkaError.GROUP_AUTHORIZATION_FAILED]
    with pytest.raises(KafkaException, match="GROUP_AUTHORIZATION_FAILED"):
        until(kafka, consumer, 10)


def test_messages_that_wait_in_a_revoked_partition_are_forgotten() -> None:
    hang = threading.Event()

    def handle(message: Any, _: Any) -> None:
        hang.wait(5)

    kafka, consumer = consumer_of(handle, buffered=2)
    step_until(kafka, lambda: len(consumer.paused) == 2)
    kafka._on_lost(None, [TopicPartition("orders", 0)])
    assert set(kafka._partitions) == {("orders", 1)}
    assert consumer.paused == {1}
    hang.set()
