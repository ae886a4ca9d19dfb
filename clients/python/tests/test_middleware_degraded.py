"""Claims that a gateway answers by its outage policy: callers learn of it, from each kind of server."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Generator, Iterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from oncegate.contrib import starlette as contrib
from oncegate.contrib.wsgi import OnceMiddleware
from oncegate.middleware import Rules, shared_keys
from oncegate.testing import MemoryGateway

RULES = Rules(operation="order.place", principal=shared_keys)
BODIES = ["whole", "stream", "none"]
#: Of a response: `Oncegate-Degraded` and `Idempotent-Replayed`.
Seen = tuple[Any, Any]


class Degraded(MemoryGateway):
    """Answers claims by an outage policy."""

    policy: str | None = None

    def call(self, method: str, path: str, body: str | None, authorization: str | None) -> Generator[float, None, Any]:
        answer: Any = yield from super().call(method, path, body, authorization)
        if path == "/v1/claims":
            answer[1]["degraded"] = self.policy
        return answer


def seen(fields: Any) -> Seen:
    return fields.get("oncegate-degraded"), fields.get("idempotent-replayed")


def rows() -> Iterator[str]:
    yield from ("do", "ne")


def starlette(gateway: MemoryGateway) -> Callable[[str], Seen]:
    async def answer(request: Request) -> Response:
        kind = request.path_params["kind"]
        if kind == "stream":
            return StreamingResponse(rows(), 201)
        return Response(status_code=204) if kind == "none" else PlainTextResponse("done", 201)

    app = Starlette(routes=[Route("/{kind}", answer, methods=["POST"])])
    contrib.install(app, gateway.async_client(), RULES)

    async def post(kind: str) -> Seen:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as caller:
            return seen((await caller.post(f"/{kind}", headers={"Idempotency-Key": "k"})).headers)

    return lambda kind: asyncio.run(post(kind))


def wsgi(gateway: MemoryGateway) -> Callable[[str], Seen]:
    def app(environ: dict[str, Any], start_response: Any) -> Any:
        kind = environ["PATH_INFO"].strip("/")
        start_response("204 No Content" if kind == "none" else "201 Created", [])
        return [] if kind == "none" else [b"done"] if kind == "whole" else (row.encode() for row in rows())

    once = OnceMiddleware(app, gateway.client(), RULES)

    def post(kind: str) -> Seen:
        heads: list[Any] = []
        given = {"REQUEST_METHOD": "POST", "PATH_INFO": f"/{kind}", "HTTP_IDEMPOTENCY_KEY": "k", "wsgi.input": io.BytesIO()}
        result = once(given, lambda status, fields, exc=None: heads.append(fields))
        list(result)
        getattr(result, "close", lambda: None)()
        return seen({name.lower(): value for name, value in heads[-1]})

    return post


def django(gateway: MemoryGateway) -> Callable[[str], Seen]:
    from django.http import HttpRequest, StreamingHttpResponse

    once_middleware, requests, _ = django_tools()

    def answer(request: HttpRequest) -> Any:
        kind = request.path.strip("/")
        return StreamingHttpResponse(rows()) if kind == "stream" else django_response(kind)

    once = once_middleware(answer, gateway.client(), RULES)

    def post(kind: str) -> Seen:
        response = once(requests.post(f"/{kind}", headers={"Idempotency-Key": "k"}))
        if response.streaming:
            list(response.streaming_content)
        return seen({name.lower(): value for name, value in response.items()})

    return post


def django_async(gateway: MemoryGateway) -> Callable[[str], Seen]:
    from django.http import HttpRequest, StreamingHttpResponse

    once_middleware, _, requests = django_tools()

    async def pieces() -> Any:
        for row in rows():
            yield row

    async def answer(request: HttpRequest) -> Any:
        kind = request.path.strip("/")
        return StreamingHttpResponse(pieces()) if kind == "stream" else django_response(kind)

    async def post(kind: str) -> Seen:
        once = once_middleware(answer, gateway.async_client(), RULES)
        response = await once(requests.post(f"/{kind}", headers={"Idempotency-Key": "k"}))
        if response.streaming:
            [piece async for piece in response.streaming_content]
        return seen({name.lower(): value for name, value in response.items()})

    return lambda kind: asyncio.run(post(kind))


def django_response(kind: str) -> Any:
    from django.http import HttpResponse

    return HttpResponse(status=204) if kind == "none" else HttpResponse("done", status=201)


def django_tools() -> tuple[Any, Any, Any]:
    """The middleware, and what makes blocking and asynchronous requests."""
    from django.conf import settings
    from django.test import AsyncRequestFactory, RequestFactory

    from oncegate.contrib.django import once_middleware

    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
    return once_middleware, RequestFactory(), AsyncRequestFactory()


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("policy", ["local", "fail_open"])
@pytest.mark.parametrize("serve", [starlette, wsgi, django, django_async])
def test_a_response_under_a_claim_of_an_outage_policy_says_so(serve: Any, policy: str, kind: str) -> None:
    gateway = Degraded()
    gateway.policy = policy
    post = serve(gateway)
    assert post(kind) == (policy, None)
    stored: Any = gateway.claims[0].result
    assert not [name for name, _ in stored["fields"] if name.startswith("oncegate-")]
    assert post(kind) == (policy, "true")
    gateway.policy = None
    assert post(kind) == (None, "true")
