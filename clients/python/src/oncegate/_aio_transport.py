"""Runs the flows of calls with asyncio streams."""

from __future__ import annotations

import asyncio
import time
import weakref
from typing import Any, TypeVar

from . import _in_process
from ._core import Behind, Core, Flow, Pause, Reply, Request, Send
from ._fork import Forgetful, forget_after_fork
from ._http import IDLE_CONNECTIONS_MAX, IDLE_SECONDS_MAX, ProtocolError, ResponseReader, Server
from ._lost import GIVE_BACKS_MAX
from .errors import Cause

T = TypeVar("T")
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AsyncTransport(Forgetful):
    """Connections to the gateways, kept open and used again, for each event loop its own."""

    def __init__(self, core: Core, tls: Any):
        self._core = core
        self._servers = [Server.of(url, tls) for url in core.urls]
        self.forget()
        forget_after_fork(self)

    def forget(self) -> None:
        self._idle: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[list[tuple[Connection, float]]]] = weakref.WeakKeyDictionary()
        self._behind: set[asyncio.Task[None]] = set()
        super().forget()

    async def run(self, flow: Flow[T]) -> T:
        """Runs a flow to its end."""
        result: Any = None
        try:
            while True:
                effect = flow.send(result)
                if isinstance(effect, Pause):
                    await asyncio.sleep(effect.seconds)
                    result = None
                elif isinstance(effect, Behind):
                    self._start(effect.flow)
                    result = None
                else:
                    result = await self.send(effect)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            flow.close()

    def _start(self, flow: Flow[None]) -> None:
        """Runs a flow that gives a grant back in the background, unless there are too many of them."""
        if len(self._behind) < GIVE_BACKS_MAX:
            task = asyncio.ensure_future(self.run(flow))
            self._behind.add(task)
            task.add_done_callback(self._behind.discard)

    async def finish(self, within: float) -> None:
        """Waits for the flows of this event loop that run in the background, and ends those that take longer."""
        loop = asyncio.get_running_loop()
        behind = {task for task in self._behind if task.get_loop() is loop}
        if behind:
            for task in (await asyncio.wait(behind, timeout=within))[1]:
                task.cancel()

    async def send(self, send: Send) -> Reply | Cause:
        """One call. A `Cause` if there was no answer of a gateway: whether it acted on the call is not known."""
        if (call := _in_process.calls(self._core, send)) is not None:
            try:
                while True:
                    await asyncio.sleep(next(call))
            except StopIteration as answered:
                return answered.value  # type: ignore[no-any-return]
        self.own()
        server = self._servers[send.at]
        used: list[Connection] = []
        try:
            response = await asyncio.wait_for(self._exchange(send.at, server, send.request, used), send.timeout)
        except (OSError, UnicodeError, ProtocolError, asyncio.TimeoutError) as error:
            for _, writer in used:
                writer.transport.abort()
            cause = server.cause(error)
            if cause.kind == "timeout":
                cause = Cause(server.url, "timeout", "no whole answer in time")
            if cause.kind == "connection":
                # The others are of the same age.
                self._close_idle(send.at)
            return cause
        except BaseException:
            # Interrupted in the middle: what comes on this connection belongs to no later call.
            for _, writer in used:
                writer.transport.abort()
            raise
        if response.keeps_alive and len(self._pool(send.at)) < IDLE_CONNECTIONS_MAX:
            self._pool(send.at).append((used[0], time.monotonic()))
        else:
            used[0][1].close()
        return server.answer(send.request, response)

    async def _exchange(self, at: int, server: Server, request: Request, used: list[Connection]) -> ResponseReader:
        connection = self._take(at)
        if connection is None:
            name = server.host if server.tls else None
            connection = await asyncio.open_connection(server.host, server.port, ssl=server.tls, server_hostname=name)
        used.append(connection)
        reader, writer = connection
        writer.write(server.encode(request, self._core.headers()))
        await writer.drain()
        response = ResponseReader()
        while not response.feed(await reader.read(65536)):
            pass
        return response

    def _pool(self, at: int) -> list[tuple[Connection, float]]:
        loop = asyncio.get_running_loop()
        if loop not in self._idle:
            self._idle[loop] = [[] for _ in self._servers]
        return self._idle[loop][at]

    def _take(self, at: int) -> Connection | None:
        pool = self._pool(at)
        while pool:
            connection, since = pool.pop()
            if time.monotonic() - since < IDLE_SECONDS_MAX and not connection[0].at_eof():
                return connection
            connection[1].close()
        return None

    def _close_idle(self, at: int) -> None:
        pool = self._pool(at)
        while pool:
            pool.pop()[0][1].close()

    def close(self) -> None:
        for at in range(len(self._servers)):
            self._close_idle(at)
