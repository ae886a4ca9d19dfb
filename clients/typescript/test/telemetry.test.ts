/** Spans and metrics where the API of OpenTelemetry is installed. */

import assert from "node:assert/strict";
import http from "node:http";

import { metrics, trace } from "@opentelemetry/api";
import {
  AggregationTemporality,
  InMemoryMetricExporter,
  MeterProvider,
  PeriodicExportingMetricReader,
} from "@opentelemetry/sdk-metrics";
import { InMemorySpanExporter, NodeTracerProvider, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-node";
import express from "express";
import { afterAll, test } from "vitest";

import { idempotent } from "../src/express.js";
import { MemoryGateway } from "../src/testing.js";
import { listening } from "./frameworks.js";
import type { Any } from "./gateway.js";

const spans = new InMemorySpanExporter();
const provider = new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(spans)] });
provider.register();
const exporter = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE);
const reader = new PeriodicExportingMetricReader({ exporter, exportIntervalMillis: 3_600_000 });
metrics.setGlobalMeterProvider(new MeterProvider({ readers: [reader] }));
afterAll(async () => {
  await provider.shutdown();
  await reader.shutdown();
});

/** The traceparents of the calls that reach the gateway. */
function watched(gateway: MemoryGateway, options: Any = {}): { client: Any; sent: (string | undefined)[] } {
  const client: Any = gateway.client(options);
  const sent: (string | undefined)[] = [];
  const [server] = client.transport.servers;
  const call = server.call.bind(server);
  server.call = (request: Any) => {
    const at = request.headers.indexOf("traceparent");
    sent.push(at < 0 ? undefined : request.headers[at + 1]);
    return call(request);
  };
  return { client, sent };
}

const seen = () => spans.getFinishedSpans().map(({ name, kind, attributes }) => ({ name, kind, ...attributes }));
const idOf = (name: string) => spans.getFinishedSpans().find((span) => span.name === name) as Any;

test("once has spans for its calls and its work, and sends their context on", async () => {
  spans.reset();
  const { client, sent } = watched(new MemoryGateway());
  await trace.getTracer("test").startActiveSpan("request", async (span) => {
    await client.once("order.place", { cart_id: "C-secret" }, () => {
      trace.getTracer("test").startSpan("insert").end();
    });
    span.end();
  });
  const operation = { "oncegate.operation": "order.place" };
  assert.deepEqual(seen(), [
    { name: "oncegate claim", kind: 2, ...operation, "oncegate.state": "in_progress" },
    { name: "insert", kind: 0 },
    { name: "oncegate run", kind: 0, ...operation },
    { name: "oncegate outcome", kind: 2, ...operation, "oncegate.outcome": "success", "oncegate.state": "succeeded" },
    { name: "request", kind: 0 },
  ]);
  assert.equal(idOf("insert").parentSpanContext.spanId, idOf("oncegate run").spanContext().spanId);
  const parents = ["oncegate claim", "oncegate outcome"].map((name) => {
    const { traceId, spanId } = idOf(name).spanContext();
    return `00-${traceId}-${spanId}-01`;
  });
  assert.deepEqual(sent, parents);
  assert.ok(!JSON.stringify(seen()).includes("secret"));
});

test("an error of the work is one of its span", async () => {
  spans.reset();
  const { client } = watched(new MemoryGateway());
  await client.once("order.place", { cart_id: "1" }, () => Promise.reject(new Error("no stock"))).catch(() => {});
  const { status, events } = idOf("oncegate run");
  assert.deepEqual([status.code, events[0].name], [2, "exception"]);
});

test("a caller's own traceparent comes first", async () => {
  const own = `00-${"a".repeat(32)}-${"b".repeat(16)}-01`;
  const { client, sent } = watched(new MemoryGateway(), { traceparent: () => own });
  await client.claim("order.place", { cart_id: "1" });
  assert.deepEqual(sent, [own]);
});

test("a handler runs in its span, and requests are counted by their result", async () => {
  spans.reset();
  let inside: Any;
  const app = express().post(
    "/orders",
    idempotent({ client: new MemoryGateway().client(), operation: "order.put", sharedKeys: true }),
    (_request, response) => {
      inside = trace.getActiveSpan()?.spanContext().spanId;
      response.status(201).send("done");
    },
  );
  const { url, close } = await listening(http.createServer(app));
  const post = () => fetch(`${url}/orders`, { method: "POST", body: "one", headers: { "idempotency-key": "k-secret" } });
  await (await post()).text();
  await (await post()).text();
  await close();
  assert.equal(idOf("oncegate run").spanContext().spanId, inside);
  assert.deepEqual(idOf("oncegate run").attributes, {
    "oncegate.operation": "order.put",
    "oncegate.replayed": false,
    "oncegate.state": "succeeded",
  });
  await reader.forceFlush();
  const points = exporter
    .getMetrics()
    .at(-1)
    ?.scopeMetrics.flatMap(({ metrics }) => metrics)
    .find(({ descriptor }) => descriptor.name === "oncegate.requests")
    ?.dataPoints.filter(({ attributes }) => attributes["oncegate.operation"] === "order.put")
    .map(({ attributes, value }) => [attributes["oncegate.result"], value]);
  assert.deepEqual(points, [
    ["forwarded", 1],
    ["replayed", 1],
  ]);
  assert.ok(!JSON.stringify(seen()).includes("k-secret"));
});
