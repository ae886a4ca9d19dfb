"""Rules of all clients in the vectors that no other file shows."""

from __future__ import annotations

import json
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

    results: list[str] = []
    monkeypatch.setattr("oncegate._telemetry.count_request", lambda _, result: results.append(result))
    operation = f"shared.{uuid4().hex}"

    def service(required: bool, observe: bool) -> Any:
        app = Flask("shop")
        app.route("/", methods=["GET", "POST", "PUT"])(lambda: "done")
        rules = contrib.Rules(operation=operation, principal=contrib.shared_keys, methods=["POST"], required=required, observe=observe)
        contrib.install(app, Client(), rules)
        return app.test_client()

    services = {(required, observe): service(required, observe) for required in (True, False) for observe in (True, False)}
    for vector in SHARED["counted"]:
        results.clear()
        headers = {} if vector["key"] is None else {"Idempotency-Key": vector["key"]}
        services[vector.get("required", False), vector.get("observe", False)].open(
            "/", method=vector.get("method", "POST"), headers=headers
        )
        assert results == ([] if vector["result"] is None else [vector["result"]]), vector["name"]
