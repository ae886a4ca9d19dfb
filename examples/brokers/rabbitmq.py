"""Two messages about one payout in a RabbitMQ queue, one payment. README.md says how to start it."""

import json
import os
import uuid

import pika

from oncegate import Client
from oncegate.consumers import Recipe
from oncegate.consumers.pika import PikaConsumer

connection = pika.BlockingConnection(pika.URLParameters(os.environ.get("BROKER_URL", "amqp://guest:guest@127.0.0.1:5672/")))
channel = connection.channel()
client = Client(
    [os.environ.get("ONCEGATE_URL", "http://127.0.0.1:8080")],
    os.environ.get("ONCEGATE_CREDENTIAL"),
    settle_within=None,  # A report is repeated until a gateway accepts it; the message waits.
)
handled = 0


def contents(message):
    """Identity of the payout: never the delivery tag or the ID of the message."""
    global handled
    handled += 1
    _, _, body = message
    return {"payout_id": json.loads(body)["payout_id"]}


def pay(message, grant):
    print("paid", flush=True)


consumer = PikaConsumer(Recipe(client, "payout.send", contents, pay, lease="30s"), channel, "payouts")
channel.queue_declare("payouts", durable=True)
consumer.declare()  # The queues for retries, parked messages and dead letters.
body = json.dumps({"payout_id": uuid.uuid4().hex}).encode()
for _ in range(2):
    channel.basic_publish("", "payouts", body, pika.BasicProperties(delivery_mode=2))

consumer.start()
while handled < 2:
    connection.process_data_events(time_limit=1)
print("handled", handled, "messages")
connection.close()
