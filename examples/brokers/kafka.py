"""Two records about one payout in a Kafka topic, one payment. README.md says how to start it."""

import json
import os
import uuid

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from oncegate import Client
from oncegate.consumers import Recipe
from oncegate.consumers.kafka import KafkaConsumer

broker = {"bootstrap.servers": os.environ.get("BROKER_URL", "127.0.0.1:9092")}
client = Client(
    [os.environ.get("ONCEGATE_URL", "http://127.0.0.1:8080")],
    os.environ.get("ONCEGATE_CREDENTIAL"),
    settle_within=None,  # A report is repeated until a gateway accepts it; the partition waits.
)


def contents(message):
    """Identity of the payout: never the offset of the record."""
    return {"payout_id": json.loads(message.value())["payout_id"]}


def pay(message, grant):
    print("paid", flush=True)


payout = uuid.uuid4().hex
topic = f"payouts-{payout}"
admin = AdminClient(broker)
for made in admin.create_topics([NewTopic(name, 1) for name in (topic, f"{topic}.parked", f"{topic}.dead")]).values():
    made.result()
producer = Producer({**broker, "acks": "all"})
for _ in range(2):
    producer.produce(topic, json.dumps({"payout_id": payout}))
producer.flush()

consumer = Consumer({**broker, "group.id": "payouts", "enable.auto.commit": False, "auto.offset.reset": "earliest"})
worker = KafkaConsumer(Recipe(client, "payout.send", contents, pay, lease="30s"), consumer, producer)
worker.subscribe([topic])
while (committed := consumer.committed([TopicPartition(topic, 0)])[0].offset) < 2:
    worker.step()
print("handled", committed, "messages")
consumer.close()
