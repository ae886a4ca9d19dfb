"""The brokers of the run: each starts its server, makes the queue of each run, sends orders, and says what was parked and what is left."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from servers import Server, chunks, free_port, until

from oncegate.consumers._rabbit import queues_of


class Broker(Server):
    """A broker, started in an empty folder."""

    #: Its address, for consumers.
    url = ""
    #: Seconds for which a queue must stay empty and without deliveries, if the broker does not count unacknowledged messages.
    settles = 0.0

    def start(self) -> None:
        super().start()
        until(f"{self.name} answers", self.connect, 60)

    def connect(self) -> bool:
        """Connects the test itself; raises while the broker is not ready."""
        raise NotImplementedError

    def declare(self, queue: str) -> None:
        """Makes the queue of a run."""
        raise NotImplementedError

    def send(self, queue: str, orders: list[str]) -> None:
        """Sends one message for each order, confirmed by the broker."""
        raise NotImplementedError

    def is_drained(self, queue: str) -> bool:
        raise NotImplementedError

    def parked(self, queue: str) -> list[str]:
        """Takes the orders that were parked since."""
        raise NotImplementedError

    def stop(self) -> None:
        self.kill()


class Redis(Broker):
    def __init__(self, folder: Path):
        import redis

        port = free_port()
        durable = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        super().__init__("redis", folder, ["redis-server", "--port", str(port), "--dir", str(folder), *durable], port)
        self.url = f"redis://127.0.0.1:{port}"
        self.connection = redis.Redis.from_url(self.url)

    def connect(self) -> bool:
        return bool(self.connection.ping())

    def declare(self, queue: str) -> None:
        self.connection.xgroup_create(queue, "workers", id="0", mkstream=True)

    def send(self, queue: str, orders: list[str]) -> None:
        for chunk in chunks(orders, 200):
            pipeline = self.connection.pipeline()
            for order in chunk:
                pipeline.xadd(queue, {"order": order})
            pipeline.execute()

    def is_drained(self, queue: str) -> bool:
        group: Any = self.connection.xinfo_groups(queue)
        return bool(group[0]["pending"] == 0 and group[0]["lag"] == 0)

    def parked(self, queue: str) -> list[str]:
        entries: Any = self.connection.xrange(f"{queue}:parked")
        for entry, _ in entries:
            self.connection.xdel(f"{queue}:parked", entry)
        return [fields[b"order"].decode() for _, fields in entries]


class RabbitMq(Broker):
    # Longer than the lease: Celery holds the messages that wait.
    settles = 2.5

    def __init__(self, folder: Path):
        port, self.epmd = free_port(), str(free_port())
        base = {name: str(folder) for name in ("HOME", "RABBITMQ_MNESIA_BASE", "RABBITMQ_LOG_BASE")}
        ports = {"RABBITMQ_NODE_PORT": str(port), "RABBITMQ_DIST_PORT": str(free_port()), "ERL_EPMD_PORT": self.epmd}
        more = {"RABBITMQ_NODENAME": "oncegate-test@localhost", "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins")}
        command = next(iter(Path("/usr/lib/rabbitmq").glob("**/sbin/rabbitmq-server")), Path("rabbitmq-server"))
        env = {**os.environ, **base, **ports, **more, "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1"}
        super().__init__("rabbitmq", folder, [str(command)], port, env)
        self.url = f"amqp://guest:guest@127.0.0.1:{port}/?heartbeat=30"

    def connect(self) -> bool:
        import pika

        self.channel = pika.BlockingConnection(pika.URLParameters(self.url.replace("heartbeat=30", "heartbeat=0"))).channel()
        return True

    def declare(self, queue: str) -> None:
        for name, arguments in {queue: {}, **queues_of(queue)}.items():
            self.channel.queue_declare(name, durable=True, arguments=arguments)

    def send(self, queue: str, orders: list[str]) -> None:
        import pika

        persistent = pika.BasicProperties(delivery_mode=2)
        channel = self.channel.connection.channel()
        channel.tx_select()
        for chunk in chunks(orders, 500):
            for order in chunk:
                channel.basic_publish("", queue, json.dumps({"order": order}).encode(), persistent)
            channel.tx_commit()
        channel.close()

    def is_drained(self, queue: str) -> bool:
        """Nothing is ready; unacknowledged messages are not counted by the broker."""
        waiting = [name for name in queues_of(queue) if "retry" in name] + [queue]
        return not any(self.channel.queue_declare(name, passive=True).method.message_count for name in waiting)

    def parked(self, queue: str) -> list[str]:
        orders = []
        while (got := self.channel.basic_get(f"{queue}.parked", auto_ack=True))[0] is not None:
            orders.append(json.loads(got[2])["order"])
        return orders

    def stop(self) -> None:
        self.kill()
        # It refuses until it has noticed that its node has ended.
        kill = ["epmd", "-port", self.epmd, "-kill"]
        until("epmd ends", lambda: subprocess.run(kill, capture_output=True, check=False, env=self.env).returncode == 0)


class Nats(Broker):
    def __init__(self, folder: Path):
        port = free_port()
        command = shutil.which("nats-server") or str(Path(sys.executable).with_name("nats-server"))
        # Synced to disk at each message, as at the other brokers.
        (folder / "nats.conf").write_text(f'jetstream {{ store_dir: "{folder}", sync_interval: always }}\n')
        super().__init__("nats", folder, [command, "-c", str(folder / "nats.conf"), "-a", "127.0.0.1", "-p", str(port)], port)
        self.url = f"nats://127.0.0.1:{port}"
        self.loop = asyncio.new_event_loop()
        self.connection: Any = None
        self.aside: dict[str, Any] = {}

    def connect(self) -> bool:
        self.loop.run_until_complete(self._connect())
        return True

    async def _connect(self) -> None:
        import nats

        if self.connection is not None:
            await self.connection.close()
        self.connection = await nats.connect(self.url)
        self.jetstream = self.connection.jetstream()
        await self.jetstream.account_info()
        for queue in self.aside:
            await self._subscribe(queue)

    def declare(self, queue: str) -> None:
        self.loop.run_until_complete(self._declare(queue))

    async def _declare(self, queue: str) -> None:
        from nats.js.api import ConsumerConfig

        await self.jetstream.add_stream(name=queue, subjects=[queue])
        await self.jetstream.add_stream(name=f"{queue}-aside", subjects=[f"aside.{queue}.>"])
        await self.jetstream.pull_subscribe(queue, durable="workers", config=ConsumerConfig(ack_wait=1.0, max_ack_pending=64))
        await self._subscribe(queue)

    async def _subscribe(self, queue: str) -> None:
        self.aside[queue] = await self.jetstream.pull_subscribe(f"aside.{queue}.parked", durable="lookup")

    def send(self, queue: str, orders: list[str]) -> None:
        async def send_all() -> None:
            for chunk in chunks(orders, 100):
                await asyncio.gather(*(self.jetstream.publish(queue, json.dumps({"order": order}).encode()) for order in chunk))

        self.loop.run_until_complete(send_all())

    def is_drained(self, queue: str) -> bool:
        info = self.loop.run_until_complete(self.jetstream.consumer_info(queue, "workers"))
        return bool(info.num_pending == 0 and info.num_ack_pending == 0)

    def parked(self, queue: str) -> list[str]:
        return self.loop.run_until_complete(self._parked(queue))

    async def _parked(self, queue: str) -> list[str]:
        try:
            messages = await self.aside[queue].fetch(64, timeout=0.1)
        except (TimeoutError, asyncio.TimeoutError):
            return []
        for message in messages:
            await message.ack_sync()
        return [json.loads(message.data)["order"] for message in messages]

    def stop(self) -> None:
        if self.connection is not None:
            self.loop.run_until_complete(self.connection.close())
        self.loop.close()
        self.kill()


class Kafka(Broker):
    """One node, controller and broker in one process (KRaft). `KAFKA_JARS` names the folder of its jars."""

    PARTITIONS = 6

    def __init__(self, folder: Path):
        port, controller = free_port(), free_port()
        java = ["java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        java += ["-cp", f"{os.environ['KAFKA_JARS']}/*"]
        properties = folder / "server.properties"
        settings: dict[str, Any] = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": f"{folder}/kafka",
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": 1,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.num.partitions": 1,
            "transaction.state.log.min.isr": 1,
            # A broker that was killed may register again, soon.
            "broker.session.timeout.ms": 1000,
            "broker.heartbeat.interval.ms": 200,
            # A killed worker's partitions go to others soon.
            "group.min.session.timeout.ms": 500,
            "group.initial.rebalance.delay.ms": 0,
        }
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        form = [*java, "kafka.tools.StorageTool", "format", "-t", "b25jZWdhdGUtdGVzdHM0Mg", "-c", str(properties)]
        subprocess.run(form, check=True, capture_output=True, cwd=folder)
        super().__init__("kafka", folder, [*java, "kafka.Kafka", str(properties)], port)
        self.url = f"127.0.0.1:{port}"
        self.lookups: dict[str, Any] = {}

    def connect(self) -> bool:
        from confluent_kafka.admin import AdminClient

        self.admin = AdminClient({"bootstrap.servers": self.url, "log_level": 0})
        return bool(self.admin.list_topics(timeout=2).brokers)

    def declare(self, queue: str) -> None:
        from confluent_kafka import Consumer, Producer, TopicPartition
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        topics = [NewTopic(queue, self.PARTITIONS), NewTopic(f"{queue}.parked", 1), NewTopic(f"{queue}.dead", 1)]
        for made in self.admin.create_topics(topics).values():
            made.result(30)
        self.producer = Producer({"bootstrap.servers": self.url, "acks": "all", "enable.idempotence": True, "log_level": 0})
        settings = {"bootstrap.servers": self.url, "group.id": f"{queue}.lookup", "enable.auto.commit": False, "log_level": 0}
        self.lookups[queue] = Consumer({**settings, "auto.offset.reset": "earliest"})
        self.lookups[queue].assign([TopicPartition(f"{queue}.parked", 0, 0)])

    def send(self, queue: str, orders: list[str]) -> None:
        failed: list[Any] = []
        for at, order in enumerate(orders):
            value = json.dumps({"order": order}).encode()
            # Without a key: the two messages of an order are in any two partitions.
            self.producer.produce(
                queue, value, partition=at % self.PARTITIONS, on_delivery=lambda error, _: failed.append(error) if error else None
            )
            self.producer.poll(0)
        if self.producer.flush(60) or failed:
            raise TimeoutError(f"not sent: {failed[:1]}")

    def is_drained(self, queue: str) -> bool:
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        partitions = [TopicPartition(queue, at) for at in range(self.PARTITIONS)]
        asked = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(f"{queue}.workers", partitions)])
        committed = {at.partition: at.offset for at in asked[f"{queue}.workers"].result(10).topic_partitions}
        ends = self.admin.list_offsets({at: OffsetSpec.latest() for at in partitions})  # type: ignore[no-untyped-call]
        return all(committed[at.partition] == ends[at].result(10).offset for at in partitions)

    def parked(self, queue: str) -> list[str]:
        messages = self.lookups[queue].consume(64, timeout=0.05)
        return [json.loads(message.value())["order"] for message in messages if message.error() is None]

    def stop(self) -> None:
        for lookup in self.lookups.values():
            lookup.close()
        self.kill()
