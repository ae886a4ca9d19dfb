"""The middleware on threads and in Django: what the vectors leave out."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from flask import Flask, Request, Response, abort, jsonify, request, session

from oncegate import Client, Event, current
from oncegate.contrib import flask as contrib
from oncegate.contrib.wsgi import OnceMiddleware
from oncegate.middleware import Problem, Rules, shared_keys

pytestmark = pytest.mark.skipif("ONCEGATE_URL" not in os.environ, reason="no gateway: run it by scripts/with-gateway")


def rules(**options: Any) -> Rules:
    return Rules(**{"operation": f"http.{uuid4().hex}", "principal": shared_keys, "lease": "5s", **options})


def client(**options: Any) -> Client:
    return Client([os.environ["ONCEGATE_URL"]], os.environ["ONCEGATE_CREDENTIAL"], **options)


#: A request as a server makes it.
EMPTY: dict[str, Any] = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "HTTP_IDEMPOTENCY_KEY": "k", "wsgi.input": io.BytesIO()}


def call(app: Any, body: bytes = b"one", key: str | None = "k", **environ: Any) -> tuple[int, dict[str, str], bytes]:
    """One request as a server makes it; reads the response to its end."""
    seen: list[Any] = []
    given = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body)}
    given |= {} if key is None else {"HTTP_IDEMPOTENCY_KEY": key}
    result = app({**given, **environ}, lambda status, fields, exc=None: seen.append((status, fields)))
    try:
        content = b"".join(result)
    finally:
        getattr(result, "close", lambda: None)()
    status, fields = seen[-1]
    return int(status.split(" ")[0]), {name.lower(): value for name, value in fields}, content


class App:
    """A WSGI application in pieces."""

    def __init__(self, *pieces: bytes, fields: list[tuple[str, str]] | None = None, status: str = "201 Created"):
        self.pieces, self.fields, self.status = pieces or (b"done",), fields or [], status
        self.runs = self.closed = 0
        self.seen: dict[str, Any] = {}
        self.events: list[str] = []

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        self.runs += 1
        self.seen = dict(environ)
        start_response(self.status, self.fields)
        try:
            for piece in self.pieces:
                self.events.append("piece")
                yield piece
            self.events.append("end")
        finally:
            self.closed += 1


def test_a_body_is_given_again_and_hides_what_no_replay_could_fit() -> None:
    app = App()
    once = OnceMiddleware(app, client(), rules())
    hidden: dict[str, Any] = {"HTTP_ACCEPT_ENCODING": "gzip", "HTTP_RANGE": "bytes=0-1", "wsgi.file_wrapper": object, "HTTP_ACCEPT": "a/b"}
    assert call(once, b"body", **hidden)[0] == 201
    assert app.seen["wsgi.input"].read() == b"body"
    assert app.seen["CONTENT_LENGTH"] == "4"
    assert app.seen["HTTP_ACCEPT"] == "a/b"
    assert not {"HTTP_ACCEPT_ENCODING", "HTTP_RANGE", "wsgi.file_wrapper"} & app.seen.keys()
    assert call(once, b"body")[1]["idempotent-replayed"] == "true"
    assert app.closed == 1


class Chunked(io.BytesIO):
    def tell(self) -> int:
        raise OSError("a socket")


def test_bodies_that_cannot_be_seen_are_refused() -> None:
    app = App()
    once = OnceMiddleware(app, client(), rules(body_bytes=10))
    read = io.BytesIO(b"body")
    read.read()
    chunked: dict[str, Any] = {"CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked"}
    cases: list[tuple[dict[str, Any], int, str]] = [
        (chunked, 411, "length_required"),
        ({"wsgi.input": read}, 500, "body_not_seen"),
        ({"CONTENT_LENGTH": "9"}, 400, "invalid_request"),
        ({"CONTENT_LENGTH": "11"}, 413, "body_too_large"),
        ({**chunked, "wsgi.input_terminated": True, "wsgi.input": Chunked(b"x" * 11)}, 413, "body_too_large"),
        ({"HTTP_UPGRADE": "websocket"}, 501, "not_supported"),
    ]
    for environ, status, code in cases:
        answer = call(once, b"body", **environ)
        assert (answer[0], json.loads(answer[2])["code"]) == (status, code)
    assert app.runs == 0
    assert call(once, b"", **{**chunked, "wsgi.input_terminated": True, "wsgi.input": Chunked(b"x" * 10)})[0] == 201
    assert app.seen["CONTENT_LENGTH"] == "10"


def test_the_piece_that_completes_a_response_waits_for_the_report() -> None:
    for fields, pieces, waits in [([("Content-Length", "4")], (b"do", b"ne"), True), ([], (b"do", b"ne"), False)]:
        app, events = App(*pieces, fields=fields), list[str]()
        once = OnceMiddleware(app, client(on_event=lambda event, events=events: events.append(event.name)), rules())
        result = once(dict(EMPTY), lambda status, fields, exc=None: None)
        iterator = iter(result)
        next(iterator)
        assert "reported" not in events
        next(iterator)
        assert ("reported" in events) == waits
        assert list(iterator) == []
        assert "reported" in events
        result.close()  # type: ignore[attr-defined]
        assert app.closed == 1


def test_a_server_that_stops_to_pull_does_not_stop_the_run() -> None:
    app = App(b"a", b"b", b"c")
    once = OnceMiddleware(app, client(), rules())
    result: Any = once(dict(EMPTY), lambda *_: None)
    assert next(iter(result)) == b"a"
    result.close()
    assert (app.events, app.closed) == (["piece", "piece", "piece", "end"], 1)
    assert call(once, b"")[2] == b"abc"
    # With `stop_when_gone` it stops, and the outcome is unknown.
    app = App(b"a", b"b", b"c")
    once = OnceMiddleware(app, client(), rules(stop_when_gone=True))
    result = once(dict(EMPTY), lambda *_: None)
    assert next(iter(result)) == b"a"
    result.close()
    assert (app.events, app.closed) == (["piece"], 1)
    assert json.loads(call(once, b"")[2])["state"] == "unknown"


def test_the_older_way_to_write_a_response() -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        write = start_response("201 Created", [("Content-Type", "text/plain")])
        write(b"first ")
        return [b"second"]

    once = OnceMiddleware(app, client(), rules())
    written: list[bytes] = []
    result = once(dict(EMPTY), lambda status, fields, exc=None: written.append)
    assert (b"".join(result), written) == (b"second", [b"first "])
    assert call(once, b"")[2] == b"first second"


def test_the_older_way_to_write_continues_without_its_caller() -> None:
    written: list[bytes] = []

    def app(environ: Any, start_response: Any) -> list[bytes]:
        write = start_response("201 Created", [])
        for piece in (b"first ", b"second "):
            write(piece)
            written.append(piece)
        return [b"third"]

    def broken(piece: bytes) -> None:
        raise BrokenPipeError

    for stops, state in [(False, None), (True, "unknown")]:
        written.clear()
        once = OnceMiddleware(app, client(), rules(stop_when_gone=stops))
        try:
            result = once(dict(EMPTY), lambda status, fields, exc=None: broken)
            result.close()  # type: ignore[attr-defined]
        except BrokenPipeError:
            pass
        assert len(written) == (0 if stops else 2)
        again = call(once, b"")[2]
        assert again == b"first second third" if state is None else json.loads(again)["state"] == state


def test_a_body_of_another_length_than_declared_is_unknown() -> None:
    for length in ("2", "5"):
        once = OnceMiddleware(App(b"a", b"bc", fields=[("Content-Length", length)]), client(), rules())
        call(once)
        assert json.loads(call(once)[2])["state"] == "unknown"


def test_an_error_is_raised_and_unknown() -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        raise RuntimeError("it crashed")

    once = OnceMiddleware(app, client(), rules())
    with pytest.raises(RuntimeError, match="it crashed"):
        call(once)
    assert json.loads(call(once)[2])["state"] == "unknown"


def test_observed_requests_pass() -> None:
    app, events = App(), list[Event]()
    once = OnceMiddleware(app, client(on_event=events.append), rules(observe=True, required=True, body_bytes=5))
    for body, key in [(b"one", "k"), (b"one", "k"), (b"two", "k"), (b"one", None), (b"long body", "k")]:
        assert call(once, body, key)[1].get("idempotent-replayed") is None
        assert app.seen["wsgi.input"].read() == body
    chunked: dict[str, Any] = {
        "CONTENT_LENGTH": "",
        "HTTP_TRANSFER_ENCODING": "chunked",
        "wsgi.input_terminated": True,
        "wsgi.input": Chunked(b"x" * 11),
    }
    assert call(once, b"", "k", **chunked)[0] == 201
    assert app.seen["wsgi.input"].read() == b"x" * 11
    assert app.runs == 6
    assert [event.fields["would_be"] for event in events if event.name == "observed"] == [
        "duplicate",
        "mismatch",
        "idempotency_key_invalid",
        "body_too_large",
        "body_too_large",
    ]


def test_a_storm_of_clicks_is_one_run_on_flask() -> None:
    app, runs = Flask("shop"), []

    @app.post("/")
    def place() -> tuple[str, int]:
        grant = current()
        assert grant is not None
        runs.append(request.get_data())
        return f"run {len(runs)}", 201

    contrib.install(app, client(), rules(wait="10s", principal=lambda request: request.headers.get("X-User")))
    with pytest.raises(ValueError, match="install it once"):
        contrib.install(app, client(), rules())
    headers = {"Idempotency-Key": uuid4().hex, "X-User": "ann"}
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: app.test_client().post("/", data=b"one", headers=headers), range(12)))
    assert {(answer.status_code, answer.text) for answer in answers} == {(201, "run 1")}
    assert runs == [b"one"]
    assert current() is None


def test_errors_of_once_in_flask() -> None:
    app = Flask("shop")
    contrib.install_errors(app)

    @app.post("/<what>")
    def place(what: str) -> str:
        away = Client(["http://127.0.0.1:9"], claim_within=0.2)
        away.once("order.submit", {"price": 1.5} if what == "float" else {"order": 1}, lambda _: None)
        return "never"

    answers = [app.test_client().post(path) for path in ("/away", "/float")]
    assert [(answer.status_code, answer.get_json()["code"]) for answer in answers] == [
        (503, "store_unavailable"),
        (422, "contents_not_canonical"),
    ]


def test_refusals_as_a_flask_service_wants_them() -> None:
    app = Flask("shop")
    app.post("/")(lambda: "done")

    def render(problem: Problem) -> Any:
        return app.response_class(problem.code, problem.status)

    contrib.install(app, client(), rules(required=True, render=render))
    answer = app.test_client().post("/")
    assert (answer.status_code, answer.text) == (400, "idempotency_key_invalid")


def test_rules_of_flask_are_asked_in_the_context_of_the_request() -> None:
    app, runs = Flask("shop"), []
    app.secret_key = "secret"

    @app.post("/login")
    def login() -> str:
        session["user"] = "ann"
        return "in"

    @app.post("/orders")
    def orders() -> str:
        runs.append("order")
        return f"run {len(runs)}"

    @app.errorhandler(401)
    def unauthorized(_: Any) -> tuple[str, int]:
        return "log in first", 401

    @app.after_request
    def share(response: Response) -> Response:
        response.headers["Access-Control-Allow-Origin"] = "https://shop.example"
        return response

    def principal(_: Request) -> Any:
        return session.get("user") or abort(401)

    contrib.install(
        app,
        client(),
        rules(principal=principal, when=lambda asked: asked.endpoint == "orders", render=lambda problem: jsonify(problem.document)),
    )
    browser, headers = app.test_client(), {"Idempotency-Key": uuid4().hex}
    stranger = browser.post("/orders", headers=headers)
    assert (stranger.status_code, stranger.text, stranger.headers["Access-Control-Allow-Origin"]) == (
        401,
        "log in first",
        "https://shop.example",
    )
    assert browser.post("/login", headers=headers).text == "in"
    assert [browser.post("/orders", headers=headers).text for _ in range(2)] == ["run 1", "run 1"]
    # A browser reads a refusal of another origin too, only with the fields of `after_request`.
    other = browser.post("/orders", headers=headers, data=b"another")
    assert (other.get_json()["code"], other.headers["Access-Control-Allow-Origin"]) == ("fingerprint_mismatch", "https://shop.example")


def test_threads_do_not_share_a_grant() -> None:
    seen: set[int] = set()
    barrier = threading.Barrier(4)

    def app(environ: Any, start_response: Any) -> list[bytes]:
        barrier.wait(10)
        seen.add(id(current()))
        start_response("201 Created", [])
        return [b"done"]

    once = OnceMiddleware(app, client(), rules())
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: call(once, key=f"k-{number}"), range(4)))
    assert len(seen) == 4
