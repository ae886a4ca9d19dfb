"""Spans and metrics of OpenTelemetry, and the trace that is passed on."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from scripted import Script

from oncegate import AsyncClient, Client, current
from oncegate.testing import MemoryGateway

EXPORTER, READER = InMemorySpanExporter(), InMemoryMetricReader()


@pytest.fixture(autouse=True, scope="module")
def provider() -> None:
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(MeterProvider([READER]))


@pytest.fixture(autouse=True)
def exported() -> None:
    EXPORTER.clear()


def spans() -> list[tuple[str, Any]]:
    return [(span.name, dict(span.attributes or {})) for span in EXPORTER.get_finished_spans()]


def counted(name: str) -> dict[tuple[Any, ...], int]:
    data = READER.get_metrics_data()
    points: dict[tuple[Any, ...], int] = {}
    for resource in data.resource_metrics if data else []:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                if metric.name == name:
                    for point in metric.data.data_points:
                        points[tuple(sorted(dict(point.attributes or {}).items()))] = point.value  # type: ignore[union-attr, assignment]
    return points


def expected(operation: str) -> list[tuple[str, Any]]:
    named = {"oncegate.operation": operation}
    return [
        ("oncegate claim", {**named, "oncegate.state": "granted", "oncegate.replayed": False}),
        ("oncegate run", named),
        ("oncegate outcome", {**named, "oncegate.state": "succeeded", "oncegate.replayed": False}),
        ("oncegate claim", {**named, "oncegate.state": "succeeded", "oncegate.replayed": True}),
    ]


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_spans_of_once(kind: str, oncegate: MemoryGateway) -> None:
    operation = f"telemetry.{uuid4().hex}"

    def work(_: Any) -> Any:
        return trace.get_current_span().get_span_context().span_id

    async def asynchronous() -> list[Any]:
        async def of_the_grant(grant: Any) -> Any:
            return work(grant)

        return [await AsyncClient().once(operation, "A-1", of_the_grant) for _ in range(2)]

    answers = [Client().once(operation, "A-1", work) for _ in range(2)] if kind == "blocking" else asyncio.run(asynchronous())
    assert spans() == expected(operation)
    # The work runs within its span.
    run = EXPORTER.get_finished_spans()[1]
    assert run.context is not None
    assert answers[0].value() == run.context.span_id
    events = {dict(key)["name"]: value for key, value in counted("oncegate.client.events").items() if dict(key)["operation"] == operation}
    assert events == {"granted": 1, "reported": 1, "duplicate": 1}


def test_an_error_is_noted_by_its_type_alone(oncegate: MemoryGateway) -> None:
    def work(_: Any) -> None:
        raise RuntimeError("a secret")

    with pytest.raises(RuntimeError):
        Client().once("telemetry.fails", "A-1", work)
    run = EXPORTER.get_finished_spans()[1]
    assert (run.status.description, run.events) == ("RuntimeError", ())


def test_the_trace_is_passed_on() -> None:
    script = Script({"exchanges": [{"expect": {}, "answer": "duplicate_unknown"}]}, ["script"])
    seen: list[dict[str, Any]] = []
    script._differs = lambda expected, request: seen.append(request["headers"])  # type: ignore[method-assign]
    with trace.get_tracer("test").start_as_current_span("request") as outer:
        Client(script.urls, "shop.c2VjcmV0X29mX3RoZV92ZWN0b3Jz").once("order.submit", {"order_id": "A-1001"}, lambda _: 1)
    script.close()
    claim = EXPORTER.get_finished_spans()[0]
    assert claim.context is not None
    assert seen[0]["traceparent"].startswith(f"00-{outer.get_span_context().trace_id:032x}-{claim.context.span_id:016x}-")


@pytest.mark.parametrize("framework", ["starlette", "flask"])
def test_requests_are_traced_and_counted(framework: str, oncegate: MemoryGateway) -> None:
    operation = f"telemetry.{uuid4().hex}"
    traces: list[int] = []

    def body() -> str:
        grant = current()
        assert grant is not None
        traces.append(trace.get_current_span().get_span_context().trace_id)
        return "done"

    send = (starlette if framework == "starlette" else flask)(operation, body)
    with trace.get_tracer("test").start_as_current_span("request") as outer:
        for key, content in [("k-1", b"1"), ("k-1", b"1"), ("k-1", b"2"), (None, b"1"), ("a b", b"1")]:
            send(key, content)
        with oncegate.unavailable():
            send("k-2", b"1")
    names = [name for name, attributes in spans() if attributes.get("oncegate.operation") == operation]
    assert names.count("oncegate run") == 1
    assert names.count("oncegate claim") == 4
    if framework == "flask":
        assert traces == [outer.get_span_context().trace_id]
    results = {dict(key)["result"]: value for key, value in counted("oncegate.requests").items() if dict(key)["operation"] == operation}
    assert results == {"forwarded": 1, "replayed": 1, "mismatch": 1, "no_key": 1, "refused": 1, "unavailable": 1}


def starlette(operation: str, body: Any) -> Any:
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route
    from starlette.testclient import TestClient

    from oncegate.contrib import starlette as contrib

    async def handle(_: Any) -> PlainTextResponse:
        return PlainTextResponse(body())

    app = Starlette(routes=[Route("/", handle, methods=["POST"])])
    contrib.install(app, AsyncClient(), options(contrib.Rules, operation, contrib.shared_keys))
    service = TestClient(app)
    return lambda key, content: service.post("/", content=content, headers={} if key is None else {"Idempotency-Key": key})


def flask(operation: str, body: Any) -> Any:
    from flask import Flask

    from oncegate.contrib import flask as contrib

    app = Flask("shop")
    app.post("/")(body)
    contrib.install(app, Client(), options(contrib.Rules, operation, contrib.shared_keys))
    service = app.test_client()
    return lambda key, content: service.post("/", data=content, headers={} if key is None else {"Idempotency-Key": key})


def options(rules: Any, operation: str, principal: Any) -> Any:
    return rules(operation=operation, principal=principal, required=True, claim_within=0.3)
