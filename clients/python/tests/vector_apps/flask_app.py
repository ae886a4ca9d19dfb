"""Flask."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from flask import Flask, Response, abort, jsonify, request
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.wrappers import Request

from oncegate import current
from oncegate.contrib import flask as contrib

from .steps import ATS, RUNS, Handler, StockError, client, error_of, rules

METHODS = ["GET", "HEAD", "OPTIONS", "QUERY", "POST", "PUT", "PATCH", "DELETE"]
LACKS = ["trailers", "compression", "gone"]


def handle(path: str = "") -> Any:
    handler = Handler(request.headers)
    if handler.wants("form"):
        files = {name: len(value.read()) for name, value in request.files.items()}
        handler.parsed(fields=request.form.to_dict(), files=files)
    else:
        handler.read(request.get_data())
        if handler.wants("parsed"):
            handler.parsed(value=request.get_json())
    try:
        for name, value in handler.each():
            take(handler, name, value)
        return response_of(handler)
    except Exception:
        handler.run["ended"] = "raised"
        raise


def take(handler: Handler, name: str, value: Any) -> None:
    if name == "sleep":
        time.sleep(value / 1000)
    elif name == "poll":
        # Flask has no means to ask.
        time.sleep(value / 1000)
        handler.run["gone"] = False
    elif name == "mark":
        grant = current()
        assert grant is not None
        grant.mark(value)
    elif value == "http":
        abort(409, "sold out")
    else:
        raise error_of(value)


def response_of(handler: Handler) -> Response:
    answer, run = handler.answer, handler.run
    if answer.stream is not None:
        response = Response(rows(handler), answer.status)
    else:
        run["ended"] = "returned"
        response = Response(answer.body or b"", answer.status)
    if any(name.lower() == "content-type" for name, _ in answer.fields):
        del response.headers["Content-Type"]
    for name, value in answer.fields:
        response.headers.add(name, value)
    if answer.after is not None:
        seconds = answer.after
        response.call_on_close(lambda: later(run, seconds, answer.fails))
    return response


def later(run: dict[str, Any], seconds: float, fails: bool) -> None:
    time.sleep(seconds)
    run["after"] = "failed" if fails else "done"
    if fails:
        raise RuntimeError("the background work fails")


def rows(handler: Handler) -> Iterator[bytes]:
    stream = handler.answer.stream
    assert stream is not None
    try:
        for number, row in enumerate(stream.rows):
            if number == stream.break_after:
                raise RuntimeError("broken off")
            yield row
            time.sleep(stream.every)
        handler.run["ended"] = "returned"
    except Exception:
        handler.run["ended"] = "raised"
        raise


def part(at: str) -> Flask:
    app = Flask(at)
    app.add_url_rule("/<path:path>", view_func=handle, methods=METHODS, provide_automatic_options=False)
    app.register_error_handler(StockError, lambda _: ("out of stock", 409))
    contrib.install(app, client(at), rules(at, lambda request: request.headers.get("Vector-User")))
    return app


def flask() -> Any:
    root = Flask("root")
    root.add_url_rule("/runs", view_func=lambda: jsonify(RUNS.of(request.args["case"])))
    mounts: dict[str, Any] = {f"/{at}": part(at) for at in ATS}
    mounts["/behind"] = reads_the_form(mounts["/behind"])
    return DispatcherMiddleware(root, mounts)


def reads_the_form(app: Any) -> Any:
    """A layer that has parsed the form before the application does."""

    def layer(environ: dict[str, Any], start_response: Any) -> Any:
        Request(environ).form.to_dict()
        return app(environ, start_response)

    return layer
