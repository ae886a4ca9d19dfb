"""RabbitMQ with pika: delayed retries by queues with a time to live, and confirmed publishing before an acknowledgement."""

from __future__ import annotations

from typing import Any

import pika

from ._decide import Ack
from ._rabbit import failures_of, moved, queues_of
from ._recipe import Recipe, consume_once


class PikaConsumer:
    """Consumes a queue on a `BlockingChannel`; the recipe's messages are `(method, properties, body)`.

    Redeliveries go through `QUEUE.retry.…`, unknown outcomes to `QUEUE.parked`, mistakes to `QUEUE.dead`: `declare` makes these. Where
    the work takes longer than the connection's heartbeat, use `AioPikaConsumer`, or a heartbeat longer than the work.
    """

    def __init__(self, recipe: Recipe[Any], channel: Any, queue: str):
        self._recipe, self._channel, self._queue = recipe, channel, queue
        # A publish then raises unless the broker has confirmed it.
        channel.confirm_delivery()

    def declare(self) -> None:
        """Declares the additional queues. You declare the main one."""
        for name, arguments in queues_of(self._queue).items():
            self._channel.queue_declare(name, durable=True, arguments=arguments)

    def start(self, prefetch: int = 1) -> str:
        """Registers the consumer, and returns its tag; then run `channel.start_consuming()`."""
        self._channel.basic_qos(prefetch_count=prefetch)
        return str(self._channel.basic_consume(self._queue, self.on_message))

    def on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        decision = consume_once(self._recipe, (method, properties, body), failures_of(properties.headers))
        if not isinstance(decision, Ack):
            target, properties.headers = moved(self._queue, decision, properties.headers)
            properties.delivery_mode = pika.DeliveryMode.Persistent.value
            # First confirmed there, then acknowledged here: a crash between the two leaves two messages, one a duplicate.
            channel.basic_publish("", target, body, properties, mandatory=True)
        channel.basic_ack(method.delivery_tag)
