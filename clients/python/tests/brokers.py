"""Consumers at real brokers, whose workers are killed with -9 in the middle: what ran, what ran twice, what was lost.

    brokers.py [redis|rabbitmq|nats]...      (run by scripts/test-brokers; ONCEGATE_BIN names the gateway)

Each order is sent twice, in any order of messages. An effect is one line in a file, so it survives its worker. The run is made three
times: without a gateway, and with `on_lease_end` as `release` and as `unknown`. With `unknown`, parked messages are looked up and
taken over. The gateway and the broker are killed and started again, too: the faults come as deliveries go on, the last messages are
sent after the last fault, and a run without all of its faults fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from oncegate import AsyncClient, Client, Done, Grant
from oncegate.consumers import Recipe

ORDERS = int(os.environ.get("ORDERS", "300"))
WORKERS = 4
KILLS = int(os.environ.get("KILLS", "40"))
# Seconds without a delivery or a fault, after which a run fails.
STALL = 120
LEASE = "1s"
CREDENTIAL = "shop.c2VjcmV0X29mX3RoZV92ZWN0b3Jz"
MODES = ("none", "release", "unknown")


# The work of a worker process. ---------------------------------------------------------------------------------------


class Ungated(Client):
    """No gateway: each delivery runs."""

    def once(self, operation: str, contents: Any, work: Any, **_: Any) -> Any:
        return Done(work(None), "succeeded", None, False, None, None, "")


class UngatedAsync(AsyncClient):
    async def once(self, operation: str, contents: Any, work: Any, **_: Any) -> Any:
        return Done(await work(None), "succeeded", None, False, None, None, "")


def effect(folder: str, order: str) -> None:
    write_line(f"{folder}/effects", order)


def write_line(path: str, text: str) -> None:
    """One line, whole, and there at once."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{text}\n".encode())
    os.close(file)


def worker(broker: str, mode: str, url: str, gateway: str, folder: str) -> None:
    options: dict[str, Any] = {"urls": [gateway], "credential": CREDENTIAL, "settle_within": None, "claim_within": 2.0}
    operation = f"orders.{mode}.{broker}"

    def contents(message: Any) -> dict[str, str]:
        order = order_of(message)
        write_line(f"{folder}/deliveries", order["order"])
        return order

    def handle(message: Any, _: Any) -> None:
        time.sleep(random.uniform(0, 0.01))
        effect(folder, order_of(message)["order"])
        time.sleep(random.uniform(0, 0.01))

    async def handle_async(message: Any, _: Any) -> None:
        await asyncio.sleep(random.uniform(0, 0.01))
        effect(folder, order_of(message)["order"])
        await asyncio.sleep(random.uniform(0, 0.01))

    if broker == "nats":
        asynchronous = (UngatedAsync if mode == "none" else AsyncClient)(**options)
        asyncio.run(_nats_worker(Recipe(asynchronous, operation, contents, handle_async, lease=LEASE, redeliver_after=0.2), url))
        return
    client = (Ungated if mode == "none" else Client)(**options)
    recipe: Recipe[Any] = Recipe(client, operation, contents, handle, lease=LEASE, redeliver_after=0.2)
    if broker == "redis":
        import redis

        from oncegate.consumers.redis_streams import RedisStreamConsumer

        connection = redis.Redis.from_url(url)
        consumer = RedisStreamConsumer(recipe, connection, "orders", "workers", f"worker-{os.getpid()}", claim_idle=1.2, block=0.2)
        consumer.run(threading.Event())
    else:
        import pika

        from oncegate.consumers.pika import PikaConsumer

        channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
        PikaConsumer(recipe, channel, "orders").start()
        channel.start_consuming()


async def _nats_worker(recipe: Recipe[Any], url: str) -> None:
    import nats

    from oncegate.consumers.nats import NatsConsumer

    jetstream = (await nats.connect(url)).jetstream()
    subscription = await jetstream.pull_subscribe("orders", durable="workers")
    consumer = NatsConsumer(recipe, jetstream, parked="aside.parked", dead="aside.dead", progress_every=0.3)
    await consumer.run(subscription, asyncio.Event(), batch=4)


def order_of(message: Any) -> dict[str, str]:
    if isinstance(message, dict):
        return {"order": message[b"order"].decode()}
    body = message[2] if isinstance(message, tuple) else message.data
    return {"order": json.loads(body)["order"]}


# The brokers. --------------------------------------------------------------------------------------------------------


class Broker:
    """A broker of the test's own: started in an empty folder, with the queues made."""

    name = ""

    def __init__(self, folder: Path):
        self.folder, self.port = folder, free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.command: list[str] = []
        self.env: dict[str, str] | None = None

    def start(self) -> None:
        with (self.folder / "broker.log").open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, cwd=self.folder, env=self.env, start_new_session=True)
        until(f"{self.name} listens", lambda: listens(self.port), 60)
        until(f"{self.name} answers", self.connect, 60)

    def connect(self) -> bool:
        """Connects the test itself; raises while the broker is not ready."""
        raise NotImplementedError

    def kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def stop(self) -> None:
        self.kill()


class Redis(Broker):
    name = "redis"

    def __init__(self, folder: Path):
        import redis

        super().__init__(folder)
        self.url = f"redis://127.0.0.1:{self.port}"
        durable = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        self.command = ["redis-server", "--port", str(self.port), "--dir", str(folder), *durable]
        self.connection = redis.Redis.from_url(self.url)
        self.start()
        self.connection.xgroup_create("orders", "workers", id="0", mkstream=True)

    def connect(self) -> bool:
        return bool(self.connection.ping())

    def send(self, order: str) -> None:
        self.connection.xadd("orders", {"order": order})

    def is_drained(self) -> bool:
        group: Any = self.connection.xinfo_groups("orders")
        return bool(group[0]["pending"] == 0 and group[0]["lag"] == 0)

    def parked(self) -> list[str]:
        entries: Any = self.connection.xrange("orders:parked")
        for entry, _ in entries:
            self.connection.xdel("orders:parked", entry)
        return [fields[b"order"].decode() for _, fields in entries]


class RabbitMq(Broker):
    name = "rabbitmq"

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.epmd = str(free_port())
        base = {name: str(folder) for name in ("HOME", "RABBITMQ_MNESIA_BASE", "RABBITMQ_LOG_BASE")}
        ports = {"RABBITMQ_NODE_PORT": str(self.port), "RABBITMQ_DIST_PORT": str(free_port()), "ERL_EPMD_PORT": self.epmd}
        more = {"RABBITMQ_NODENAME": "oncegate-test@localhost", "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins")}
        command = next(iter(Path("/usr/lib/rabbitmq").glob("**/sbin/rabbitmq-server")), Path("rabbitmq-server"))
        self.env = {**os.environ, **base, **ports, **more, "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1"}
        self.command = [str(command)]
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}/?heartbeat=30"
        from oncegate.consumers._rabbit import queues_of

        self.queues = queues_of("orders")
        self.idle_since: float | None = None
        self.start()

    def connect(self) -> bool:
        import pika

        self.channel = pika.BlockingConnection(pika.URLParameters(self.url.replace("heartbeat=30", "heartbeat=0"))).channel()
        self.channel.confirm_delivery()
        for name, arguments in {"orders": {}, **self.queues}.items():
            self.channel.queue_declare(name, durable=True, arguments=arguments)
        return True

    def send(self, order: str) -> None:
        import pika

        persistent = pika.BasicProperties(delivery_mode=2)
        self.channel.basic_publish("", "orders", json.dumps({"order": order}).encode(), persistent)

    def is_drained(self) -> bool:
        """Unacknowledged messages are not counted by the broker: so nothing may be ready for some time."""
        waiting = [name for name in self.queues if "retry" in name] + ["orders"]
        ready = sum(self.channel.queue_declare(name, passive=True).method.message_count for name in waiting)
        if ready:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = time.monotonic()
        return self.idle_since is not None and time.monotonic() - self.idle_since > 4

    def parked(self) -> list[str]:
        orders = []
        while (got := self.channel.basic_get("orders.parked", auto_ack=True))[0] is not None:
            orders.append(json.loads(got[2])["order"])
        return orders

    def stop(self) -> None:
        super().stop()
        subprocess.run(["epmd", "-port", self.epmd, "-kill"], capture_output=True, check=False, env=self.env)


class Nats(Broker):
    name = "nats"

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.url = f"nats://127.0.0.1:{self.port}"
        command = shutil.which("nats-server") or str(Path(sys.executable).with_name("nats-server"))
        # Synced to disk at each message, as at the other brokers.
        (folder / "nats.conf").write_text(f'jetstream {{ store_dir: "{folder}", sync_interval: always }}\n')
        self.command = [command, "-c", str(folder / "nats.conf"), "-a", "127.0.0.1", "-p", str(self.port)]
        self.loop = asyncio.new_event_loop()
        self.connection: Any = None
        self.aside: Any = None
        self.start()
        self.loop.run_until_complete(self._declare())

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
        if self.aside is not None:
            self.aside = await self.jetstream.pull_subscribe("aside.parked", durable="lookup")

    async def _declare(self) -> None:
        from nats.js.api import ConsumerConfig

        await self.jetstream.add_stream(name="ORDERS", subjects=["orders"])
        await self.jetstream.add_stream(name="ASIDE", subjects=["aside.>"])
        await self.jetstream.pull_subscribe("orders", durable="workers", config=ConsumerConfig(ack_wait=1.0, max_ack_pending=64))
        self.aside = await self.jetstream.pull_subscribe("aside.parked", durable="lookup")

    def send(self, order: str) -> None:
        self.loop.run_until_complete(self.jetstream.publish("orders", json.dumps({"order": order}).encode()))

    def is_drained(self) -> bool:
        info = self.loop.run_until_complete(self.jetstream.consumer_info("ORDERS", "workers"))
        return bool(info.num_pending == 0 and info.num_ack_pending == 0)

    def parked(self) -> list[str]:
        return self.loop.run_until_complete(self._parked())

    def stop(self) -> None:
        self.loop.run_until_complete(self.connection.close())
        self.loop.close()
        super().stop()

    async def _parked(self) -> list[str]:
        try:
            messages = await self.aside.fetch(64, timeout=0.1)
        except (TimeoutError, asyncio.TimeoutError):
            return []
        for message in messages:
            await message.ack_sync()
        return [json.loads(message.data)["order"] for message in messages]


BROKERS: dict[str, type[Any]] = {"redis": Redis, "rabbitmq": RabbitMq, "nats": Nats}


# The run. ------------------------------------------------------------------------------------------------------------


def run(name: str, mode: str, gateway: Gateway) -> dict[str, int]:
    """One run at one broker; what happened, counted."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        broker = BROKERS[name](folder)
        workers: list[subprocess.Popen[bytes]] = []
        command = [sys.executable, __file__, "worker", name, mode, broker.url, gateway.url, made]
        operation = f"orders.{mode}.{name}"
        log = (folder / "workers.log").open("ab")

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(command, stdout=log, stderr=log)

        counts: Counter[str] = Counter()
        try:
            orders = [f"{mode}-{at}" for at in range(ORDERS)] * 2
            random.shuffle(orders)
            held_back = len(orders) // 10
            for order in orders[held_back:]:
                broker.send(order)
            workers = [start() for _ in range(WORKERS)]
            # Each fault has its share of the deliveries.
            faults = ["worker"] * KILLS
            for at, fault in enumerate(("broker",) if mode == "none" else ("gateway", "broker"), 1):
                faults.insert(len(faults) * at // 3, fault)
            share, fired = (len(orders) - held_back) * 0.9 / len(faults), 0
            seen, seen_at, sent = 0, time.monotonic(), False
            client = Client([gateway.url], CREDENTIAL, claim_within=30)
            while True:
                time.sleep(0.02)
                delivered = len(lines_of(folder / "deliveries"))
                if delivered != seen:
                    seen, seen_at = delivered, time.monotonic()
                if fired < len(faults) and delivered >= share * (fired + 1):
                    if faults[fired] == "worker":
                        workers[random.randrange(WORKERS)].kill()
                    else:
                        victim: Any = gateway if faults[fired] == "gateway" else broker
                        victim.kill()
                        victim.start()
                    counts[f"{faults[fired]}s_killed"] += 1
                    fired, seen_at = fired + 1, time.monotonic()
                # As a supervisor does: a worker also ends when it loses the broker.
                workers = [each if each.poll() is None else start() for each in workers]
                if fired == len(faults) and not sent:
                    for order in orders[:held_back]:
                        broker.send(order)
                    sent = True
                if mode == "unknown":
                    for order in broker.parked():
                        counts["parked"] += 1
                        counts["not_settled"] += not look_up(client, operation, order, made, folder)
                if sent and broker.is_drained():
                    break
                if time.monotonic() - seen_at > STALL:
                    raise TimeoutError(f"nothing was delivered for {STALL} s: {counts}; {(folder / 'workers.log').read_text()[-2000:]}")
            if mode == "unknown":
                for order in broker.parked():
                    counts["parked"] += 1
                    counts["not_settled"] += not look_up(client, operation, order, made, folder)
        finally:
            for each in workers:
                each.kill()
                each.wait()
            broker.stop()
        done, delivered = Counter(effects(folder)), len(lines_of(folder / "deliveries"))
        counts |= Counter(sent=len(orders), delivered=delivered, redelivered=max(delivered - len(orders), 0))
        counts |= Counter(effects=done.total(), doubled=sum(times > 1 for times in done.values()))
        return {
            **dict.fromkeys(("workers_killed", "gateways_killed", "brokers_killed", "redelivered", "parked", "not_settled", "doubled"), 0),
            **counts,
            "lost": ORDERS - len(done),
        }


def look_up(client: Client, operation: str, order: str, made: str, folder: Path) -> bool:
    """What a program does with a parked message: looks at the effect, takes the claim over, settles it."""
    grant = client.claim(operation, {"order": order}, take_over=True, lease="10s")
    if not isinstance(grant, Grant):
        return grant.state == "succeeded"  # type: ignore[union-attr]
    with grant:
        if order not in effects(folder):
            effect(made, order)
        grant.succeed()
    return True


def effects(folder: Path) -> list[str]:
    return lines_of(folder / "effects")


def lines_of(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except FileNotFoundError:
        return []


class Gateway:
    """A gateway on the disk engine."""

    def __init__(self, command: list[str], port: int, log: Path):
        self.command, self.port, self.log = command, port, log
        self.url = f"http://127.0.0.1:{port}"
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        until("the gateway listens", lambda: listens(self.port))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def gateway_of_the_test() -> Iterator[Gateway]:
    with tempfile.TemporaryDirectory() as made:
        operations = "".join(
            f'[apps.shop.operations."orders.{mode}.{name}"]\non_lease_end = "{mode}"\n' for mode in MODES[1:] for name in BROKERS
        )
        secret = subprocess.run(["sha256sum"], input=CREDENTIAL.split(".")[1].encode(), capture_output=True, check=True)
        digest = secret.stdout.decode().split()[0]
        config = Path(made, "oncegate.toml")
        config.write_text(f'[apps.shop]\nsecrets = ["sha256:{digest}"]\n{operations}')
        port = free_port()
        listen = ["--listen", f"127.0.0.1:{port}", "--admin-listen", f"127.0.0.1:{free_port()}"]
        command = [os.environ["ONCEGATE_BIN"], "serve", "--config", str(config), "--engine", f"disk:{made}/claims", "--data-dir", made]
        gateway = Gateway([*command, *listen], port, Path(made, "log"))
        try:
            yield gateway
        finally:
            gateway.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def until(what: str, is_so: Callable[[], Any], timeout: float = 20) -> None:
    ends, last = time.monotonic() + timeout, ""
    while time.monotonic() < ends:
        try:
            if is_so():
                return
        except Exception as error:
            last = repr(error)
        time.sleep(0.05)
    raise TimeoutError(f"not in time: {what} {last}")


def main() -> None:
    if sys.argv[1:2] == ["worker"]:
        worker(*sys.argv[2:])
        return
    failed = False
    columns = (
        "sent",
        "delivered",
        "redelivered",
        "workers_killed",
        "gateways_killed",
        "brokers_killed",
        "effects",
        "doubled",
        "parked",
        "lost",
    )
    print(f"{'broker':10}{'gateway':9}" + "".join(f"{column:>16}" for column in columns))
    with gateway_of_the_test() as gateway:
        for name in sys.argv[1:] or BROKERS:
            for mode in MODES:
                counts = run(name, mode, gateway)
                print(f"{name:10}{mode:9}" + "".join(f"{counts[column]:16}" for column in columns), flush=True)
                wrong = counts["lost"] > 0 or counts["not_settled"] > 0 or (mode == "unknown" and counts["doubled"] > 0)
                # Each message runs without a gateway; otherwise the run shows nothing.
                wrong |= mode == "none" and counts["doubled"] < ORDERS * 0.9
                wrong |= counts["workers_killed"] != KILLS or counts["brokers_killed"] != 1 or counts["gateways_killed"] != (mode != "none")
                failed |= wrong
    sys.exit("brokers: an effect was lost, or doubled where it must not be" if failed else 0)


if __name__ == "__main__":
    main()
