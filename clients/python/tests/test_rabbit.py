"""Handling of a copy that the broker has not stored, by the consumers of RabbitMQ."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("aio_pika")

from aiormq import spec

from oncegate import AsyncClient
from oncegate.consumers import Recipe
from oncegate.consumers._rabbit import queues_of
from oncegate.consumers.aio_pika import AioPikaConsumer

STORED, WITHOUT_CONFIRMS = spec.Basic.Ack(), None
# : Default result of aio-pika for a message that no queue got: the message.
RETURNED = SimpleNamespace(delivery=spec.Basic.Return())


class Channel:
    def __init__(self, answer: Any):
        self.answer = answer
        self.log: list[str] = []
        self.default_exchange = self

    async def publish(self, _: Any, target: str, *, mandatory: bool) -> Any:
        assert mandatory
        self.log.append(target)
        return self.answer


def handled(answer: Any) -> list[str]:
    """Handles a message that is a dead letter, and returns what happened."""
    channel = Channel(answer)

    async def ack() -> None:
        channel.log.append("ack")

    message: Any = SimpleNamespace(body=b"", headers={}, content_type=None, content_encoding=None, message_id="m-1", ack=ack)
    message.correlation_id = message.type = None

    async def handle(*_: Any) -> None: ...

    async def run() -> None:
        recipe: Recipe[Any] = Recipe(AsyncClient(["http://127.0.0.1:1"]), "order.submit", lambda message: message.body["order"], handle)
        try:
            await AioPikaConsumer(recipe, channel, "orders").on_message(message)
        except RuntimeError as error:
            channel.log.append(str(error))

    asyncio.run(run())
    return channel.log


def test_a_message_is_acknowledged_once_its_copy_is_stored() -> None:
    assert handled(STORED) == ["orders.dead", "ack"]


@pytest.mark.parametrize(("answer", "wrong"), [(RETURNED, "has no queue orders.dead"), (WITHOUT_CONFIRMS, "publisher_confirms=False")])
def test_a_message_whose_copy_is_not_stored_stays(answer: Any, wrong: str) -> None:
    target, error = handled(answer)
    assert target == "orders.dead"
    assert wrong in error


def test_a_retry_queue_keeps_its_messages_until_the_main_queue_has_them() -> None:
    for name, arguments in queues_of("orders").items():
        kept = ("quorum", "at-least-once", "reject-publish") if "retry" in name else (None, None, None)
        assert tuple(arguments.get(each) for each in ("x-queue-type", "x-dead-letter-strategy", "x-overflow")) == kept
