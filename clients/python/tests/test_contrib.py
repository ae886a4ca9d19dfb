"""Middleware and Celery tasks against a real gateway: each with the same scenario."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from oncegate import AsyncClient, Client, Grant, NothingHappened
from oncegate.contrib._replay import Rules

pytestmark = pytest.mark.skipif("ONCEGATE_URL" not in os.environ, reason="no gateway: run it by scripts/with-gateway")

Send = Callable[..., tuple[int, dict[str, str], bytes]]


def options() -> tuple[list[str], str]:
    return [os.environ["ONCEGATE_URL"]], os.environ["ONCEGATE_CREDENTIAL"]


def rules(principal: Any) -> Rules:
    return Rules(principal=principal, operation=f"http.{uuid4().hex}", required=True)


class Service:
    """Counts what it does; `/fail/CODE` answers so, `/crash` raises."""

    def __init__(self) -> None:
        self.runs = 0

    def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        self.runs += 1
        if path == "/crash":
            raise RuntimeError("it crashed")
        status = int(path.split("/")[2]) if path.startswith("/fail/") else 201
        return status, b"run %d: " % self.runs + body


def scenario(service: Service, send: Send) -> None:
    key = uuid4().hex
    status, headers, body = send("/orders", key, b"one")
    assert (status, body, headers.get("idempotent-replayed")) == (201, b"run 1: one", None)
    status, headers, body = send("/orders", f'"{key}"', b"one")
    assert (status, body, headers.get("idempotent-replayed")) == (201, b"run 1: one", "true")
    assert headers["x-order"] == "7"
    assert send("/orders", key, b"two")[0] == 422
    assert send("/orders", key, b"one", user="other")[0] == 201
    assert service.runs == 2
    # Released, unknown, and no key.
    key = uuid4().hex
    assert [send("/fail/429", key, b"")[0] for _ in range(2)] == [429, 429]
    assert service.runs == 4
    key = uuid4().hex
    assert [send("/fail/500", key, b"")[0] for _ in range(2)] == [500, 409]
    assert service.runs == 5
    assert send("/orders", None, b"")[0] == 400
    assert send("/orders", "x" * 300, b"")[0] == 400
    assert send("/orders", uuid4().hex, b"", user="")[0] == 400
    assert send("/orders", uuid4().hex, b"x" * (1024 * 1024 + 1))[0] == 413
    assert service.runs == 5
    key = uuid4().hex
    assert send("/orders", key, b"x" * 60_000)[0] == 201
    assert send("/orders", key, b"x" * 60_000)[0] == 409  # Its response is too long to be stored.
    assert service.runs == 6


def test_asgi() -> None:
    import httpx
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

    from oncegate.contrib.asgi import OnceMiddleware

    service = Service()

    async def endpoint(request: Any) -> Response:
        status, body = service.answer(request.url.path, await request.body())
        return Response(body, status, {"x-order": "7"})

    def principal(scope: Any) -> str:
        return dict(scope["headers"]).get(b"x-user", b"").decode()  # type: ignore[no-any-return]

    client = AsyncClient(*options())
    app = Starlette(routes=[Route("/{rest:path}", endpoint, methods=["POST", "GET"])])
    wrapped = OnceMiddleware(app, client, rules(principal))

    def send(path: str, key: str | None, body: bytes, user: str = "ann") -> tuple[int, dict[str, str], bytes]:
        async def run() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(wrapped), base_url="http://shop") as caller:
                headers = {"x-user": user} | ({"idempotency-key": key} if key else {})
                return await caller.post(path, headers=headers, content=body)

        response = asyncio.run(run())
        return response.status_code, dict(response.headers), response.content

    scenario(service, send)


def test_flask() -> None:
    import flask

    from oncegate.contrib.wsgi import OnceMiddleware

    service = Service()
    app = flask.Flask("shop")

    @app.post("/<path:rest>")
    def endpoint(rest: str) -> Any:
        status, body = service.answer(f"/{rest}", flask.request.get_data())
        return flask.Response(body, status, {"x-order": "7"})

    app.wsgi_app = OnceMiddleware(app.wsgi_app, Client(*options()), rules(lambda environ: environ.get("HTTP_X_USER")))  # type: ignore[method-assign]

    def send(path: str, key: str | None, body: bytes, user: str = "ann") -> tuple[int, dict[str, str], bytes]:
        headers = {"X-User": user} | ({"Idempotency-Key": key} if key else {})
        response = app.test_client().post(path, headers=headers, data=body)
        return response.status_code, {name.lower(): value for name, value in response.headers.items()}, response.data

    scenario(service, send)


def test_django() -> None:
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}, ALLOWED_HOSTS=["*"])
        django.setup()
    from django.http import HttpResponse
    from django.test import RequestFactory

    from oncegate.contrib.django import once_middleware

    service = Service()

    def view(request: Any) -> HttpResponse:
        status, body = service.answer(request.path, request.body)
        return HttpResponse(body, status=status, headers={"X-Order": "7"})

    middleware = once_middleware(view, Client(*options()), rules(lambda request: request.headers.get("X-User")))

    def send(path: str, key: str | None, body: bytes, user: str = "ann") -> tuple[int, dict[str, str], bytes]:
        headers = {"HTTP_X_USER": user} | ({"HTTP_IDEMPOTENCY_KEY": key} if key else {})
        response = middleware(RequestFactory().generic("POST", path, body, **headers))
        return response.status_code, {name.lower(): value for name, value in response.items()}, response.content

    scenario(service, send)


def test_an_error_of_the_application_is_raised_and_unknown() -> None:
    from oncegate.contrib.wsgi import OnceMiddleware

    service = Service()

    def app(environ: Any, start: Any) -> list[bytes]:
        status, body = service.answer(environ["PATH_INFO"], b"")
        start(f"{status} X", [])
        return [body]

    wrapped = OnceMiddleware(app, Client(*options()), rules(lambda _: "ann"))
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/crash", "HTTP_IDEMPOTENCY_KEY": uuid4().hex}
    statuses: list[str] = []

    def start(status: str, _: Any) -> None:
        statuses.append(status)

    import io

    with pytest.raises(RuntimeError, match="it crashed"):
        wrapped({**environ, "wsgi.input": io.BytesIO()}, start)
    wrapped({**environ, "wsgi.input": io.BytesIO()}, start)
    assert statuses == ["409 Conflict"]
    assert service.runs == 1


def test_celery() -> None:
    from celery import Celery

    from oncegate.contrib.celery import OnceTask, ParkedTask

    app = Celery("shop", broker="memory://", backend="cache+memory://")
    app.conf.task_always_eager = True
    app.conf.task_eager_propagates = False
    client = Client(*options())
    runs: list[str] = []
    operation = f"celery.{uuid4().hex}"
    tries: list[str] = []

    def contents(order: str) -> dict[str, str]:
        tries.append(order)
        if tries.count("A-2") == 6 and isinstance(grant, Grant):
            grant.succeed()
        return {"order": order}

    grant: Any = None
    base: dict[str, Any] = {"base": OnceTask, "client": client, "operation": operation, "contents": contents}

    @app.task(name="submit", redeliver_after=0.01, lease="5s", **base)  # type: ignore[untyped-decorator]
    def submit(order: str) -> str:
        runs.append(order)
        if order == "fails":
            raise NothingHappened("not now")
        if order == "crashes":
            raise RuntimeError("who knows")
        return f"placed {order}"

    assert submit.delay("A-1").get() == "placed A-1"
    assert submit.delay("A-1").get() is None
    assert runs == ["A-1"]
    failed = submit.delay("fails")
    assert isinstance(failed.result, ParkedTask)
    assert failed.result.why == "poison"
    assert runs.count("fails") == 3
    assert isinstance(submit.delay("crashes").result, ParkedTask)
    assert runs.count("crashes") == 1
    # In progress elsewhere: retried until it has ended, however often.
    grant = client.claim(operation, {"order": "A-2"}, lease="2s")
    assert submit("direct") == "placed direct"
    assert submit.delay("A-2").get() is None
    assert "A-2" not in runs
    assert tries.count("A-2") == 6

    @app.task(name="incomplete", base=OnceTask)  # type: ignore[untyped-decorator]
    def incomplete() -> None: ...

    assert isinstance(incomplete.delay().result, TypeError)
