"""ASGI middleware for Litestar, Quart and others: `app = OnceMiddleware(app, client, Rules(operation=…, principal=…))`.

Starlette and FastAPI have `contrib.starlette.install` and `contrib.fastapi.install`, whose rules get their own requests.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from .. import _claims
from .._grant import set_current
from ..aio import AsyncClient, AsyncGrant
from ..client import Client
from ..middleware import Problem, Rules, shared_keys
from ..middleware.asyncio_run import Outlet, drain, keep_running, log_end
from ..middleware.engine import DRAINED_BYTES_MAX, DRAINED_SECONDS_MAX, Engine, Refused
from ..middleware.fields import HIDDEN, WITHOUT_BODY, Fields
from ..middleware.incoming import Incoming
from ..middleware.recorder import Recorder, Reply

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: The member of a scope that says that the request is protected already.
GRANT = "oncegate.grant"
#: They would pass the recorder by.
_WAYS_ROUND = frozenset({"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers"})


class OnceMiddleware:
    """Runs requests with an `Idempotency-Key` once, and replays the response to repeats. `rules.principal` gets the ASGI scope."""

    def __init__(self, app: Any, client: AsyncClient | Client, rules: Rules):
        if not isinstance(client, (AsyncClient, Client)):
            raise TypeError(f"client is an AsyncClient, got {type(client).__name__}")
        self.app: App = app
        self._client = client if isinstance(client, AsyncClient) else AsyncClient.of(client)
        self._engine = Engine(self._client._core, rules)

    def request(self, scope: Scope, receive: Receive) -> Any:
        """The request that the functions of the rules get."""
        return scope

    async def refusal(self, problem: Problem, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends a refusal as the service wants it: `render` returns an ASGI application, as responses of frameworks are."""
        assert self._engine.rules.render is not None
        await self._engine.rules.render(problem)(scope, receive, send)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, _draining(receive), send)
        if scope["type"] != "http" or GRANT in scope:
            return await self.app(scope, receive, send)
        incoming, engine = incoming_of(scope), self._engine
        if not engine.wants(incoming, self.request(scope, receive)):
            return await self.app(scope, receive, send)
        body: bytes | None = None
        try:
            key = engine.key(incoming)
            body = await self._body(incoming, receive)
            if body is None:
                # Most likely the sender has disconnected; a sender that still reads gets the reason.
                detail = "The body ended before it was whole, so the request was not run; send it again with the same key."
                return await self._reply(Reply.refusal(Problem("invalid_request", detail)), scope, receive, send)
            principal = self._engine.rules.principal(self.request(scope, _once(body, receive)))
            principal = engine.check_principal(await principal if inspect.isawaitable(principal) else principal)
        except Refused as refused:
            if engine.rules.observe:
                engine.refused(refused)
                read, more = (refused.read, refused.more) if isinstance(refused, _TooLarge) else (body, False)
                return await self.app(scope, receive if read is None else _once(read, receive, more=more), send)
            if isinstance(refused, _TooLarge):
                await refused.drop(receive)
            engine.refused(refused)
            return await self._reply(Reply.refusal(refused.problem), scope, receive, send)
        terms = engine.terms(incoming, body, key, principal)
        scope_of_claim = engine.scope(terms)
        claimed = await self._client._detached(scope_of_claim, engine.claim(scope_of_claim, terms))
        if claimed is None:
            return await self.app(scope, _once(body, receive), send)
        if isinstance(claimed, Reply):
            return await self._reply(claimed, scope, receive, send)
        await _Run(self, claimed).run(scope, receive, send, body)

    async def _body(self, incoming: Incoming, receive: Receive) -> bytes | None:
        """The whole body. None if it ended early."""
        limit, declared = self._engine.rules.body_bytes, incoming.line("content-length")
        if declared is not None and (not declared.isdigit() or int(declared) > limit):
            raise _TooLarge(self._engine.too_large(), None, True)
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            more = bool(message.get("more_body"))
            if len(body) > limit:
                raise _TooLarge(self._engine.too_large(), bytes(body), more)
            if not more:
                # A layer outside that has decompressed the body may leave the length of what was sent.
                is_whole = declared is None or len(body) == int(declared) or bool(incoming.lines("content-encoding"))
                return bytes(body) if is_whole else None

    async def _reply(self, reply: Reply, scope: Scope, receive: Receive, send: Send) -> None:
        if reply.problem is not None and self._engine.rules.render is not None:
            return await self.refusal(reply.problem, scope, receive, send)
        fields = list(reply.fields)
        if reply.problem is not None:
            fields.append(("Content-Length", str(len(reply.body))))
        await send({"type": "http.response.start", "status": reply.status, "headers": encoded(fields)})
        await send({"type": "http.response.body", "body": reply.body})


class _Run:
    """One run of a handler, detached from its caller."""

    def __init__(self, middleware: OnceMiddleware, state: _claims.GrantState):
        self._app, self._engine, self._client = middleware.app, middleware._engine, middleware._client
        self._state = state
        self._grant = AsyncGrant(self._client, state)
        self._recorder = Recorder(self._engine.rules, state.degraded)
        self._outlet: Outlet[Message] = Outlet()
        #: The response is complete, and its outcome reported.
        self._complete = asyncio.Event()
        #: The handler has sent the end of its body, which may come after the last byte of a declared length.
        self._said_all = asyncio.Event()
        self._head: Message | None = None

    async def run(self, scope: Scope, receive: Receive, send: Send, body: bytes) -> None:
        engine = self._engine
        task = keep_running(self._work(scope, receive, body))
        watch = None if engine.rules.stop_when_gone else asyncio.ensure_future(self._watch(receive))
        fault: BaseException | None = None
        try:
            while (message := await self._outlet.get()) is not None:
                try:
                    await send(message)
                except Exception as error:
                    # The handler continues: the repeat gets its response.
                    fault = error
                    self._gone()
            await asyncio.shield(task)
        except asyncio.CancelledError:
            self._gone()
            task.add_done_callback(log_end)
            if engine.rules.stop_when_gone:
                task.cancel()
            raise
        finally:
            if watch is not None:
                watch.cancel()
        if fault is not None:
            raise fault

    def _gone(self) -> None:
        self._grant.caller_gone.set()
        self._outlet.leave()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not self._complete.is_set():
            self._grant.caller_gone.set()

    async def _work(self, scope: Scope, receive: Receive, body: bytes) -> None:
        inner = {**scope, "headers": [pair for pair in scope["headers"] if pair[0].lower().decode("latin-1") not in HIDDEN]}
        inner["extensions"] = {name: value for name, value in (scope.get("extensions") or {}).items() if name not in _WAYS_ROUND}
        inner[GRANT] = self._grant
        timer = asyncio.get_running_loop().call_later(self._engine.exchange_max, self._time_out, asyncio.current_task())
        self._grant._keep()
        error: BaseException | None = None
        try:
            with set_current(self._grant), self._engine.run_span():
                await self._app(inner, self._receive(receive, body), self._send)
        except BaseException as raised:
            error = raised
            if self._timed_out and isinstance(raised, asyncio.CancelledError):
                raise TimeoutError(f"the handler was stopped after exchange_max, {self._engine.exchange_max:g} s") from raised
            raise
        finally:
            timer.cancel()
            try:
                if not self._complete.is_set():
                    await self._report(error, complete=False)
            finally:
                self._outlet.close()
                self._grant._end()

    _timed_out = False
    #: The handler knows that its caller has gone, so a response may be one of work that was not finished.
    _was_stopped = False

    def _time_out(self, task: asyncio.Task[Any] | None) -> None:
        # Background work after the response is no part of the exchange.
        if task is not None and not self._complete.is_set():
            self._timed_out = True
            task.cancel()

    def _receive(self, receive: Receive, body: bytes) -> Receive:
        read = False

        async def of_the_handler() -> Message:
            nonlocal read
            if not read:
                read = True
                return {"type": "http.request", "body": body, "more_body": False}
            if self._engine.rules.stop_when_gone and not self._complete.is_set():
                message = await receive()
                self._was_stopped |= message["type"] == "http.disconnect" and not self._complete.is_set()
                return message
            await self._said_all.wait()
            return {"type": "http.disconnect"}

        return of_the_handler

    async def _send(self, message: Message) -> None:
        kind, recorder = message["type"], self._recorder
        if not self._complete.is_set():
            await self._pass(kind, recorder, message)
        if kind == "http.response.body" and not message.get("more_body"):
            self._said_all.set()

    async def _pass(self, kind: str, recorder: Recorder, message: Message) -> None:
        if kind == "http.response.start":
            fields = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message.get("headers", [])]
            self._head = {**message, "headers": encoded(recorder.begin(message["status"], fields))}
            if not recorder.is_without_body:
                await self._put_head()
        elif kind == "http.response.body":
            piece, more = recorder.add(bytes(message.get("body", b""))), bool(message.get("more_body"))
            if more and recorder.status in WITHOUT_BODY:
                return
            if more and not recorder.is_filled:
                await self._put_head()
                await self._outlet.put({"type": kind, "body": piece, "more_body": True}, len(piece))
                return
            # One that is shorter than declared is broken off by the server, as without the middleware.
            await self._report(None, complete=not recorder.breaks_off and not self._was_stopped)
            await self._put_head()
            await self._outlet.put({"type": kind, "body": piece, "more_body": False}, len(piece))
            self._outlet.close()
        else:
            await self._outlet.put(message, 0)

    async def _put_head(self) -> None:
        if self._head is not None:
            head, self._head = self._head, None
            await self._outlet.put(head, 0)

    async def _report(self, error: BaseException | None, *, complete: bool) -> None:
        await self._client._reported(self._engine.rules.operation, self._engine.report(self._state, self._recorder, error, complete))
        self._complete.set()


def incoming_of(scope: Scope) -> Incoming:
    raw: bytes = scope.get("raw_path") or b""
    path = raw.partition(b"?")[0].decode("latin-1") or scope["path"]
    query = scope.get("query_string", b"")
    # The test client of Django gives text.
    query = query if isinstance(query, str) else query.decode("latin-1")
    fields = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
    return Incoming(scope["method"], path, query or None, fields, joined=False)


def encoded(fields: Fields) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in fields]


def is_async(function: Any) -> bool:
    """Reports whether a call returns an awaitable, as frameworks decide it."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(type(function), "__call__", None))  # noqa: B004


def _once(body: bytes, receive: Receive, *, more: bool = False) -> Receive:
    """Returns a receive function that first gives the bytes that were read of a body, and then the messages of the server."""
    read = False

    async def again() -> Message:
        nonlocal read
        if read:
            return await receive()
        read = True
        return {"type": "http.request", "body": body, "more_body": more}

    return again


class _TooLarge(Refused):
    """A body that is too large, and what was read of it."""

    def __init__(self, problem: Problem, read: bytes | None, more: bool):
        super().__init__(problem)
        self.read, self.more = read, more

    async def drop(self, receive: Receive) -> None:
        """Reads the rest of the body within bounds, so that its sender reads the answer, and does not break off."""
        dropped = 0

        async def rest() -> None:
            nonlocal dropped
            while self.more and dropped <= DRAINED_BYTES_MAX:
                message = await receive()
                dropped += len(message.get("body", b""))
                self.more = message["type"] == "http.request" and bool(message.get("more_body"))

        try:
            await asyncio.wait_for(rest(), DRAINED_SECONDS_MAX)
        except asyncio.TimeoutError:
            pass


def _draining(receive: Receive) -> Receive:
    """At the shutdown of the server, waits for the runs without callers before the application releases its resources."""

    async def lifespan() -> Message:
        message = await receive()
        if message["type"] == "lifespan.shutdown":
            await drain()
        return message

    return lifespan


__all__ = ["OnceMiddleware", "Problem", "Rules", "drain", "shared_keys"]
