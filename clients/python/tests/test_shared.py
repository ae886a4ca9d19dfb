"""Rules of all clients in the vectors that no other file shows."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

import pytest
from scripted import VECTORS

from oncegate import Client
from oncegate.testing import MemoryGateway

SHARED: dict[str, Any] = json.loads((VECTORS / "shared.json").read_text())


@pytest.mark.parametrize("vector", SHARED["disabled"], ids=json.dumps)
def test_the_environment_switches_clients_off(vector: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEGATE_DISABLED", vector["text"])
    if vector["disabled"] == "error":
        with pytest.raises(ValueError, match="ONCEGATE_DISABLED"):
            Client(["http://127.0.0.1:9"])
        return
    for enabled in (True, False):
        assert Client(["http://127.0.0.1:9"], enabled=enabled)._core.enabled == (enabled and not vector["disabled"])


def test_requests_are_counted_under_the_same_names(oncegate: MemoryGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    from flask import Flask

    from oncegate.contrib import flask as contrib

    answer: dict[str, Any] = {}
    scripted = _gateway(answer)
    results: list[str] = []
    monkeypatch.setattr("oncegate._telemetry.count_request", lambda _, result: results.append(result))
    operation = f"shared.{uuid4().hex}"

    def service(required: bool, observe: bool, urls: list[str] | None = None) -> Any:
        app = Flask("shop")
        app.route("/", methods=["GET", "POST", "PUT"])(lambda: "done")
        rules = contrib.Rules(operation=operation, principal=contrib.shared_keys, methods=["POST"], required=required, observe=observe)
        contrib.install(app, Client(urls, claim_within="1s"), rules)
        return app.test_client()

    services = {(required, observe): service(required, observe) for required in (True, False) for observe in (True, False)}
    url = f"http://127.0.0.1:{scripted.server_port}"
    other = service(False, False, [url])
    for vector in SHARED["counted"]:
        results.clear()
        headers = {} if vector["key"] is None else {"Idempotency-Key": vector["key"]}
        answer.update(vector.get("gateway", {}))
        site = other if "gateway" in vector else services[vector.get("required", False), vector.get("observe", False)]
        site.open("/", method=vector.get("method", "POST"), headers=headers)
        assert results == ([] if vector["result"] is None else [vector["result"]]), vector["name"]
    scripted.shutdown()
    scripted.server_close()


def test_a_gateway_that_is_back_after_an_unprotected_run_records_its_response() -> None:
    from flask import Flask

    from oncegate.contrib import flask as contrib

    gateway, runs, away = MemoryGateway(), [], ExitStack()
    app = Flask("shop")

    def place() -> str:
        runs.append(1)
        away.close()
        return "done"

    app.route("/", methods=["POST"])(place)
    client = gateway.client(claim_within="100ms", on_unavailable="proceed")
    contrib.install(app, client, contrib.Rules(operation="shop.place", principal=contrib.shared_keys, on_unavailable="proceed"))
    away.enter_context(gateway.unavailable())
    caller = app.test_client()
    first, second = (caller.post("/", headers={"Idempotency-Key": "k-1"}) for _ in range(2))
    assert (first.headers["Oncegate-Degraded"], second.headers.get("Idempotent-Replayed"), len(runs)) == ("caller", "true", 1)


def _gateway(answer: dict[str, Any]) -> ThreadingHTTPServer:
    """Gives this answer to each claim, and accepts each outcome."""

    class Gateway(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            released: dict[str, Any] = {"status": 200, "body": {"global_id": self.path.split("/")[-2], "state": "released"}}
            given = released if self.path.endswith("/outcome") else answer
            body = json.dumps(given["body"]).encode()
            self.send_response(given["status"])
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Gateway)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
