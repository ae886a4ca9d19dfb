"""Consumers at real brokers, with workers that are killed with -9 in the middle: messages that ran, ran twice, or were lost.

Run by scripts/test-brokers; ONCEGATE_BIN names the gateway. Each order is sent twice, in any order of messages. An effect is a row in
PostgreSQL. Each consumer runs without a gateway, and with `on_lease_end` as `release` and as `unknown`. Parked messages
are looked up and taken over. Runs at the same broker are simultaneous; gateway and broker are killed in the middle of all of them.
The last tenth of the messages is sent after the last fault. A run without all of its faults fails, and one that acknowledged a message
which was neither done, nor a duplicate of what was done, nor parked: the order's other message would hide that.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import broker_examples
import broker_retries
import psycopg
from broker_servers import Broker, Kafka, Nats, RabbitMq, Redis
from broker_table import COLUMNS, record
from broker_workers import PHASES, Job, celery_app, effect, order_in, work
from servers import CREDENTIAL, Postgres, Server, Tail, gateway

from oncegate import Client, Grant

CONSUMERS: dict[str, type[Any]] = {
    "redis": Redis,
    "rabbitmq": RabbitMq,
    "aio-pika": RabbitMq,
    "celery": RabbitMq,
    "nats": Nats,
    "kafka": Kafka,
}
MODES = ("none", "release", "unknown")
# Counts that are 0, or the run has failed: parked orders that could not be settled, and messages without an end.
HIDDEN = ("not_settled", "vanished")
# Celery handles one message at a time and waits between them: 3 workers would take an hour for 20 000.
WORKERS = {"celery": 8}
# Seconds without a delivery, after which a run fails.
STALL = 120
# Workers are forked from a process that has loaded what they need.
PROCESSES = multiprocessing.get_context("forkserver")
LOADED = {
    "redis": ["redis"],
    "rabbitmq": ["pika"],
    "aio-pika": ["aio_pika"],
    "celery": ["celery", "celery.bin.worker"],
    "nats": ["nats"],
    "kafka": ["confluent_kafka"],
}


@dataclass
class Run:
    """One consumer with one mode at a broker."""

    options: argparse.Namespace
    consumer: str
    mode: str
    broker: Broker
    gateway: str
    effects: str
    folder: Path
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.queue = f"orders-{self.mode}-{self.consumer}"
        self.number = self.options.messages // 2
        self.messages = [f"{self.mode}-{at}/{copy}" for at in range(self.number) for copy in range(2)]
        random.shuffle(self.messages)
        self.first = len(self.messages) * 9 // 10
        self.store = psycopg.connect(self.effects, autocommit=True)
        self.client = Client([self.gateway], CREDENTIAL, claim_within=30)
        self.deliveries, self.ended, self.log = (self.folder / f"{self.queue}.{each}" for each in ("deliveries", "ended", "log"))
        self.tail = Tail(self.deliveries)
        #: Messages that were parked.
        self.aside: set[str] = set()
        #: The file that asks a worker to end at a phase.
        self.asked: Path | None = None
        paths = (str(self.deliveries), str(self.ended), str(self.log))
        self.job = Job(self.consumer, self.mode, self.queue, self.broker.url, self.gateway, self.effects, *paths)
        self.workers: list[Any] = []
        self.sent_all = self.done = False
        self.changed_at = self.looked_at = 0.0

    def begin(self) -> None:
        """Sends all messages but the last."""
        self.broker.declare(self.queue)
        self.send(self.messages[: self.first])

    def start_workers(self) -> None:
        self.workers = [self.worker() for _ in range(self.options.workers or WORKERS.get(self.consumer, 3))]
        self.changed_at = time.monotonic()

    def worker(self) -> Any:
        process = PROCESSES.Process(target=work, args=(self.job,), daemon=True)
        process.start()
        return process

    def send(self, messages: list[str]) -> None:
        if self.consumer == "celery":
            app = celery_app(self.broker.url, self.queue)
            for message in messages:
                app.send_task("orders.submit", [message])
            app.close()
        else:
            self.broker.send(self.queue, messages)

    @property
    def progress(self) -> float:
        """Deliveries, as a share of the messages that are sent before the last fault."""
        return self.tail.lines / self.first

    def step(self) -> None:
        seen = self.tail.lines
        if self.tail.count() != seen:
            self.changed_at = time.monotonic()
        self.kill_workers()
        # As a supervisor does: a worker also ends when it loses the broker.
        for at, each in enumerate(self.workers):
            if not each.is_alive():
                each.close()
                self.workers[at] = self.worker()
        if time.monotonic() - self.looked_at > 0.5:
            self.settle_parked()
            self.done = self.sent_all and self.is_drained()
            self.looked_at = time.monotonic()

    def kill_workers(self) -> None:
        kills, phases = self.counts["workers_killed"], self.options.phases
        # A phase of new work has to come after the last request for it.
        due = self.progress >= (0.6 if phases else 0.9) * (kills + 1) / (self.options.kills or 1)
        if self.asked is not None:
            if not self.asked.exists():
                self.asked = None
                self.counts["workers_killed"] += 1
        elif due and kills < self.options.kills:
            if phases:
                self.asked = Path(f"{self.deliveries}.{PHASES[kills % len(PHASES)]}")
                self.asked.touch()
            else:
                random.choice(self.workers).kill()
                self.counts["workers_killed"] += 1

    def send_rest(self) -> None:
        """Sends the last messages, once all faults of the run have happened."""
        if not self.sent_all and self.counts["workers_killed"] == self.options.kills:
            self.send(self.messages[self.first :])
            self.sent_all, self.changed_at = True, time.monotonic()

    def is_drained(self) -> bool:
        if not self.broker.is_drained(self.queue):
            self.changed_at = max(self.changed_at, self.looked_at) if self.broker.settles else self.changed_at
            return False
        return time.monotonic() - self.changed_at >= self.broker.settles

    def settle_parked(self) -> None:
        # With `release` too: work that is cancelled, as by aio-pika when the broker is lost, has an unknown outcome.
        if self.mode == "none":
            return
        for message in self.parked():
            self.counts["parked"] += 1
            self.aside.add(message)
            self.counts["not_settled"] += not self.look_up(order_in(message))

    def parked(self) -> list[str]:
        if self.consumer != "celery":
            return self.broker.parked(self.queue)
        rows = self.store.execute("DELETE FROM parked WHERE queue = %s RETURNING order_id", (self.queue,)).fetchall()
        return [row[0] for row in rows]

    def look_up(self, order: str) -> bool:
        """Handles a parked message: looks up the effect, takes the claim over, settles it."""
        grant = self.client.claim(self.job.operation, {"order": order}, take_over=True, lease="10s")
        if not isinstance(grant, Grant):
            return grant.state == "succeeded"  # type: ignore[union-attr]
        with grant:
            found = self.store.execute("SELECT 1 FROM effects WHERE queue = %s AND order_id = %s", (self.queue, order)).fetchone()
            if found is None:
                effect(self.store, self.queue, order)
            grant.succeed()
        return True

    def stop(self) -> None:
        for each in self.workers:
            each.kill()
            each.join()
        self.store.close()

    def counted(self) -> dict[str, int]:
        effects = self.store.execute("SELECT count(*) FROM effects WHERE queue = %s GROUP BY order_id", (self.queue,)).fetchall()
        times, sent = [row[0] for row in effects], len(self.messages)
        counts = {**self.counts, "sent": sent, "delivered": self.tail.lines, "redelivered": max(self.tail.lines - sent, 0)}
        counts |= {"effects": sum(times), "doubled": sum(each > 1 for each in times), "lost": self.number - len(times)}
        ended = set(self.ended.read_text().split()) | self.aside
        counts |= {"vanished": len(set(self.messages) - ended)}
        return {column: counts.get(column, 0) for column in (*COLUMNS, *HIDDEN)}

    def is_right(self, counts: dict[str, int]) -> bool:
        gated = self.mode != "none"
        faults = counts["workers_killed"] == self.options.kills and counts["brokers_killed"] == 1 and counts["gateways_killed"] == gated
        nothing_lost = not any(counts[each] for each in ("lost", *HIDDEN))
        # Each message runs without a gateway; otherwise the run shows nothing.
        return (
            faults
            and nothing_lost
            and (gated or counts["doubled"] > self.number * 0.9)
            and (self.mode != "unknown" or not counts["doubled"])
        )


def at_broker(kind: type[Any], consumers: list[str], options: argparse.Namespace, effects: str) -> bool:
    """All runs at one broker; prints what happened, counted."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        broker = kind(folder)
        settings = {f"orders.{mode}.{name}": mode for mode in MODES[1:] for name in consumers}
        gate, url = gateway(folder, settings)
        runs: list[Run] = []
        try:
            broker.start()
            gate.start()
            right = not isinstance(broker, RabbitMq) or broker_retries.survive(broker)
            right &= min([broker_examples.run(consumer, broker.url, url) for consumer in consumers])
            runs = [
                Run(options, consumer, mode, broker, url, effects, folder)
                for consumer in consumers
                for mode in options.modes or modes_of(consumer)
            ]
            for run in runs:
                run.begin()
            for run in runs:
                run.start_workers()
            drive(runs, [(1 / 3, "gateways_killed", gate), (2 / 3, "brokers_killed", broker)])
            for run in runs:
                run.settle_parked()
                counts = run.counted()
                is_right = run.is_right(counts)
                line = f"{run.consumer:10}{run.mode:9}" + "".join(f"{counts[column]:16}" for column in COLUMNS)
                print(line + ("" if is_right else f"  WRONG {', '.join(f'{counts[each]} {each}' for each in HIDDEN)}"), flush=True)
                right &= is_right
                if options.record and is_right:
                    record(run.consumer, run.mode, counts)
        finally:
            for run in runs:
                run.stop()
            gate.kill()
            broker.stop()
        return right


def modes_of(consumer: str) -> tuple[str, ...]:
    """Other consumers of RabbitMQ, with the promise only: what a kill doubles is up to the broker."""
    return MODES[2:] if consumer in ("aio-pika", "celery") else MODES


def drive(runs: list[Run], faults: list[tuple[float, str, Server]]) -> None:
    """Kills and restarts until all messages of all runs are handled."""
    while not all(run.done for run in runs):
        time.sleep(0.02)
        for run in runs:
            run.step()
        # In the middle of all: the fastest run has not ended, and the slowest has started.
        if faults and min(run.progress for run in runs) > 0.02 and max(run.progress for run in runs) >= faults[0][0]:
            _, counter, victim = faults.pop(0)
            victim.kill()
            victim.start()
            for run in runs:
                run.counts[counter] += counter == "brokers_killed" or run.mode != "none"
                run.changed_at = time.monotonic()
        if not faults:
            for run in runs:
                run.send_rest()
        for run in runs:
            if not run.done and time.monotonic() - run.changed_at > STALL:
                raise TimeoutError(f"{run.queue}: nothing was delivered for {STALL} s: {run.counts}; {run.log.read_text()[-3000:]}")


def options_of(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/test-brokers", description="Kill consumers at real brokers, and count.")
    parser.add_argument("consumers", nargs="*", metavar="CONSUMER", help=f"of {', '.join(CONSUMERS)}; all without names")
    parser.add_argument("--messages", type=int, default=240, help="messages of each run; each order is sent twice (%(default)s)")
    parser.add_argument("--kills", type=int, default=6, help="workers killed in each run (%(default)s)")
    parser.add_argument(
        "--phases",
        action="store_true",
        help="kill at fixed points: before and after the claim, the effect and the report; not at random times",
    )
    parser.add_argument("--workers", type=int, help="worker processes of each run (3; 8 for celery)")
    parser.add_argument("--modes", type=lambda text: text.split(","), help=f"of {','.join(MODES)}: no gateway, and its `on_lease_end`")
    parser.add_argument("--in-turn", action="store_true", help="one broker after the other")
    parser.add_argument("--record", action="store_true", help="write the counts into docs/clients/guarantees.md")
    options = parser.parse_args(arguments)
    if wrong := set(options.modes or ()) - set(MODES):
        parser.error(f"there is no mode {wrong.pop()}; expected {', '.join(MODES)}")
    if unknown := set(options.consumers) - set(CONSUMERS):
        parser.error(f"there is no consumer {unknown.pop()}; expected {', '.join(CONSUMERS)}")
    return options


def main() -> None:
    options = options_of(sys.argv[1:])
    consumers = options.consumers or list(CONSUMERS)
    PROCESSES.set_forkserver_preload(["__main__", "broker_workers", *(module for name in consumers for module in LOADED[name])])
    kinds = {kind: [name for name in consumers if CONSUMERS[name] is kind] for kind in dict.fromkeys(CONSUMERS[name] for name in consumers)}
    with tempfile.TemporaryDirectory() as made, ThreadPoolExecutor(1 if options.in_turn else len(kinds)) as threads:
        store = Postgres(Path(made))
        try:
            with psycopg.connect(store.url, autocommit=True) as connection:
                connection.execute("CREATE TABLE effects (queue text, order_id text, at timestamptz DEFAULT now())")
                connection.execute("CREATE INDEX ON effects (queue, order_id)")
                connection.execute("CREATE TABLE parked (queue text, order_id text)")
            print(f"{'consumer':10}{'gateway':9}" + "".join(f"{column:>16}" for column in COLUMNS), flush=True)
            started = [threads.submit(at_broker, kind, names, options, store.url) for kind, names in kinds.items()]
            right = min([each.result() for each in started])
        finally:
            store.kill()
    sys.exit(0 if right else "brokers: an effect was lost, or doubled where it must not be, or an example printed something else")


if __name__ == "__main__":
    main()
