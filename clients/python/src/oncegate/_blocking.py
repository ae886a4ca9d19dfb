"""Runs the flows of calls with blocking sockets, and renewals in threads."""

from __future__ import annotations

import heapq
import itertools
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from . import _in_process
from ._core import Behind, Core, Flow, Pause, Reply, Request, Send
from ._fork import Forgetful, forget_after_fork
from ._http import IDLE_CONNECTIONS_MAX, IDLE_SECONDS_MAX, ProtocolError, ResponseReader, Server
from ._lost import GIVE_BACKS_MAX
from .errors import Cause
from .events import log_crash

T = TypeVar("T")


class Transport(Forgetful):
    """Connections to the gateways, kept open and used again. Safe to use from many threads."""

    def __init__(self, core: Core, tls: Any):
        self._core = core
        self._servers = [Server.of(url, tls) for url in core.urls]
        self.renewals = Renewals(self, log_crash)
        self.forget()
        forget_after_fork(self)

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._behind = threading.Semaphore(GIVE_BACKS_MAX)
        self._idle: list[list[tuple[socket.socket, float]]] = [[] for _ in self._servers]
        super().forget()

    def run(self, flow: Flow[T]) -> T:
        """Runs a flow to its end."""
        result: Any = None
        try:
            while True:
                effect = flow.send(result)
                if isinstance(effect, Pause):
                    time.sleep(effect.seconds)
                    result = None
                elif isinstance(effect, Behind):
                    self.start(effect.flow)
                    result = None
                else:
                    result = self.send(effect)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            flow.close()

    def start(self, flow: Flow[None]) -> None:
        """Runs a flow that gives a grant back in the background, unless there are too many of them."""
        self.own()
        if self._behind.acquire(blocking=False):
            self.renewals.start(_until_ended(flow, self._behind), lambda: False)

    def send(self, send: Send) -> Reply | Cause:
        """One call. A `Cause` if there was no answer of a gateway: whether it acted on the call is not known."""
        if (call := _in_process.calls(self._core, send)) is not None:
            try:
                while True:
                    time.sleep(next(call))
            except StopIteration as answered:
                return answered.value  # type: ignore[no-any-return]
        self.own()
        server, ends = self._servers[send.at], time.monotonic() + send.timeout
        connection: socket.socket | None = None
        try:
            connection = self._take(send.at) or self._connect(server, send.timeout)
            response = self._exchange(connection, server, send.request, ends)
        except (OSError, UnicodeError, ProtocolError) as error:
            if connection is not None:
                connection.close()
            cause = server.cause(error)
            if cause.kind == "connection":
                # The others are of the same age.
                self._close_idle(send.at)
            return cause
        except BaseException:
            # Interrupted in the middle: what comes on this connection belongs to no later call.
            if connection is not None:
                connection.close()
            raise
        if response.keeps_alive:
            self._keep(send.at, connection)
        else:
            connection.close()
        return server.answer(send.request, response)

    def _exchange(self, connection: socket.socket, server: Server, request: Request, ends: float) -> ResponseReader:
        connection.settimeout(max(ends - time.monotonic(), 0.001))
        connection.sendall(server.encode(request, self._core.headers()))
        response = ResponseReader()
        while True:
            left = ends - time.monotonic()
            if left <= 0:
                raise TimeoutError("no whole answer in time")
            connection.settimeout(left)
            if response.feed(connection.recv(65536)):
                return response

    def _connect(self, server: Server, timeout: float) -> socket.socket:
        connection = socket.create_connection((server.host, server.port), timeout)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return server.tls.wrap_socket(connection, server_hostname=server.host) if server.tls else connection
        except BaseException:
            connection.close()
            raise

    def _take(self, at: int) -> socket.socket | None:
        while True:
            with self._lock:
                if not self._idle[at]:
                    return None
                connection, since = self._idle[at].pop()
            if time.monotonic() - since < IDLE_SECONDS_MAX:
                return connection
            connection.close()

    def _keep(self, at: int, connection: socket.socket) -> None:
        with self._lock:
            if len(self._idle[at]) < IDLE_CONNECTIONS_MAX:
                self._idle[at].append((connection, time.monotonic()))
                return
        connection.close()

    def _close_idle(self, at: int) -> None:
        with self._lock:
            idle, self._idle[at] = self._idle[at], []
        for connection, _ in idle:
            connection.close()

    def close(self) -> None:
        for at in range(len(self._servers)):
            self._close_idle(at)


class Renewals(Forgetful):
    """Runs renewal flows in the background: one thread waits for all, and a short one makes each call.

    Most work ends before its first renewal, and then costs no thread.
    """

    def __init__(self, transport: Transport, on_crash: Callable[[BaseException], None]):
        self._transport, self._on_crash = transport, on_crash
        self._order = itertools.count()
        self.forget()
        forget_after_fork(self)

    def forget(self) -> None:
        self._due: list[tuple[float, int, Flow[None], Callable[[], bool]]] = []
        self._changed = threading.Condition()
        self._waiting = False
        super().forget()

    def start(self, flow: Flow[None], ended: Callable[[], bool]) -> None:
        self.own()
        self._advance(flow, ended, None)

    def _advance(self, flow: Flow[None], ended: Callable[[], bool], result: Any) -> None:
        """Continues a flow up to its next pause."""
        try:
            while True:
                effect = flow.send(result)
                if isinstance(effect, Pause):
                    return self._schedule(time.monotonic() + effect.seconds, flow, ended)
                assert isinstance(effect, Send)
                result = self._transport.send(effect)
        except StopIteration:
            return
        except BaseException as crash:
            self._on_crash(crash)

    def _schedule(self, due: float, flow: Flow[None], ended: Callable[[], bool]) -> None:
        with self._changed:
            heapq.heappush(self._due, (due, next(self._order), flow, ended))
            if not self._waiting:
                self._waiting = True
                threading.Thread(target=self._wait, name="oncegate-renewals", daemon=True).start()
            elif self._due[0][0] == due:
                self._changed.notify()

    def _wait(self) -> None:
        while True:
            with self._changed:
                while self._due and self._due[0][3]():
                    heapq.heappop(self._due)[2].close()
                left = self._due[0][0] - time.monotonic() if self._due else IDLE_SECONDS_MAX
                if left > 0:
                    self._changed.wait(left)
                    if not self._due and left == IDLE_SECONDS_MAX:
                        self._waiting = False
                        return
                    continue
                _, _, flow, ended = heapq.heappop(self._due)
            threading.Thread(target=self._advance, args=(flow, ended, None), name="oncegate-renewal", daemon=True).start()


def _until_ended(flow: Flow[None], places: threading.Semaphore) -> Flow[None]:
    try:
        yield from flow
    finally:
        places.release()


def in_background(name: str, run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
