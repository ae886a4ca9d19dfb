"""The worker processes of the run: the consumer of each broker around one handler, whose effect is a row in PostgreSQL.

Each order is sent in two messages, `ORDER/0` and `ORDER/1`. One of them alone would hide that the other was lost, so a worker notes which
messages have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import psycopg
from servers import CREDENTIAL, write_line

from oncegate import AsyncClient, Client, Done, Duplicate, NothingHappened, OutcomeRefused
from oncegate.consumers import Recipe

LEASE = "1s"
REDELIVER_AFTER = 0.2
#: Where a worker can be asked to end as by kill -9: `die_at`.
PHASES = ("before_claim", "before_effect", "after_effect", "after_report")


@dataclass(frozen=True)
class Job:
    """What a worker process needs to know."""

    consumer: str
    mode: str
    queue: str
    broker: str
    gateway: str
    effects: str
    #: One line for each delivery.
    deliveries: str
    #: One line for each message that may be acknowledged now: done, or a duplicate of what was done.
    ended: str
    log: str

    @property
    def operation(self) -> str:
        return f"orders.{self.mode}.{self.consumer}"


#: The message that this thread or task handles, and its job.
HANDLED: ContextVar[tuple[Job, str]] = ContextVar("HANDLED")


def die_at(job: Job, phase: str) -> None:
    """Ends this process as by kill -9, if the run asks for it: one process removes the file, and ends."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{job.deliveries}.{phase}")
        os.kill(os.getpid(), signal.SIGKILL)


def note_end(answer: Any) -> None:
    job, message = HANDLED.get()
    if isinstance(answer, Done):
        die_at(job, "after_report")
    if isinstance(answer, (Done, OutcomeRefused)) or (isinstance(answer, Duplicate) and answer.state == "succeeded"):
        write_line(job.ended, message)


class Gated(Client):
    def once(self, *args: Any, **terms: Any) -> Any:
        try:
            answer = super().once(*args, **terms)
        except OutcomeRefused as refused:
            note_end(refused)
            raise
        note_end(answer)
        return answer


class GatedAsync(AsyncClient):
    async def once(self, *args: Any, **terms: Any) -> Any:
        try:
            answer = await super().once(*args, **terms)
        except OutcomeRefused as refused:
            note_end(refused)
            raise
        note_end(answer)
        return answer


class Ungated(Client):
    """No gateway: each delivery runs."""

    def once(self, operation: str, contents: Any, work: Any, **_: Any) -> Any:
        answer = Done(work(None), "succeeded", None, False, None, None, "")
        note_end(answer)
        return answer


class UngatedAsync(AsyncClient):
    async def once(self, operation: str, contents: Any, work: Any, **_: Any) -> Any:
        answer = Done(await work(None), "succeeded", None, False, None, None, "")
        note_end(answer)
        return answer


def work(job: Job) -> None:
    """Consumes until it is killed, or loses the broker."""
    log = os.open(job.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    random.seed()
    logging.basicConfig(level=logging.WARNING)
    CONSUMERS[job.consumer](job, psycopg.connect(job.effects, autocommit=True))


def order_in(message: str) -> str:
    return message.rpartition("/")[0]


def effect(store: psycopg.Connection[Any], queue: str, order: str) -> None:
    store.execute("INSERT INTO effects (queue, order_id) VALUES (%s, %s)", (queue, order))


def observed_effect(job: Job, store: psycopg.Connection[Any], message: str) -> None:
    die_at(job, "before_effect")
    effect(store, job.queue, order_in(message))
    die_at(job, "after_effect")


def client_of(job: Job, blocking: type[Any], ungated: type[Any]) -> Any:
    return (ungated if job.mode == "none" else blocking)(
        [job.gateway], CREDENTIAL, settle_within=None, claim_within=2.0, on_event=lambda _: None
    )


def pause() -> float:
    return random.uniform(0, 0.01)


def recipe_of(job: Job, store: psycopg.Connection[Any], name_of: Callable[[Any], str]) -> Recipe[Any]:
    def handle(message: Any, grant: Any) -> None:
        time.sleep(pause())
        if grant is not None and not grant.is_live:
            raise NothingHappened("the lease has ended")
        observed_effect(job, store, name_of(message))
        time.sleep(pause())

    return Recipe(
        client_of(job, Gated, Ungated),
        job.operation,
        lambda message: contents_of(job, name_of(message)),
        handle,
        lease=LEASE,
        redeliver_after=REDELIVER_AFTER,
    )


def asynchronous_recipe_of(job: Job, store: psycopg.Connection[Any], name_of: Callable[[Any], str]) -> Recipe[Any]:
    async def handle(message: Any, grant: Any) -> None:
        await asyncio.sleep(pause())
        if grant is not None and not grant.is_live:
            raise NothingHappened("the lease has ended")
        observed_effect(job, store, name_of(message))
        await asyncio.sleep(pause())

    return Recipe(
        client_of(job, GatedAsync, UngatedAsync),
        job.operation,
        lambda message: contents_of(job, name_of(message)),
        handle,
        lease=LEASE,
        redeliver_after=REDELIVER_AFTER,
    )


def contents_of(job: Job, message: str) -> dict[str, str]:
    write_line(job.deliveries, message)
    HANDLED.set((job, message))
    die_at(job, "before_claim")
    return {"order": order_in(message)}


def redis_streams(job: Job, store: psycopg.Connection[Any]) -> None:
    import redis

    from oncegate.consumers.redis_streams import RedisStreamConsumer

    recipe = recipe_of(job, store, lambda fields: str(fields[b"order"].decode()))
    connection = redis.Redis.from_url(job.broker)
    consumer = RedisStreamConsumer(recipe, connection, job.queue, "workers", f"worker-{os.getpid()}", claim_idle=1.2, block=0.2)
    consumer.run(threading.Event())


def pika(job: Job, store: psycopg.Connection[Any]) -> None:
    import pika

    from oncegate.consumers.pika import PikaConsumer

    channel = pika.BlockingConnection(pika.URLParameters(job.broker)).channel()
    PikaConsumer(recipe_of(job, store, lambda message: str(json.loads(message[2])["order"])), channel, job.queue).start()
    channel.start_consuming()


def aio_pika(job: Job, store: psycopg.Connection[Any]) -> None:
    asyncio.run(_aio_pika(job, asynchronous_recipe_of(job, store, lambda message: str(json.loads(message.body)["order"]))))


async def _aio_pika(job: Job, recipe: Recipe[Any]) -> None:
    import aio_pika

    from oncegate.consumers.aio_pika import AioPikaConsumer

    connection = await aio_pika.connect(job.broker)
    ended = asyncio.Event()
    connection.close_callbacks.add(lambda *_: ended.set())
    await AioPikaConsumer(recipe, await connection.channel(), job.queue).start(prefetch=4)
    await ended.wait()


def celery(job: Job, store: psycopg.Connection[Any]) -> None:
    from celery.signals import task_failure

    from oncegate.contrib.celery import ParkedTask

    app = celery_app(job.broker, job.queue)
    add_task(app, job, store)

    @task_failure.connect(weak=False)  # type: ignore[untyped-decorator]
    def park(exception: BaseException, args: Any, **_: Any) -> None:
        if isinstance(exception, ParkedTask):
            store.execute("INSERT INTO parked (queue, order_id) VALUES (%s, %s)", (job.queue, args[0]))

    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=WARNING"]
    app.worker_main(["worker", "--pool=solo", f"--hostname=worker-{os.getpid()}@localhost", *quiet])


def celery_app(broker: str, queue: str) -> Any:
    from celery import Celery

    app = Celery("orders", broker=broker)
    app.conf.update(
        task_default_queue=queue,
        task_ignore_result=True,
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        # A retry is another message: the broker must have it before the first one is acknowledged.
        broker_transport_options={"confirm_publish": True},
        broker_connection_retry_on_startup=True,
    )
    return app


def add_task(app: Any, job: Job, store: psycopg.Connection[Any]) -> None:
    from oncegate.contrib.celery import OnceTask

    @app.task(  # type: ignore[untyped-decorator]
        name="orders.submit",
        base=OnceTask,
        client=client_of(job, Gated, Ungated),
        operation=job.operation,
        contents=lambda message: contents_of(job, message),
        lease=LEASE,
        redeliver_after=REDELIVER_AFTER,
    )
    def submit(message: str) -> None:
        time.sleep(pause())
        observed_effect(job, store, message)
        time.sleep(pause())


def nats(job: Job, store: psycopg.Connection[Any]) -> None:
    asyncio.run(_nats(job, asynchronous_recipe_of(job, store, lambda message: str(json.loads(message.data)["order"]))))


async def _nats(job: Job, recipe: Recipe[Any]) -> None:
    import nats

    from oncegate.consumers.nats import NatsConsumer

    jetstream = (await nats.connect(job.broker)).jetstream()
    subscription = await jetstream.pull_subscribe(job.queue, durable="workers")
    aside = f"aside.{job.queue}"
    consumer = NatsConsumer(recipe, jetstream, parked=f"{aside}.parked", dead=f"{aside}.dead", progress_every=0.3)
    await consumer.run(subscription, asyncio.Event(), batch=4)


def kafka(job: Job, store: psycopg.Connection[Any]) -> None:
    from confluent_kafka import Consumer, Producer

    from oncegate.consumers.kafka import KafkaConsumer

    consumer = Consumer(
        {
            "bootstrap.servers": job.broker,
            "group.id": f"{job.queue}.workers",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 1500,
            "heartbeat.interval.ms": 300,
        }
    )
    producer = Producer({"bootstrap.servers": job.broker, "acks": "all", "enable.idempotence": True})
    recipe = recipe_of(job, store, lambda message: str(json.loads(message.value())["order"]))
    worker = KafkaConsumer(recipe, consumer, producer, revoke_within=2.0)
    worker.subscribe([job.queue])
    worker.run(threading.Event())


CONSUMERS: dict[str, Callable[[Job, psycopg.Connection[Any]], None]] = {
    "redis": redis_streams,
    "rabbitmq": pika,
    "aio-pika": aio_pika,
    "celery": celery,
    "nats": nats,
    "kafka": kafka,
}
