"""One key for each operation: through a network that loses replies, at the middleware and at the gateway's proxy."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
from scripted import VECTORS
from servers import free_port, listens, until
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from test_middleware import client, rules, serving

from oncegate.contrib import starlette as contrib
from oncegate.contrib.httpx import AsyncIdempotencyTransport, IdempotencyTransport
from oncegate.contrib.requests import IdempotencyAdapter
from oncegate.sending import WITHIN, SendingRules, retry_after

needs_gateway = pytest.mark.skipif("ONCEGATE_URL" not in os.environ, reason="no gateway: run it by scripts/with-gateway")

Post = Callable[..., tuple[int, str, dict[str, str]]]


class Relay:
    """Passes connections on, and loses the replies of the first ones."""

    def __init__(self, url: str, losses: int):
        self._target = ("127.0.0.1", int(url.rpartition(":")[2]))
        self._losses = losses
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                loses, self._losses = self._losses > 0, self._losses - 1
                threading.Thread(target=self._relay, args=(connection, loses), daemon=True).start()

    def _relay(self, connection: socket.socket, loses: bool) -> None:
        with connection, socket.create_connection(self._target) as onward:

            def back() -> None:
                with contextlib.suppress(OSError):
                    while data := onward.recv(65536):
                        if loses:
                            break
                        connection.sendall(data)
                    connection.shutdown(socket.SHUT_RDWR)

            thread = threading.Thread(target=back, daemon=True)
            thread.start()
            with contextlib.suppress(OSError):
                while data := connection.recv(65536):
                    onward.sendall(data)
            thread.join(10)


def with_requests(within: float = 20.0) -> Post:
    session = requests.Session()
    session.mount("http://", IdempotencyAdapter(within=within))

    def post(url: str, body: Any = b"one", **headers: str) -> tuple[int, str, dict[str, str]]:
        answer = session.post(url, data=body, headers=headers, timeout=10)
        return answer.status_code, answer.text, dict(answer.headers)

    return post


def with_httpx(within: float = 20.0) -> Post:
    def post(url: str, body: Any = b"one", **headers: str) -> tuple[int, str, dict[str, str]]:
        with httpx.Client(transport=IdempotencyTransport(within=within), timeout=10) as sender:
            answer = sender.post(url, content=body, headers=headers)
        return answer.status_code, answer.text, dict(answer.headers)

    return post


def with_async_httpx(within: float = 20.0) -> Post:
    async def send(url: str, body: Any, headers: dict[str, str]) -> tuple[int, str, dict[str, str]]:
        async with httpx.AsyncClient(transport=AsyncIdempotencyTransport(within=within), timeout=10) as sender:
            answer = await sender.post(url, content=body, headers=headers)
        return answer.status_code, answer.text, dict(answer.headers)

    def post(url: str, body: Any = b"one", **headers: str) -> tuple[int, str, dict[str, str]]:
        return asyncio.run(send(url, body, headers))

    return post


SENDERS = [with_requests, with_httpx, with_async_httpx]


class Service:
    """Counts its runs and their keys; gives the answers of `answers` first."""

    def __init__(self) -> None:
        self.keys: list[str | None] = []
        self.bodies: list[bytes] = []
        self.answers: list[Response] = []

    async def handle(self, request: Request) -> Response:
        self.keys.append(request.headers.get("idempotency-key"))
        self.bodies.append(await request.body())
        if self.answers:
            return self.answers.pop(0)
        return PlainTextResponse(f"run {len(self.keys)}", 201)

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/{path:path}", self.handle, methods=["GET", "POST"])])


@contextmanager
def proxy(upstream: str, folder: Path) -> Iterator[str]:
    """The gateway's own proxy before a service."""
    port, api, admin = free_port(), free_port(), free_port()
    folder.joinpath("oncegate.toml").write_text(
        f'[server]\nallow_open = true\n[proxy]\nlisten = "127.0.0.1:{port}"\n[proxy.upstreams.service]\nurls = ["{upstream}"]\n'
        '[[proxy.routes]]\nname = "orders"\napp = "default"\npath = "/{*rest}"\nmethods = ["POST"]\nupstream = "service"\n'
        'principal = ["user"]\n'
    )
    command = [os.environ["ONCEGATE_BIN"], "serve", "--config", "oncegate.toml", "--engine", "memory:", "--data-dir", str(folder)]
    command += ["--listen", f"127.0.0.1:{api}", "--admin-listen", f"127.0.0.1:{admin}"]
    with folder.joinpath("log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        until("the proxy listens", lambda: listens(port), 60)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


@needs_gateway
@pytest.mark.parametrize("sender", SENDERS)
@pytest.mark.parametrize("by", ["middleware", "proxy"])
def test_lost_replies_have_one_effect(sender: Callable[..., Post], by: str, tmp_path: Path) -> None:
    service = Service()
    app = service.app()
    if by == "middleware":
        contrib.install(app, client(), rules(required=True))
    with serving(app) as server, proxy(server.url, tmp_path) if by == "proxy" else contextlib.nullcontext(server.url) as url:
        status, text, headers = sender()(Relay(url, losses=2).url + "/orders", user="ann")
        assert (status, text) == (201, "run 1")
        assert headers["idempotent-replayed" if "idempotent-replayed" in headers else "Idempotent-Replayed"] == "true"
        assert len(service.keys) == 1
        # The next operation has another key.
        assert sender()(url + "/orders", user="ann")[1] == "run 2"
        assert len(set(service.keys)) == 2


@pytest.mark.parametrize("sender", SENDERS)
def test_what_is_repeated_and_what_is_not(sender: Callable[..., Post]) -> None:
    vectors = json.loads((VECTORS / "shared.json").read_text())["sending"]
    assert vectors["within_s"] == WITHIN
    service = Service()
    with serving(service.app()) as server:
        for vector in vectors["answers"]:
            headers = {"Retry-After": vector["retry_after"]} if "retry_after" in vector else {}
            answer = Response(vector.get("body", ""), vector["status"], headers)
            service.answers, service.keys = [answer, answer] if vector["repeated"] else [answer], []
            status, text, _ = sender()(server.url)
            assert len(service.keys) == (3 if vector["repeated"] else 1), vector
            assert len(set(service.keys)) == 1
            if not vector["repeated"]:
                assert (status, text) == (vector["status"], vector.get("body", ""))
        # A date that is over asks for nothing.
        service.answers, service.keys = [Response("", 429, {"Retry-After": formatdate(usegmt=True)})], []
        assert sender()(server.url)[0] == 201
        # Its own key stays; the time of all tries is bounded.
        service.answers, service.keys = [Response("", 503, {"Retry-After": "100"})], []
        assert sender(1.0)(server.url, **{"Idempotency-Key": "mine"})[0] == 503
        assert service.keys == ["mine"]


@pytest.mark.parametrize(("sender", "body"), [(with_requests, "file"), (with_requests, "generator"), (with_httpx, "generator")])
def test_a_body_that_can_be_read_once_is_kept_for_repeats(sender: Callable[..., Post], body: str) -> None:
    service = Service()
    service.answers = [Response("", 502)]
    with serving(service.app()) as server:
        given: Any = io.BytesIO(b"abc" * 1000) if body == "file" else (b"abc" for _ in range(1000))
        assert sender()(server.url, given)[0] == 201
        assert service.bodies == [b"abc" * 1000] * 2
        with pytest.raises(ValueError, match="larger body_bytes"):
            sender()(server.url, (b"x" * 65536 for _ in range(100)))


def test_a_safe_method_has_no_key_and_a_wrong_option_fails() -> None:
    service = Service()
    with serving(service.app()) as server:
        with httpx.Client(transport=IdempotencyTransport()) as sender:
            sender.get(server.url)
        session = requests.Session()
        session.mount("http://", IdempotencyAdapter())
        session.get(server.url)
    assert service.keys == [None, None]
    with pytest.raises(ValueError, match="within is a number"):
        SendingRules.of(0, 1)
    with pytest.raises(ValueError, match="body_bytes is"):
        SendingRules.of(1, 0)
    assert retry_after("soon") is None
