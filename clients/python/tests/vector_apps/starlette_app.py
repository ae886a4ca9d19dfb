"""Starlette and FastAPI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from oncegate import current
from oncegate.contrib import starlette as contrib

from .steps import ATS, RUNS, Handler, StockError, async_client, error_of, rules

METHODS = ["GET", "HEAD", "OPTIONS", "QUERY", "POST", "PUT", "PATCH", "DELETE"]
LACKS = ["trailers", "behind", "late"]


async def handle(request: Request) -> Response:
    handler = Handler(request.headers)
    if handler.wants("form"):
        async with request.form() as form:
            fields = {name: value for name, value in form.items() if isinstance(value, str)}
            files = {name: len(await value.read()) for name, value in form.items() if not isinstance(value, str)}
        handler.parsed(fields=fields, files=files)
    else:
        handler.read(await request.body())
        if handler.wants("parsed"):
            handler.parsed(value=await request.json())
    try:
        for name, value in handler.each():
            await take(request, handler, name, value)
        return response_of(handler)
    except Exception:
        handler.run["ended"] = "raised"
        raise


async def take(request: Request, handler: Handler, name: str, value: Any) -> None:
    if name == "sleep":
        await asyncio.sleep(value / 1000)
    elif name == "poll":
        handler.run["gone"] = False
        for _ in range(value // 20):
            if await request.is_disconnected():
                handler.run["gone"] = True
                return
            await asyncio.sleep(0.02)
    elif name == "mark":
        grant = current()
        assert grant is not None
        grant.mark(value)
    elif value == "http":
        raise HTTPException(409, "sold out")
    else:
        raise error_of(value)


def response_of(handler: Handler) -> Response:
    answer, run = handler.answer, handler.run
    response: Response
    if answer.stream is not None:
        response = StreamingResponse(rows(handler), answer.status)
    else:
        run["ended"] = "returned"
        response = Response(answer.body or b"", answer.status)
    for name, value in answer.fields:
        if name.lower() in ("content-type", "content-length"):
            response.headers[name] = value
        else:
            response.headers.append(name, value)
    if answer.after is not None:
        response.background = BackgroundTask(later, run, answer.after, answer.fails)
    return response


async def later(run: dict[str, Any], seconds: float, fails: bool) -> None:
    await asyncio.sleep(seconds)
    run["after"] = "failed" if fails else "done"
    if fails:
        raise RuntimeError("the background work fails")


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


async def runs(request: Request) -> Response:
    return JSONResponse(RUNS.of(request.query_params["case"]))


async def out_of_stock(_: Request, __: Exception) -> Response:
    return PlainTextResponse("out of stock", 409)


def principal(request: Request) -> str | None:
    return request.headers.get("Vector-User")


def part(at: str, kind: type[Starlette], route: Any) -> Starlette:
    app = kind()
    route(app)
    app.add_exception_handler(StockError, out_of_stock)
    contrib.install(app, async_client(at), rules(at, principal))
    if at == "zip":
        app.add_middleware(GZipMiddleware, minimum_size=1)
    return app


def starlette() -> Starlette:
    def route(app: Starlette) -> None:
        app.router.routes.append(Route("/{path:path}", handle, methods=METHODS))

    return Starlette(routes=[Route("/runs", runs), *(Mount(f"/{at}", part(at, Starlette, route)) for at in ATS)])


def fastapi() -> Starlette:
    from fastapi import FastAPI

    def route(app: Any) -> None:
        app.add_api_route("/{path:path}", handle, methods=METHODS)

    app = FastAPI()
    app.add_route("/runs", runs)
    for at in ATS:
        app.mount(f"/{at}", part(at, FastAPI, route))
    return app
