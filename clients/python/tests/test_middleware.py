"""The middleware in applications at real servers and a real gateway: what the vectors leave out."""

from __future__ import annotations

import asyncio
import gzip
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any
from uuid import uuid4

import httpx
import pytest
import uvicorn
from servers import until
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from oncegate import AsyncClient, Client, Event, NothingHappened, Unavailable, current
from oncegate.contrib import starlette as contrib
from oncegate.contrib.asgi import OnceMiddleware, drain
from oncegate.middleware import Problem, Rules, shared_keys
from oncegate.testing import MemoryGateway

pytestmark = pytest.mark.skipif("ONCEGATE_URL" not in os.environ, reason="no gateway: run it by scripts/with-gateway")


class App:
    """Counts its runs. `block` lasts until `go`; `/slow` ends then."""

    def __init__(self) -> None:
        self.runs = 0
        self.ended = 0
        self.go = threading.Event()
        self.seen: list[Any] = []

    async def count(self, request: Request) -> Response:
        self.runs += 1
        return PlainTextResponse(f"run {self.runs}: {(await request.body()).decode()}", 201)

    async def slow(self, request: Request) -> Response:
        self.runs += 1
        grant = current()
        assert grant is not None
        try:
            while not self.go.is_set():
                await asyncio.sleep(0.01)
            self.seen.append(grant.caller_gone.is_set())
        finally:
            self.ended += 1
        return PlainTextResponse(f"run {self.runs}", 201)

    def routes(self) -> list[Route]:
        return [Route("/", self.count, methods=["POST", "PUT"]), Route("/slow", self.slow, methods=["POST"])]


def rules(**options: Any) -> Rules:
    named: dict[str, Any] = {
        "operation": f"http.{uuid4().hex}",
        "principal": lambda request: request.headers.get("user", "ann"),
        "lease": "5s",
    }
    return Rules(**{**named, **options})


def client(**options: Any) -> AsyncClient:
    return AsyncClient([os.environ["ONCEGATE_URL"]], os.environ["ONCEGATE_CREDENTIAL"], **options)


def service(app: App, **options: Any) -> Starlette:
    made = Starlette(routes=app.routes())
    contrib.install(made, client(), rules(**options))
    return made


class Running(uvicorn.Server):
    def __init__(self, app: Any):
        super().__init__(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.thread = threading.Thread(target=lambda: asyncio.run(self.serve(sockets=[self.listener])), daemon=True)


@contextmanager
def serving(app: Any) -> Iterator[Running]:
    server = Running(app)
    server.thread.start()
    try:
        yield server
    finally:
        server.should_exit = True
        server.thread.join(30)


def post(server: Running, path: str = "/", key: str | None = None, body: bytes = b"one", **headers: str) -> httpx.Response:
    keyed = {} if key is None else {"Idempotency-Key": key}
    return httpx.post(server.url + path, content=body, headers={**keyed, **headers}, timeout=30)


def replayed(response: httpx.Response) -> bool:
    return bool(response.headers.get("idempotent-replayed") == "true")


def test_a_storm_of_clicks_is_one_run() -> None:
    app, key = App(), uuid4().hex
    with serving(service(app, wait="10s")) as server, ThreadPoolExecutor(24) as pool:
        responses = list(pool.map(lambda _: post(server, key=key), range(24)))
    assert app.runs == 1
    assert {(each.status_code, each.text) for each in responses} == {(201, "run 1: one")}
    assert sum(map(replayed, responses)) == 23


class Unzipping:
    """A layer that decompresses bodies, and leaves their fields as they came."""

    def __init__(self, app: Any):
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        messages = [{"type": "http.request", "body": gzip.decompress(await request.body())}]

        async def plain() -> Any:
            return messages.pop() if messages else await receive()

        await self.app(scope, plain, send)


@pytest.mark.parametrize("text", [b"", b"one", b"one" * 1000])
def test_a_body_that_a_layer_outside_has_decompressed_is_whole(text: bytes) -> None:
    app, key = App(), uuid4().hex
    made = service(app)
    made.add_middleware(Unzipping)
    encoded = {"Content-Encoding": "gzip"}
    with serving(made) as server:
        first = post(server, key=key, body=gzip.compress(text, 1), **encoded)
        assert (first.status_code, first.text) == (201, f"run 1: {text.decode()}")
        assert replayed(post(server, key=key, body=gzip.compress(text, 9), **encoded))
        assert post(server, key=key, body=gzip.compress(text + b"!"), **encoded).status_code == 422
    assert app.runs == 1


def test_one_key_at_two_mount_points_is_a_mismatch() -> None:
    app, key = App(), uuid4().hex
    whole = Starlette(routes=[Mount("/a", Starlette(routes=app.routes())), Mount("/b", Starlette(routes=app.routes()))])
    contrib.install(whole, client(), rules())
    with serving(whole) as server:
        assert post(server, "/a/", key).status_code == 201
        assert post(server, "/b/", key).status_code == 422
        assert replayed(post(server, "/a/", key))


def test_middleware_of_a_base_class_outside_changes_nothing() -> None:
    app = App()
    made = service(app)
    made.add_middleware(BaseHTTPMiddleware, dispatch=stamped)
    key = uuid4().hex
    with serving(made) as server:
        first, second = post(server, key=key), post(server, key=key)
    assert app.runs == 1
    assert replayed(second)
    assert second.text == first.text
    # The layer outside stamps each answer; its field is not stored.
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert len(second.headers.get_list("x-request-id")) == 1


async def stamped(request: Request, call_next: Callable[[Request], Any]) -> Any:
    response = await call_next(request)
    response.headers["X-Request-Id"] = uuid4().hex
    return response


def test_middleware_of_a_base_class_inside_changes_nothing() -> None:
    app, key = App(), uuid4().hex

    async def rows(request: Request) -> Response:
        app.runs += 1

        async def each() -> Any:
            for number in range(3):
                yield f"row {number} ".encode()
                await asyncio.sleep(0.01)

        return StreamingResponse(each(), 201)

    made = Starlette(routes=[*app.routes(), Route("/rows", rows, methods=["POST"])])
    made.add_middleware(BaseHTTPMiddleware, dispatch=stamped)
    contrib.install(made, client(), rules())
    with serving(made) as server:
        first, second = post(server, "/rows", key), post(server, "/rows", key)
        assert (first.text, second.text) == ("row 0 row 1 row 2 ", "row 0 row 1 row 2 ")
        # Its field is the handler's here: it is stored.
        assert first.headers["x-request-id"] == second.headers["x-request-id"]
        assert replayed(second)
        assert post(server, key=uuid4().hex).text == f"run {app.runs}: one"


def test_http2() -> None:
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    app, key, stop = App(), uuid4().hex, threading.Event()
    config = Config()
    listener = socket.create_server(("127.0.0.1", 0))
    config.bind = [f"fd://{listener.fileno()}"]
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def stopped() -> None:
        while not stop.is_set():
            await asyncio.sleep(0.05)

    served: Any = service(app, body_bytes=100_000)
    thread = threading.Thread(target=lambda: asyncio.run(serve(served, config, shutdown_trigger=stopped)), daemon=True)
    thread.start()
    try:
        with httpx.Client(http1=False, http2=True, timeout=30) as caller:
            answers = [caller.post(url, content=b"one", headers={"Idempotency-Key": key}) for _ in range(2)]
            assert [answer.http_version for answer in answers] == ["HTTP/2"] * 2
            assert [answer.text for answer in answers] == ["run 1: one"] * 2
            assert replayed(answers[1])
            assert caller.post(url, content=b"x" * 100_001, headers={"Idempotency-Key": uuid4().hex}).status_code == 413
            assert caller.post(url, content=b"two", headers={"Idempotency-Key": key}).status_code == 422
    finally:
        stop.set()
        thread.join(30)
    assert app.runs == 1


def test_two_in_one_application_are_an_error_and_one_in_another_passes() -> None:
    app = App()
    inner = service(app)
    with pytest.raises(ValueError, match="install it once"):
        contrib.install(inner, client(), rules())
    whole = Starlette(routes=[Mount("/in", inner)])
    contrib.install(whole, client(), rules())
    key = uuid4().hex
    with serving(whole) as server:
        assert post(server, "/in/", key).status_code == 201
        assert replayed(post(server, "/in/", key))
    assert app.runs == 1


def test_a_caller_that_has_gone_is_known_and_the_shutdown_waits_for_its_run() -> None:
    app, key = App(), uuid4().hex
    made, released = service(app), []

    async def lifespan(_: Any) -> Any:
        yield
        released.append(app.ended)

    from contextlib import asynccontextmanager

    made.router.lifespan_context = asynccontextmanager(lifespan)
    with serving(made) as server:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/slow", headers={"Idempotency-Key": key}, timeout=0.5)
        until("the run has begun", lambda: app.runs == 1)
        server.should_exit = True
        time.sleep(0.3)
        app.go.set()
    assert app.seen == [True]
    # The application's resources are released after the run.
    assert released == [1]


@pytest.mark.parametrize("raises", [True, False])
def test_a_run_that_stops_with_its_caller_is_unknown(raises: bool) -> None:
    app, key = App(), uuid4().hex

    async def until_gone(request: Request) -> Response:
        app.runs += 1
        while not await request.is_disconnected():
            await asyncio.sleep(0.01)
        app.ended += 1
        if raises:
            raise RuntimeError("stopped")
        return PlainTextResponse("half of it")

    made = Starlette(routes=[Route("/", until_gone, methods=["POST"])])
    contrib.install(made, client(), rules(stop_when_gone=True))
    with serving(made) as server:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(server.url, headers={"Idempotency-Key": key}, timeout=0.3)
        until("the handler has stopped", lambda: app.ended == 1)
        until("the outcome is known", lambda: httpx.post(server.url, headers={"Idempotency-Key": key}).json().get("state") == "unknown")
    assert app.runs == 1


def test_a_handler_is_stopped_after_exchange_max() -> None:
    app, key = App(), uuid4().hex
    with serving(service(app, exchange_max="200ms")) as server:
        assert post(server, "/slow", key).status_code == 500
        answer = post(server, "/slow", key)
    assert (answer.status_code, answer.json()["state"]) == (409, "unknown")
    assert (app.runs, app.ended) == (1, 1)


@pytest.mark.parametrize("streamed", [False, True])
def test_an_outcome_that_no_gateway_takes_completes_the_response_all_the_same(streamed: bool) -> None:
    gateway, events = MemoryGateway(), list[Event]()
    with ExitStack() as outage:

        async def place(request: Request) -> Response:
            outage.enter_context(gateway.unavailable())
            return StreamingResponse(iter([b"do", b"ne"])) if streamed else PlainTextResponse("done")

        made = Starlette(routes=[Route("/", place, methods=["POST"])])
        contrib.install(made, gateway.async_client(on_event=events.append), rules(settle_within="300ms"))
        with serving(made) as server:
            assert post(server, key="k").text == "done"
    assert [event.name for event in events if event.name == "not_settled"] == ["not_settled"]
    assert gateway.claims[0].state == "in_progress"


def test_observed_requests_are_never_refused() -> None:
    app, events = App(), list[Event]()
    made = Starlette(routes=app.routes())
    observing = AsyncClient([os.environ["ONCEGATE_URL"]], os.environ["ONCEGATE_CREDENTIAL"], on_event=events.append)
    contrib.install(made, observing, rules(observe=True, required=True, body_bytes=10))
    key = uuid4().hex
    with serving(made) as server:
        for headers, body in [
            ({"Idempotency-Key": key}, b"one"),
            ({"Idempotency-Key": key}, b"one"),
            ({"Idempotency-Key": key}, b"two"),
            ({"Idempotency-Key": "no key"}, b"one"),
            ({}, b"one"),
            ({"Idempotency-Key": key, "user": ""}, b"one"),
            ({"Idempotency-Key": key}, b"x" * 100),
        ]:
            answer = httpx.post(server.url, content=body, headers=headers)
            assert answer.text == f"run {app.runs}: {body.decode()}"
            assert not replayed(answer)
        chunked = httpx.post(server.url, content=iter([b"x" * 8, b"y" * 8]), headers={"Idempotency-Key": key})
        assert chunked.text.endswith("xxxxxxxxyyyyyyyy")
    assert app.runs == 8
    observed = [event.fields["would_be"] for event in events if event.name == "observed"]
    keys = ["idempotency_key_invalid", "idempotency_key_invalid", "principal_missing"]
    assert observed == ["duplicate", "mismatch", *keys, "body_too_large", "body_too_large"]


def test_what_the_rules_leave_out_passes() -> None:
    app, key = App(), uuid4().hex
    with serving(service(app, when=lambda request: "skip" not in request.headers, methods=["POST"])) as server:
        for _ in range(2):
            assert not replayed(post(server, key=key, skip="1"))
            assert not replayed(httpx.put(server.url, headers={"Idempotency-Key": key}))
    assert app.runs == 4


def test_refusals_as_the_service_wants_them() -> None:
    def render(problem: Problem) -> Response:
        return JSONResponse({"error": problem.code}, problem.status)

    with serving(service(App(), render=render)) as server:
        answer = post(server, key="no key")
    assert (answer.status_code, answer.json()) == (400, {"error": "idempotency_key_invalid"})


def test_a_principal_may_wait_and_read_the_body_and_its_errors_are_the_frameworks() -> None:
    app, key = App(), uuid4().hex

    async def of_body(request: Request) -> str:
        return (await request.body()).decode()

    def fails(request: Request) -> str:
        raise RuntimeError("no session")

    with serving(service(app, principal=of_body)) as server:
        assert post(server, key=key).status_code == 201
        assert post(server, key=key, body=b"").json()["code"] == "principal_missing"
    with serving(service(app, principal=fails)) as server:
        assert post(server, key=key).status_code == 500
    with serving(service(app, principal=shared_keys)) as server:
        assert post(server, key=key, user="").status_code == 201
        assert replayed(post(server, key=key, user="other"))


def test_a_caller_that_reads_nothing_does_not_hold_the_outcome() -> None:
    app, key = App(), uuid4().hex

    async def rows(request: Request) -> Response:
        app.runs += 1
        return StreamingResponse((b"x" * 65536 for _ in range(200)), 201)

    made = Starlette(routes=[Route("/", rows, methods=["POST"])])
    contrib.install(made, client(), rules())
    with serving(made) as server:
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as caller:
            head = f"POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: {key}\r\nContent-Length: 0\r\n\r\n"
            caller.sendall(head.encode())
            until("the run has begun", lambda: app.runs == 1)
            assert post(server, key=key, body=b"").json()["state"] == "in_progress"
        until("its response is a tombstone", lambda: post(server, key=key, body=b"").json()["code"] == "response_not_stored")
    assert app.runs == 1


class OutOfStock(Exception):
    pass


class SoldOut(OutOfStock):
    pass


def test_declared_errors_release_the_key_whoever_answers_them() -> None:
    """Answered by the application's handler, by a handler for its base class, by the framework's default, or not at all."""
    from starlette.exceptions import HTTPException

    class Busy(HTTPException):
        pass

    raised: list[Exception] = []

    async def failing(request: Request) -> Response:
        raise raised[-1]

    made = Starlette(routes=[Route("/", failing, methods=["POST"])])
    contrib.install(made, client(), rules(nothing_happened=(OutOfStock, Busy, ZeroDivisionError)))
    # Registered after the middleware, and answered by a blocking function.
    made.add_exception_handler(OutOfStock, lambda _, __: PlainTextResponse("out", 409))
    made.add_exception_handler(KeyError, lambda _, __: PlainTextResponse("key", 409))
    harmless = [OutOfStock(), SoldOut(), Busy(409), ZeroDivisionError(), NothingHappened()]
    with serving(made) as server:
        for error in [*harmless, KeyError()]:
            key = uuid4().hex
            raised.append(error)
            first, second = post(server, key=key), post(server, key=key)
            assert replayed(second) == isinstance(error, KeyError), error
            assert first.status_code == second.status_code, error


def test_a_cause_is_not_declared() -> None:
    async def failing(request: Request) -> Response:
        raise KeyError("order") from OutOfStock()

    made = Starlette(routes=[Route("/", failing, methods=["POST"])])
    contrib.install(made, client(), rules(nothing_happened=(OutOfStock,)))
    with serving(made) as server:
        key = uuid4().hex
        assert post(server, key=key).status_code == 500
        assert post(server, key=key).json()["state"] == "unknown"


@pytest.mark.parametrize("streamed", [False, True])
def test_background_work_that_fails_changes_nothing(streamed: bool) -> None:
    runs: list[int] = []

    def fail() -> None:
        raise RuntimeError("after the response")

    async def place(request: Request) -> Response:
        runs.append(1)
        task = BackgroundTask(fail)
        return StreamingResponse(iter([b"do", b"ne"]), background=task) if streamed else PlainTextResponse("done", background=task)

    made = Starlette(routes=[Route("/", place, methods=["POST"])])
    contrib.install(made, client(), rules())
    with serving(made) as server:
        key = uuid4().hex
        first, second = post(server, key=key), post(server, key=key)
        assert (first.text, second.text, replayed(second), len(runs)) == ("done", "done", True, 1)


async def nothing(_: Any) -> None:
    pytest.fail("the work has run")


def test_errors_of_once_in_handlers_have_a_meaning() -> None:
    async def place(request: Request) -> Response:
        away = AsyncClient(["http://127.0.0.1:9"], claim_within=0.2)
        contents: Any = {"price": 1.5} if request.query_params.get("float") else {"order": 1}
        await away.once("order.submit", contents, nothing)
        return Response()

    made = Starlette(routes=[Route("/", place, methods=["POST"])])
    contrib.install_errors(made)
    with serving(made) as server:
        answer = post(server)
        assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "store_unavailable", "1")
        assert answer.headers["content-type"] == "application/problem+json"
        answer = post(server, "/?float=1")
        assert (answer.status_code, answer.json()["code"]) == (422, "contents_not_canonical")
    assert issubclass(Unavailable, Exception)


def test_a_credential_at_an_open_gateway_is_an_error_of_the_service() -> None:
    from scripted import COMMON, Script

    body = {**COMMON["answers"]["granted"]["body"], "global_id": "0" * 32, "attempt": "7-a"}
    exchanges = [{"expect": {}, "answer": {"status": 201, "body": body}}, {"expect": {}, "answer": "released"}]
    gateway = Script({"exchanges": exchanges}, ["script"])
    gateway._differs = lambda expected, request: None  # type: ignore[method-assign]
    app = App()
    made = Starlette(routes=app.routes())
    contrib.install(made, Client(gateway.urls, "shop.c2VjcmV0X29mX3RoZV92ZWN0b3Jz"), rules())
    with serving(made) as server:
        answer = post(server, key=uuid4().hex)
    gateway.close()
    assert (answer.status_code, answer.json()["code"], app.runs) == (500, "identity_differs", 0)


def test_a_server_that_cancels_the_request_does_not_cancel_the_handler() -> None:
    """As hypercorn and daphne do at their time limits."""
    app, key = App(), uuid4().hex
    made = service(app)

    async def main() -> None:
        sent: list[Any] = []

        def call() -> asyncio.Task[None]:
            headers = [(b"idempotency-key", key.encode()), (b"user", b"ann")]
            scope = {"type": "http", "method": "POST", "path": "/slow", "query_string": b"", "headers": headers, "http_version": "1.1"}
            queue: asyncio.Queue[Any] = asyncio.Queue()
            queue.put_nowait({"type": "http.request", "body": b"", "more_body": False})

            async def send(message: Any) -> None:
                sent.append(message)

            return asyncio.ensure_future(made(scope, queue.get, send))

        first = call()
        while app.runs == 0:
            await asyncio.sleep(0.01)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        app.go.set()
        assert await drain(10) == 0
        assert sent == []
        await call()
        assert sent[0]["status"] == 201

    asyncio.run(main())
    assert (app.runs, app.ended, app.seen) == (1, 1, [True])


def test_drain_has_nothing_to_wait_for() -> None:
    assert asyncio.run(drain(0.1)) == 0
    assert OnceMiddleware is not None
