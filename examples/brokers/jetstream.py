"""Two messages about one payout in a JetStream stream of NATS, one payment. README.md says how to start it."""

import asyncio
import json
import os
import uuid

import nats

from oncegate import AsyncClient
from oncegate.consumers import Recipe
from oncegate.consumers.nats import NatsConsumer


def contents(message):
    """Identity of the payout: never the sequence of the message."""
    return {"payout_id": json.loads(message.data)["payout_id"]}


async def pay(message, grant):
    print("paid", flush=True)


async def main():
    broker = await nats.connect(os.environ.get("BROKER_URL", "nats://127.0.0.1:4222"))
    jetstream = broker.jetstream()
    await jetstream.add_stream(name="PAYOUTS", subjects=["payouts"])
    await jetstream.add_stream(name="PAYOUTS_ASIDE", subjects=["payouts.aside.>"])
    client = AsyncClient(
        [os.environ.get("ONCEGATE_URL", "http://127.0.0.1:8080")],
        os.environ.get("ONCEGATE_CREDENTIAL"),
        settle_within=None,  # A report is repeated until a gateway accepts it; the message waits.
    )
    recipe = Recipe(client, "payout.send", contents, pay, lease="30s")
    consumer = NatsConsumer(recipe, jetstream, parked="payouts.aside.parked", dead="payouts.aside.dead")
    subscription = await jetstream.pull_subscribe("payouts", durable="workers")
    body = json.dumps({"payout_id": uuid.uuid4().hex}).encode()
    for _ in range(2):
        await jetstream.publish("payouts", body)

    handled = 0
    while handled < 2:
        for message in await subscription.fetch(2 - handled, timeout=10):
            await consumer.on_message(message)
            handled += 1
    print("handled", handled, "messages")
    await broker.close()


asyncio.run(main())
