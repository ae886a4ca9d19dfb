"""Two messages about one payout in a Redis stream, one payment. README.md says how to start it."""

import os
import uuid

import redis

from oncegate import Client
from oncegate.consumers import Recipe
from oncegate.consumers.redis_streams import RedisStreamConsumer

broker = redis.Redis.from_url(os.environ.get("BROKER_URL", "redis://127.0.0.1:6379"))
client = Client(
    [os.environ.get("ONCEGATE_URL", "http://127.0.0.1:8080")],
    os.environ.get("ONCEGATE_CREDENTIAL"),
    settle_within=None,  # A report is repeated until a gateway accepts it; the message waits.
)


def contents(fields):
    """Identity of the payout: never the ID of the message."""
    return {"payout_id": fields[b"payout_id"].decode()}


def pay(fields, grant):
    print("paid", flush=True)


consumer = RedisStreamConsumer(Recipe(client, "payout.send", contents, pay, lease="30s"), broker, "payouts", "workers", "worker-1")
consumer.declare()
payout = uuid.uuid4().hex
for _ in range(2):
    broker.xadd("payouts", {"payout_id": payout})

handled = 0
while handled < 2:
    handled += consumer.step()
print("handled", handled, "messages")
