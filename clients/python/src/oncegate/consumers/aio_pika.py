"""RabbitMQ with aio-pika: as `PikaConsumer`, with heartbeats during the work."""

from __future__ import annotations

from typing import Any

import aio_pika
from aiormq import spec

from ..events import logger
from ._decide import Ack
from ._rabbit import failures_of, moved, queues_of
from ._recipe import Recipe, consume_once_async


class AioPikaConsumer:
    """Consumes a queue; the recipe's messages are `aio_pika` messages. The channel has publisher confirms, aio-pika's default."""

    def __init__(self, recipe: Recipe[Any], channel: Any, queue: str):
        self._recipe, self._channel, self._queue = recipe, channel, queue

    async def declare(self) -> None:
        """Declares the additional queues. You declare the main one."""
        for name, arguments in queues_of(self._queue).items():
            await self._channel.declare_queue(name, durable=True, arguments=arguments)

    async def start(self, prefetch: int = 10) -> str:
        """Begins to consume, and returns the consumer's tag."""
        await self._channel.set_qos(prefetch_count=prefetch)
        queue = await self._channel.get_queue(self._queue, ensure=False)
        return str(await queue.consume(self.on_message))

    async def on_message(self, message: Any) -> None:
        decision = await consume_once_async(self._recipe, message, failures_of(message.headers))
        if not isinstance(decision, Ack):
            target, headers = moved(self._queue, decision, message.headers)
            copy = aio_pika.Message(
                message.body,
                headers=headers,
                content_type=message.content_type,
                content_encoding=message.content_encoding,
                message_id=message.message_id,
                correlation_id=message.correlation_id,
                type=message.type,
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            )
            # First confirmed there, then acknowledged here: a crash between the two leaves two messages, one a duplicate.
            confirmed = await self._channel.default_exchange.publish(copy, target, mandatory=True)
            if not isinstance(confirmed, spec.Basic.Ack):
                # By default aio-pika returns a message without a queue, instead of raising.
                wrong = "has publisher_confirms=False" if confirmed is None else f"has no queue {target}: call declare()"
                logger.error("A message of %s stays unacknowledged: the channel %s", self._queue, wrong)
                raise RuntimeError(f"the copy of a message is not safe: the channel {wrong}")
        await message.ack()
