"""Quart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from quart import Quart, Response, abort, jsonify, request

from oncegate import current
from oncegate.contrib.asgi import OnceMiddleware

from .steps import ATS, RUNS, Handler, StockError, async_client, error_of, rules

METHODS = ["GET", "HEAD", "OPTIONS", "QUERY", "POST", "PUT", "PATCH", "DELETE"]
LACKS = ["trailers", "behind", "late", "compression", "background"]


async def handle(path: str) -> Any:
    handler = Handler(request.headers)
    if handler.wants("form"):
        files = {name: len(file.read()) for name, file in (await request.files).items()}
        handler.parsed(fields=(await request.form).to_dict(), files=files)
    else:
        handler.read(await request.get_data(as_text=False))  # type: ignore[arg-type]
        if handler.wants("parsed"):
            handler.parsed(value=await request.get_json())
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
        handler.run["gone"] = False  # Quart has no means to ask.
    elif name == "mark":
        assert grant is not None
        grant.mark(value)
    elif value == "http":
        abort(409, "sold out")
    else:
        raise error_of(value)


def response_of(handler: Handler) -> Response:
    answer = handler.answer
    if answer.stream is not None:
        response = Response(rows(handler), answer.status)
    else:
        handler.run["ended"] = "returned"
        response = Response(answer.body or b"", answer.status)
    if any(name.lower() == "content-type" for name, _ in answer.fields):
        del response.headers["Content-Type"]
    for name, value in answer.fields:
        response.headers.add(name, value)
    return response


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


async def out_of_stock(error: StockError) -> Any:
    grant = current()
    if grant is not None:
        grant.mark("failure")
    return "out of stock", 409


def quart() -> Any:
    app = Quart("vectors")
    app.config["RESPONSE_TIMEOUT"] = None
    app.add_url_rule("/<path:path>", view_func=handle, methods=METHODS, provide_automatic_options=False)
    app.add_url_rule("/runs", "runs", runs)
    app.register_error_handler(StockError, out_of_stock)
    plain = app.asgi_app
    parts = {at: OnceMiddleware(plain, async_client(at), rules(at, principal)) for at in ATS}

    async def choose(scope: Any, receive: Any, send: Any) -> None:
        await parts.get(scope.get("path", "/").split("/")[1], plain)(scope, receive, send)

    app.asgi_app = choose  # type: ignore[method-assign]
    return app


async def runs() -> Any:
    return jsonify(RUNS.of(request.args["case"]))


def principal(scope: Any) -> str | None:
    return next((value.decode() for name, value in scope["headers"] if name == b"vector-user"), None)
