"""Locks against a real gateway, which ONCEGATE_BIN names. Each client is one process of a fleet."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from oncegate import AsyncClient, Client, Hold, LockRecord

pytestmark = pytest.mark.skipif("ONCEGATE_BIN" not in os.environ, reason="no gateway: run it by scripts/with-gateway")


class Gateway:
    def __init__(self, folder: Path):
        ports = [free_port(), free_port()]
        self.url = f"http://127.0.0.1:{ports[0]}"
        addresses = [f"127.0.0.1:{port}" for port in ports]
        arguments = ["serve", "--engine", "memory:", "--data-dir", str(folder), "--listen", addresses[0], "--admin-listen", addresses[1]]
        # Those of scripts/with-gateway are for its own gateway, and no settings.
        env = {name: value for name, value in os.environ.items() if not name.startswith("ONCEGATE_")}
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen([os.environ["ONCEGATE_BIN"], *arguments], stdout=log, stderr=log, env=env)
        until(lambda: answers(ports[0]))

    def client(self) -> Client:
        return Client([self.url], on_event=lambda event: None)

    def async_client(self) -> AsyncClient:
        return AsyncClient([self.url], on_event=lambda event: None)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < ends, "it never holds"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    one = Gateway(tmp_path_factory.mktemp("gateway"))
    yield one
    one.process.kill()
    one.process.wait()


def acquired(client: Client, name: str, **terms: str) -> Hold:
    hold = client.lock(name, **terms).acquire()  # type: ignore[arg-type]
    assert hold is not None
    return hold


def found(client: Client, name: str) -> LockRecord:
    record = client.lock(name).lookup()
    assert record is not None
    return record


def test_another_client_is_excluded_until_the_release(gateway: Gateway) -> None:
    one, two = gateway.client(), gateway.client()
    hold = acquired(one, "excluded")
    assert two.lock("excluded").acquire() is None
    record = found(two, "excluded")
    assert (record.held, record.mode, record.fence, len(record.holders)) == (True, "exclusive", hold.fence, 1)
    hold.release()
    assert two.lock("excluded").lookup() is None
    following = acquired(two, "excluded")
    assert following.fence > hold.fence  # type: ignore[operator]
    following.release()


def test_a_waiter_is_granted_on_the_release(gateway: Gateway) -> None:
    one, two = gateway.client(), gateway.client()
    hold = acquired(one, "waited")
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(two.lock("waited", fair=True).acquire, "60s")
        until(lambda: found(one, "waited").waiting == 1)
        hold.release()
        following = waiting.result(30)
    assert following is not None
    assert following.fence > hold.fence  # type: ignore[operator]
    following.release()


def test_a_lock_outlives_its_lease_while_it_is_renewed(gateway: Gateway) -> None:
    one, two = gateway.client(), gateway.client()
    hold = acquired(one, "renewed", lease="3s")
    time.sleep(4)
    assert hold.is_live, hold.lost
    assert two.lock("renewed").acquire() is None
    assert [holder.lease <= 3 for holder in found(two, "renewed").holders] == [True]
    hold.release()


def test_readers_share_and_exclude_a_writer(gateway: Gateway) -> None:
    one, two = gateway.client(), gateway.client()
    first, second = acquired(one, "read", mode="shared"), acquired(two, "read", mode="shared")
    record = found(one, "read")
    assert (record.mode, len(record.holders)) == ("shared", 2)
    assert first.fence == second.fence
    first.release()
    assert one.lock("read").acquire() is None
    second.release()
    acquired(one, "read").release()


def test_a_cancelled_wait_leaves_no_place_in_the_queue(gateway: Gateway) -> None:
    async def run() -> None:
        async with gateway.async_client() as one, gateway.async_client() as two:
            hold = await one.lock("cancelled").acquire()
            assert hold is not None

            async def waiting(count: int) -> None:
                while (record := await one.lock("cancelled").lookup()) is None or record.waiting != count:
                    await asyncio.sleep(0.02)

            task = asyncio.create_task(two.lock("cancelled", fair=True).acquire("60s"))
            await asyncio.wait_for(waiting(1), 30)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            # A place that is not given back ends after ten seconds.
            await asyncio.wait_for(waiting(0), 8)
            await hold.release()

    asyncio.run(run())


def test_a_hold_is_lost_while_no_gateway_answers(gateway: Gateway) -> None:
    one, two = gateway.client(), gateway.client()
    hold = acquired(one, "lost", lease="1s")
    lost: threading.Event = hold.lost_event
    gateway.process.send_signal(signal.SIGSTOP)
    try:
        assert lost.wait(30)
        assert (hold.is_live, hold.lost) == (False, "not_renewed")
        # The gateway may have granted it a little later than the client counts.
        time.sleep(1)
    finally:
        gateway.process.send_signal(signal.SIGCONT)
    following = two.lock("lost").acquire("30s")
    assert following is not None
    assert following.fence > hold.fence  # type: ignore[operator]
    hold.release()
    assert [holder.mode for holder in found(two, "lost").holders] == ["exclusive"], "the lost hold released the next one"
    following.release()
