"""Litestar."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from litestar import Litestar, Request, Response, Router, get, route
from litestar.exceptions import HTTPException
from litestar.middleware import DefineMiddleware
from litestar.response import Stream
from litestar.response.base import ASGIResponse

from oncegate import current
from oncegate.contrib.asgi import OnceMiddleware

from .steps import ATS, RUNS, Handler, StockError, async_client, error_of, rules

LACKS = ["trailers", "behind", "late", "gone", "compression", "background", "surplus"]


async def handle(request: Request[Any, Any, Any]) -> Any:
    handler = Handler(request.headers)
    if handler.wants("form"):
        form = await request.form()
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
        files = {name: len(await value.read()) for name, value in form.items() if not isinstance(value, str)}
        handler.parsed(fields=fields, files=files)
    else:
        handler.read(await request.body())
        if handler.wants("parsed"):
            handler.parsed(value=await request.json())
    try:
        for name, value in handler.each():
            await take(handler, name, value)
        return response_of(handler)
    except Exception:
        handler.run["ended"] = "raised"
        raise


async def take(handler: Handler, name: str, value: Any) -> None:
    grant = current()
    if name == "sleep":
        await asyncio.sleep(value / 1000)
    elif name == "poll":
        await asyncio.sleep(value / 1000)
        handler.run["gone"] = False  # Litestar has no means to ask.
    elif name == "mark":
        assert grant is not None
        grant.mark(value)
    elif value == "http":
        raise HTTPException("sold out", status_code=409)
    else:
        raise error_of(value)


def response_of(handler: Handler) -> Any:
    answer = handler.answer
    if answer.stream is not None:
        return Stream(rows(handler), status_code=answer.status, headers=dict(answer.fields))
    handler.run["ended"] = "returned"
    if len({name for name, _ in answer.fields}) < len(answer.fields):
        return Repeated(answer.status, answer.fields, answer.body or b"")
    headers = {name: value for name, value in answer.fields if name.lower() != "content-type"}
    kind = next((value for name, value in answer.fields if name.lower() == "content-type"), "text/plain")
    return Response(answer.body or (None if answer.body is None else b""), status_code=answer.status, headers=headers, media_type=kind)


class Repeated(Response[bytes]):
    """A response whose fields repeat, which those of Litestar cannot."""

    def __init__(self, status: int, fields: list[tuple[str, str]], body: bytes):
        super().__init__(body, status_code=status)
        self._encoded = [(name.lower().encode(), value.encode()) for name, value in fields]

    def to_asgi_response(self, *_: Any, **__: Any) -> ASGIResponse:
        return ASGIResponse(body=self.content, status_code=self.status_code or 201, encoded_headers=self._encoded)


async def rows(handler: Handler) -> AsyncIterator[bytes]:
    stream = handler.answer.stream
    assert stream is not None
    try:
        for number, row in enumerate(stream.rows):
            if number == stream.break_after:
                raise RuntimeError("broken off")
            yield row
            await asyncio.sleep(stream.every)
        handler.run["ended"] = "returned"
    except Exception:
        handler.run["ended"] = "raised"
        raise


def out_of_stock(_: Any, __: Exception) -> Response[str]:
    grant = current()
    if grant is not None:
        grant.mark("failure")
    return Response("out of stock", status_code=409, media_type="text/plain")


@get("/runs")
async def runs(case: str) -> Any:
    return RUNS.of(case)


def principal(scope: Any) -> str | None:
    return next((value.decode() for name, value in scope["headers"] if name == b"vector-user"), None)


def litestar() -> Any:
    methods: Any = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
    parts = []
    for at in ATS:

        @route("/{rest:path}", http_method=methods, status_code=201)
        async def handler(request: Request[Any, Any, Any], rest: str) -> Any:
            return await handle(request)

        middleware = DefineMiddleware(OnceMiddleware, client=async_client(at), rules=rules(at, principal))
        parts.append(Router(f"/{at}", route_handlers=[handler], middleware=[middleware]))
    return Litestar([runs, *parts], exception_handlers={StockError: out_of_stock})
