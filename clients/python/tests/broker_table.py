"""The counts of a run in the table of docs/clients/guarantees.md, where scripts/draw-brokers finds them.

As a program: replaces the rows on its standard input, which are those of clients/rust/brokers.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs/clients/guarantees.md"
COLUMNS = (
    "sent",
    "workers_killed",
    "gateways_killed",
    "brokers_killed",
    "delivered",
    "redelivered",
    "effects",
    "doubled",
    "parked",
    "lost",
)
NAMES = {
    "redis": "Redis Streams",
    "rabbitmq": "RabbitMQ, pika",
    "aio-pika": "RabbitMQ, aio-pika",
    "celery": "RabbitMQ, Celery",
    "nats": "NATS JetStream",
    "kafka": "Kafka",
}
#: Names in the order of the table: those of the Rust client follow those of the same broker.
ORDER = (
    "Redis Streams",
    "Redis Streams, redis-rs",
    "RabbitMQ, pika",
    "RabbitMQ, aio-pika",
    "RabbitMQ, Celery",
    "RabbitMQ, lapin",
    "NATS JetStream",
    "NATS JetStream, async-nats",
    "Kafka",
    "Kafka, rdkafka",
)
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
_one_at_a_time = threading.Lock()


def record(consumer: str, mode: str, counts: dict[str, int]) -> None:
    """Replaces the row of a consumer and mode."""
    replace(f"| {NAMES[consumer]} | {mode} | " + " | ".join(str(counts[column]) for column in COLUMNS) + " |")


def replace(row: str) -> None:
    begins = " | ".join(row.split(" | ")[:2]) + " |"
    with _one_at_a_time:
        before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        table, after = rest.split(END)
        head, rows = table.strip().splitlines()[:2], table.strip().splitlines()[2:]
        rows = [each for each in rows if not each.startswith(begins)] + [row]
        # Modes are in the order of the alphabet.
        rows.sort(key=lambda each: (ORDER.index(each.split(" | ")[0][2:]), each.split(" | ")[1]))
        PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join([*head, *rows]) + f"\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    for line in sys.stdin:
        replace(line.strip())
