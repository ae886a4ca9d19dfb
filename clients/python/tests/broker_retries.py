"""Checks that messages in the retry queues of RabbitMQ, or just returned from there, survive a kill of the broker."""

from __future__ import annotations

import time
from typing import Any

from broker_servers import RabbitMq

from oncegate.consumers._rabbit import queues_of, retry_queue

#: The time of a message in the shortest retry queue, and as long again: half of them are back by then.
SENDING = 2.0


def survive(broker: RabbitMq, queue: str = "retries") -> bool:
    """Sends to the shortest retry queue, kills the broker, and returns true if every message comes back; else says how many do not."""
    import pika

    for name, arguments in {queue: {}, **queues_of(queue)}.items():
        broker.channel.queue_declare(name, durable=True, arguments=arguments)
    channel = broker.channel.connection.channel()
    channel.confirm_delivery()
    persistent = pika.BasicProperties(delivery_mode=2)
    sent: set[str] = set()
    ends = time.monotonic() + SENDING
    while time.monotonic() < ends:
        message = str(len(sent))
        channel.basic_publish("", retry_queue(queue, 1), message.encode(), persistent, mandatory=True)
        sent.add(message)
    broker.kill()
    broker.start()
    back: set[str] = set()
    ends = time.monotonic() + 15
    while back < sent and time.monotonic() < ends:
        got: Any = broker.channel.basic_get(queue, auto_ack=True)
        if got[0] is None:
            time.sleep(0.1)
        else:
            back.add(got[2].decode())
    if back < sent:
        print(f"{len(sent - back)} of {len(sent)} messages in the retry queue are lost by a kill of the broker", flush=True)
    return back == sent
