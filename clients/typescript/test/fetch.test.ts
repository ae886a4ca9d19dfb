/** The sender of keys, against the middleware, the proxy of a real gateway, and networks that lose what they carry. */

import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import http from "node:http";
import { type AddressInfo, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";

import express from "express";
import { afterEach, describe, test } from "vitest";

import { idempotent } from "../src/express.js";
import { idempotentFetch, operation, WITHIN_MS } from "../src/fetch.js";
import { MemoryGateway } from "../src/testing.js";
import { allOf, listening } from "./frameworks.js";
import type { Any } from "./gateway.js";

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

type Lose = (count: number, response: http.ServerResponse) => boolean;

/** A server that keeps its requests; `lose` may take a request before the handler, or its reply. */
async function serve(handler: http.RequestListener, lose: Lose = () => false) {
  const seen: { key: unknown; type: unknown; body: string }[] = [];
  const { url, close } = await listening(
    http.createServer(async (request, response) => {
      const body = await allOf(request);
      seen.push({ key: request.headers["idempotency-key"], type: request.headers["content-type"], body: body.toString() });
      if (!lose(seen.length, response)) handler(request, response);
    }),
  );
  closing.push(close);
  return { url, seen };
}

const answer = (status: number, headers: Any = {}, body: Any = "") =>
  ((_request, response) =>
    response.writeHead(status, headers).end(typeof body === "string" ? body : JSON.stringify(body))) as http.RequestListener;
const problem = { "content-type": "application/problem+json" };

test("all tries carry one key and the same bytes, forms too", async () => {
  const { url, seen } = await serve(answer(201), (count, response) => {
    if (count === 1) response.destroy();
    if (count === 2) response.writeHead(503).end();
    return count < 3;
  });
  const body = new FormData();
  body.set("note", "hi");
  const response = await idempotentFetch()(`${url}/orders`, { method: "POST", body });
  assert.equal(response.status, 201);
  const [first] = seen;
  assert.match(String(first?.key), /^[0-9a-f-]{36}$/);
  assert.match(String(first?.type), /^multipart\/form-data; boundary=/);
  assert.deepEqual(seen, [first, first, first]);
});

test("a body without bytes is sent, again too", async () => {
  const { url, seen } = await serve(
    (_request, response) => response.writeHead(201).end("ok"),
    (count, response) => count % 2 === 1 && Boolean(response.writeHead(503).end()),
  );
  for (const body of ["", new Blob([]), new URLSearchParams()]) {
    const response = await idempotentFetch({ withinMs: 10_000 })(url, { method: "POST", body });
    assert.deepEqual([response.status, seen.map((each) => each.body), seen[0]?.type === seen[1]?.type], [201, ["", ""], true]);
    seen.length = 0;
  }
});

test("a redirect that keeps the method carries the key and the bytes", async () => {
  const { url, seen } = await serve((request, response) =>
    request.url === "/moved" ? response.writeHead(201).end("ok") : response.writeHead(307, { location: "/moved" }).end(),
  );
  const response = await idempotentFetch({ withinMs: 10_000 })(`${url}/orders`, { method: "POST", body: "one" });
  assert.deepEqual([response.status, seen.map(({ body }) => body)], [201, ["one", "one"]]);
  assert.equal(seen[0]?.key, seen[1]?.key);
});

test("two calls are two operations, an operation that is sent again is one, and a caller's key is kept", async () => {
  const { url, seen } = await serve(answer(201));
  const send = idempotentFetch();
  await send(url, { method: "POST", body: "one" });
  await send(url, { method: "POST", body: "one" });
  const order = operation(url, { method: "POST", body: "two" });
  await order.send();
  await order.send();
  await send(url, { method: "POST", body: "three", headers: { "Idempotency-Key": "A-1001" } });
  await send(url);
  const keys = seen.map(({ key }) => key);
  assert.notEqual(keys[0], keys[1]);
  assert.deepEqual(keys.slice(2), [order.key, order.key, "A-1001", undefined]);
});

test("Retry-After is obeyed, in seconds and as a date", async () => {
  for (const value of ["1", new Date(Date.now() + 2500).toUTCString()]) {
    const { url, seen } = await serve(answer(201), (count, response) => {
      if (count === 1) response.writeHead(429, { "Retry-After": value }).end();
      return count === 1;
    });
    const pauses: number[] = [];
    await idempotentFetch({ onRetry: (_why, ms) => pauses.push(ms) })(url, { method: "POST" });
    assert.equal(seen.length, 2);
    assert.ok((pauses[0] ?? 0) > 500, `${pauses}`);
  }
});

test("a Retry-After beyond the time gives the response at once", async () => {
  const { url, seen } = await serve(answer(503, { "Retry-After": "3600" }, "later"));
  const response = await idempotentFetch({ withinMs: 20_000 })(url, { method: "POST" });
  assert.deepEqual([response.status, await response.text(), seen.length], [503, "later", 1]);
});

const SENDING: Any = JSON.parse(readFileSync(new URL("../../vectors/shared.json", import.meta.url), "utf8")).sending;

test("the time of all tries is that of every language", () => {
  assert.equal(WITHIN_MS, SENDING.within_s * 1000);
});

for (const { status, retry_after, body = "", repeated } of SENDING.answers) {
  test(`an answer is ${repeated ? "" : "not "}repeated: ${status} ${retry_after ?? ""} ${body}`, async () => {
    const { url, seen } = await serve(answer(201), (count, response) => {
      if (count === 1) response.writeHead(status, retry_after ? { "Retry-After": retry_after } : {}).end(body);
      return count === 1;
    });
    const response = await idempotentFetch()(url, { method: "POST" });
    assert.equal(seen.length, repeated ? 2 : 1);
    if (!repeated) assert.deepEqual([response.status, await response.text()], [status, body]);
  });
}

test("an operation that is running is repeated until it has a response", async () => {
  const { url, seen } = await serve(answer(201), (count, response) => {
    if (count < 3) response.writeHead(409, problem).end('{"state":"in_progress"}');
    return count < 3;
  });
  assert.equal((await idempotentFetch()(url, { method: "POST" })).status, 201);
  assert.equal(seen.length, 3);
});

test("time limits and aborts end it, with their reasons", async () => {
  const { url, seen } = await serve(() => undefined);
  await assert.rejects(idempotentFetch({ withinMs: 300, timeoutMs: 50 })(url, { method: "POST" }), /no answer within/);
  assert.ok(seen.length >= 1);
  const abort = new AbortController();
  const sending = idempotentFetch()(url, { method: "POST", signal: abort.signal });
  const before = seen.length;
  while (seen.length === before) await pause(5);
  abort.abort(new Error("the user has left"));
  await assert.rejects(sending, /the user has left/);
  await assert.rejects(async () => idempotentFetch({ within: "5s" } as Any), /have no within/);
  await assert.rejects(async () => idempotentFetch({ timeoutMs: 0 }), /timeoutMs is a number/);
});

describe("while Node.js collects what is not referred to", () => {
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc") as () => void;
  const collecting = async <Result>(sending: Promise<Result>) => {
    const timer = setInterval(collect, 10);
    return sending.finally(() => clearInterval(timer));
  };

  test("a time limit ends a try", async () => {
    const { url, seen } = await serve(() => undefined);
    const sending = idempotentFetch({ withinMs: 2000, timeoutMs: 300 })(url, { method: "POST" });
    await collecting(assert.rejects(sending, /no answer within/));
    assert.ok(seen.length > 1);
  });

  const REQUESTS: Record<string, (url: string, init: RequestInit) => Promise<Response>> = {
    options: (url, init) => idempotentFetch()(url, init),
    "a request": (url, init) => idempotentFetch()(new Request(url, init)),
    "an operation": (url, init) => operation(url, init).send(),
    "a request of an operation": (url, init) => operation(new Request(url, init)).send(),
    "a safe request": (url, init) => idempotentFetch()(url, { ...init, method: "GET" }),
  };
  for (const [name, send] of Object.entries(REQUESTS)) {
    test(`an abort ends it: ${name}`, async () => {
      const { url, seen } = await serve(() => undefined);
      const abort = new AbortController();
      const sending = send(url, { method: "POST", signal: abort.signal });
      const aborted = assert.rejects(sending, /the user has left/);
      while (seen.length === 0) await pause(5);
      for (let times = 0; times < 5; times++) {
        collect();
        await pause(5);
      }
      abort.abort(new Error("the user has left"));
      await aborted;
    });
  }
});

/** A network that loses the reply of the first try at each operation, and the request of the second one. */
async function lossy(target: string): Promise<string> {
  const tries = new Map<unknown, number>();
  const { url, close } = await listening(
    http.createServer(async (request, response) => {
      const key = request.headers["idempotency-key"];
      const lost = (tries.get(key) ?? 0) + 1;
      tries.set(key, lost);
      const body = await allOf(request);
      if (lost === 2) {
        response.destroy();
        return;
      }
      const upstream = http.request(target + request.url, { method: request.method, headers: request.headers }, async (got) => {
        const text = await allOf(got);
        if (lost === 1) response.destroy();
        else response.writeHead(got.statusCode ?? 0, got.headers).end(text);
      });
      upstream.on("error", () => response.destroy());
      upstream.end(body);
    }),
  );
  closing.push(close);
  return url;
}

async function ordersRunOnce(url: string, effects: () => number): Promise<void> {
  const send = idempotentFetch({ timeoutMs: 20_000 });
  const orders = Array.from({ length: 12 }, (_, at) =>
    send(`${url}/orders`, { method: "POST", body: `order ${at}`, headers: { authorization: "alice" } }),
  );
  const responses = await Promise.all(orders);
  assert.deepEqual(new Set(responses.map(({ status }) => status)), new Set([201]));
  assert.equal(new Set(await Promise.all(responses.map((response) => response.text()))).size, 12);
  assert.equal(effects(), 12);
}

test("over a lossy network each order runs once: the middleware", async () => {
  let effects = 0;
  const client = new MemoryGateway().client();
  const options = { client, operation: "order.submit", principal: (request: Any) => request.get("authorization") };
  const app = express().post("/orders", idempotent(options), async (_request, response) => {
    await pause(20);
    response.status(201).send(`effect ${++effects}`);
  });
  const { url, close } = await listening(http.createServer(app));
  closing.push(close);
  await ordersRunOnce(await lossy(url), () => effects);
});

const program = process.env.ONCEGATE_BIN;
describe.skipIf(program === undefined)("the proxy of a real gateway", () => {
  test("over a lossy network each order runs once", async () => {
    let effects = 0;
    const { url } = await serve(async (_request, response) => {
      await pause(20);
      response.writeHead(201).end(`effect ${++effects}`);
    });
    await ordersRunOnce(await lossy(await proxy(url)), () => effects);
  });
});

async function proxy(upstream: string): Promise<string> {
  const folder = mkdtempSync(join(tmpdir(), "oncegate-fetch-"));
  const [listen, admin, own] = await Promise.all([freePort(), freePort(), freePort()]);
  const file = join(folder, "oncegate.toml");
  const route = 'app = "default"\npath = "/orders"\nmethods = ["POST"]\nupstream = "shop"\nprincipal = ["authorization"]\n';
  const settings = `[proxy]\nlisten = "127.0.0.1:${own}"\n[proxy.upstreams.shop]\nurls = ["${upstream}"]\n`;
  writeFileSync(file, `${settings}[[proxy.routes]]\nname = "orders"\n${route}`);
  const serve = ["serve", "--config", file, "--engine", "memory:", "--data-dir", folder];
  const addresses = ["--listen", `127.0.0.1:${listen}`, "--admin-listen", `127.0.0.1:${admin}`];
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("ONCEGATE_")));
  const gateway: ChildProcess = spawn(program ?? "", [...serve, ...addresses], { stdio: "ignore", env });
  closing.push(async () => {
    const ended = new Promise((resolve) => gateway.once("exit", resolve));
    gateway.kill();
    await ended;
    rmSync(folder, { recursive: true, force: true });
  });
  for (const ends = Date.now() + 30_000; ; await pause(20)) {
    assert.ok(Date.now() < ends, "the gateway does not answer");
    if (await fetch(`http://127.0.0.1:${own}/`).catch(() => null)) return `http://127.0.0.1:${own}`;
  }
}

async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}
