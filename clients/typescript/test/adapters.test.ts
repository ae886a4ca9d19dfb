/** Differences between frameworks: registration, parsers before the middleware, HTTP/2, error handlers. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { createReadStream } from "node:fs";
import http from "node:http";
import http2 from "node:http2";
import net, { type AddressInfo } from "node:net";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { fileURLToPath } from "node:url";
import { createGunzip, gzipSync } from "node:zlib";

import multipart from "@fastify/multipart";
import express from "express";
import fastify from "fastify";
import Koa from "koa";
import multer from "multer";
import { afterEach, describe, test } from "vitest";

import { errors as expressErrors, idempotent as onExpress } from "../src/express.js";
import { errors as fastifyErrors, oncegate } from "../src/fastify.js";
import { Client, NotCanonical, NotSettled, Rejected, Unavailable } from "../src/index.js";
import { errors as koaErrors, idempotent as onKoa } from "../src/koa.js";
import { problemOf } from "../src/middleware/problemof.js";
import { MemoryGateway } from "../src/testing.js";
import { allOf, listening } from "./frameworks.js";
import type { Any } from "./gateway.js";

const FILE = fileURLToPath(new URL("../biome.json", import.meta.url));

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0)) await close();
});

const orders = (gateway: MemoryGateway, more: Any = {}): Any => ({
  client: gateway.client(),
  operation: "order.submit",
  sharedKeys: true,
  ...more,
});

async function serve(app: Any): Promise<(key: string, init?: Any) => Promise<Response>> {
  const { url, close } = await listening(http.createServer(app));
  closing.push(close);
  return (key, init = {}) =>
    fetch(`${url}${init.path ?? "/orders"}`, {
      method: "POST",
      body: '{"a":1}',
      ...init,
      headers: { "content-type": "application/json", "idempotency-key": key, ...init.headers },
    });
}

const PARSERS: Record<string, Any> = {
  json: express.json(),
  text: express.text({ type: "*/*" }),
  raw: express.raw({ type: "*/*" }),
  "json that keeps the bytes": express.json({
    verify: (request, _response, rawBody) => void Object.assign(request, { rawBody }),
  }),
};

describe("express", () => {
  for (const [name, parser] of Object.entries(PARSERS)) {
    test(`behind a parser: ${name}`, async () => {
      const gateway = new MemoryGateway();
      let runs = 0;
      const app = express().post("/orders", parser, onExpress(orders(gateway)), (_request, response) => {
        runs++;
        response.status(201).send("done");
      });
      const post = await serve(app);
      assert.deepEqual([(await post("k-1")).status, (await post("k-1")).status, runs], [201, 201, 1]);
      assert.equal((await post("k-1", { body: '{"a":2}' })).status, 422);
      // No body at all is nothing that a parser has consumed.
      assert.deepEqual([(await post("k-2", { body: undefined })).status, runs], [201, 2]);
    });
  }

  test("a body that was consumed and left nowhere is refused before the claim", async () => {
    const gateway = new MemoryGateway();
    const events: Any[] = [];
    const client = gateway.client({ onEvent: (event) => events.push(event) });
    const consume = async (request: Any, _response: Any, next: Any) => {
      await allOf(request);
      next();
    };
    const app = express().post("/orders", consume, onExpress(orders(gateway, { client })), () => assert.fail("it ran"));
    const post = await serve(app);
    const answer = await post("k-1");
    assert.deepEqual([answer.status, ((await answer.json()) as Any).code, gateway.claims.length], [500, "body_not_seen", 0]);
    assert.deepEqual([events.at(-1)?.name, events.at(-1)?.level], ["body_not_seen", "error"]);
  });

  test("a parser behind it finds the body as if it had just come", async () => {
    const gateway = new MemoryGateway();
    const app = express().post("/orders", onExpress(orders(gateway)), express.json({ limit: "1mb" }), (request, response) => {
      response.json({ length: JSON.stringify(request.body).length });
    });
    const post = await serve(app);
    const body = JSON.stringify({ text: "x".repeat(300_000) });
    const chunked = () => ({
      body: Readable.toWeb(Readable.from([body.slice(0, 100_000), body.slice(100_000)])),
      duplex: "half",
    });
    assert.deepEqual(await (await post("k-1", { body })).json(), { length: body.length });
    assert.equal((await post("k-1", chunked())).headers.get("idempotent-replayed"), "true");
    assert.deepEqual(await (await post("k-2", chunked())).json(), { length: body.length });
  });

  test("one that is slow to begin with still sees the whole body", async () => {
    const gateway = new MemoryGateway();
    const slow = (_request: Any, _response: Any, next: Any) => setTimeout(next, 100);
    const app = express().post("/orders", slow, onExpress(orders(gateway)), async (request, response) => {
      response.send(String((await allOf(request)).length));
    });
    const post = await serve(app);
    for (const [key, length] of [
      ["k-1", 10],
      ["k-2", 900_000],
      ["k-3", 0],
    ] as const)
      assert.equal(
        await (await post(key, { body: Readable.toWeb(Readable.from([Buffer.alloc(length, "x")])), duplex: "half" })).text(),
        String(length),
      );
  });

  test("of two on one request the inner one passes, and the mount point is part of the path", async () => {
    const gateway = new MemoryGateway();
    let runs = 0;
    const orderRoutes = express
      .Router()
      .post("/orders", onExpress(orders(gateway, { operation: "inner" })), (_request, response) => {
        response.send(`run ${++runs}`);
      });
    const app = express()
      .use(onExpress(orders(gateway)))
      .use("/a", orderRoutes)
      .use("/b", orderRoutes);
    const post = await serve(app);
    assert.equal(await (await post("k-1", { path: "/a/orders" })).text(), "run 1");
    assert.equal(await (await post("k-1", { path: "/a/orders" })).text(), "run 1");
    assert.equal((await post("k-1", { path: "/b/orders" })).status, 422);
    assert.deepEqual(
      gateway.claims.map(({ operation }) => operation),
      ["order.submit"],
    );
  });

  test("responses of 1xx pass, and are not recorded", async () => {
    const gateway = new MemoryGateway();
    const app = express().post("/orders", onExpress(orders(gateway)), (_request, response) => {
      response.writeEarlyHints({ link: "</a.css>; rel=preload" });
      response.status(201).send("done");
    });
    const { url, close } = await listening(http.createServer(app));
    closing.push(close);
    for (const expected of [[103], []]) {
      const early: number[] = [];
      const request = http.request(`${url}/orders`, { method: "POST", headers: { "idempotency-key": "k-1" } });
      request.on("information", ({ statusCode }) => early.push(statusCode));
      request.end("one");
      const [response] = await once(request, "response");
      assert.deepEqual([response.statusCode, String(await allOf(response)), early], [201, "done", expected]);
    }
    assert.equal((gateway.claims[0] as Any).result.status, 201);
  });

  test("options that are changed later change nothing", async () => {
    const gateway = new MemoryGateway();
    const options = orders(gateway, { methods: ["PUT"], store: [201], required: true });
    let runs = 0;
    const app = express().all("/orders", onExpress(options), (_request, response) => {
      runs++;
      response.status(201).send("done");
    });
    const post = await serve(app);
    options.methods.push("POST");
    options.store.length = 0;
    options.required = false;
    options.when = () => false;
    for (let count = 0; count < 2; count++) await post("k-1");
    assert.equal(runs, 2, "POST is not protected");
    const put = () => post("k-2", { method: "PUT" });
    assert.deepEqual([(await put()).status, (await put()).headers.get("idempotent-replayed"), runs], [201, "true", 3]);
  });

  test("what is written after the end is an error, and not sent before the end", async () => {
    const gateway = new MemoryGateway();
    const errors: Any[] = [];
    const app = express().post("/orders", onExpress(orders(gateway)), (_request, response) => {
      response.on("error", (error) => errors.push(error));
      response.end("a");
      response.write("b", (error) => errors.push(error));
    });
    const post = await serve(app);
    for (const _ of "12") assert.equal(await (await post("k-1")).text(), "a");
    assert.deepEqual(
      errors.map(({ code }) => code),
      ["ERR_STREAM_WRITE_AFTER_END", "ERR_STREAM_WRITE_AFTER_END"],
    );
    assert.equal(gateway.claims[0]?.state, "succeeded");
  });

  test("an error after the response was ended changes neither response nor outcome", async () => {
    const gateway = new MemoryGateway();
    const client = gateway.client();
    const [server] = (client as Any).transport.servers;
    const call = server.call.bind(server);
    let report: Any;
    const asked = new Promise<void>((resolve) => {
      report = resolve;
    });
    let go: Any;
    server.call = async (request: Any) => {
      if (request.path.endsWith("/outcome")) {
        await new Promise((resolve) => {
          go = resolve;
          report();
        });
      }
      return call(request);
    };
    const seen: unknown[] = [];
    const handler = (_request: Any, response: Any, next: Any) => {
      response.status(201).send("order 7");
      seen.push(response.headersSent, response.writableEnded);
      try {
        response.setHeader("x", "y");
      } catch (error) {
        seen.push((error as Any).code);
      }
      response.statusCode = 500;
      next(new Error("in the log after it"));
    };
    const app = express()
      .set("env", "test")
      .post("/orders", onExpress(orders(gateway, { client })), handler);
    const post = await serve(app);
    const posting = post("k-1");
    await asked;
    await new Promise((resolve) => setTimeout(resolve, 50));
    go();
    const answer = await posting;
    assert.deepEqual(seen, [true, true, "ERR_HTTP_HEADERS_SENT"]);
    assert.deepEqual([answer.status, await answer.text(), gateway.claims[0]?.state], [201, "order 7", "succeeded"]);
    assert.equal((gateway.claims[0] as Any).result.status, 201);
  });

  for (const [name, parse] of Object.entries({ files: multer().any(), "fields only": multer().none() })) {
    test(`a form that was parsed before is refused: ${name}`, async () => {
      const gateway = new MemoryGateway();
      const app = express().post("/orders", parse, onExpress(orders(gateway)), () => assert.fail("it ran"));
      const { url, close } = await listening(http.createServer(app));
      closing.push(close);
      const body = new FormData();
      body.set("note", "hi");
      const answer = await fetch(`${url}/orders`, { method: "POST", body, headers: { "idempotency-key": "k-1" } });
      assert.deepEqual([answer.status, ((await answer.json()) as Any).code], [500, "body_not_seen"]);
    });
  }

  const HELPERS: Record<string, (response: Any) => void> = {
    json: (response) => response.status(202).json({ a: [1] }),
    redirect: (response) => response.redirect(303, "/orders/7"),
    "sendStatus 204": (response) => response.sendStatus(204),
    sendFile: (response) => response.sendFile(FILE),
    download: (response) => response.download(FILE, "order.json"),
    "a stream of a file": (response) => createReadStream(FILE).pipe(response.type("json")),
    "send of a number of bytes": (response) => response.send(Buffer.alloc(3000, 7)),
    "writes with an end and a callback": (response) => {
      response.write("one ", "latin1", () => response.end("two", () => {}));
    },
    "a declared length": (response) => response.set("Content-Length", "6").end("abcdef"),
  };
  for (const [name, respond] of Object.entries(HELPERS)) {
    test(`the repeat is the first response: ${name}`, async () => {
      const gateway = new MemoryGateway();
      const app = express().post("/orders", onExpress(orders(gateway)), (_request, response) => respond(response));
      const post = await serve(app);
      const all = async () => {
        const answer = await post("k-1", { redirect: "manual" });
        const {
          date,
          connection,
          "keep-alive": alive,
          "transfer-encoding": coding,
          age,
          ...headers
        } = Object.fromEntries(answer.headers);
        const { "idempotent-replayed": replayed, "content-length": length, ...own } = headers;
        return { replayed, status: answer.status, own, body: Buffer.from(await answer.arrayBuffer()).toString("base64") };
      };
      const first = await all();
      assert.deepEqual(await all(), { ...first, replayed: "true" });
      assert.equal(first.replayed, undefined);
      assert.equal(gateway.claims[0]?.state, "succeeded");
    });
  }

  test("pipelined requests on one connection get their own responses", async () => {
    const gateway = new MemoryGateway();
    const app = express()
      .set("env", "test")
      .post("/orders", onExpress(orders(gateway)), async (request, response, next) => {
        const body = String(await allOf(request));
        if (body === "breaks") {
          response.write("begun");
          next(new Error("broken"));
          return;
        }
        response.send(`got ${body}`);
      });
    const { url, close } = await listening(http.createServer(app));
    closing.push(close);
    const socket = net.connect(Number(new URL(url).port), "127.0.0.1");
    const post = (key: string, body: string) =>
      `POST /orders HTTP/1.1\r\nHost: a\r\nIdempotency-Key: ${key}\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
    socket.write(post("k-1", "one") + post("k-2", "two") + post("k-3", "breaks"));
    // The last one has its connection destroyed by Express, which ends the text.
    const text = String(await allOf(socket));
    assert.deepEqual(text.match(/got (one|two)|begun/g), ["got one", "got two", "begun"]);
    assert.deepEqual(
      gateway.claims.map(({ state }) => state),
      ["succeeded", "succeeded", "unknown"],
    );
  });

  test("a caller that hangs up before the handler has read the body does not take it away", async () => {
    const gateway = new MemoryGateway();
    const app = express().post("/orders", onExpress(orders(gateway)), async (request, response) => {
      await new Promise((resolve) => request.oncegate?.callerGone.addEventListener("abort", resolve));
      response.send(String((await allOf(request)).length));
    });
    const { url, close } = await listening(http.createServer(app));
    closing.push(close);
    const socket = net.connect(Number(new URL(url).port), "127.0.0.1");
    socket.write("POST /orders HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k-1\r\nContent-Length: 3\r\n\r\none");
    while (gateway.claims.length === 0) await new Promise(setImmediate);
    socket.resetAndDestroy();
    while (gateway.claims[0]?.state === "in_progress") await new Promise((resolve) => setTimeout(resolve, 5));
    const { status, body } = (gateway.claims[0] as Any).result;
    assert.deepEqual([status, Buffer.from(body, "base64").toString()], [200, "3"]);
  });

  for (const [name, fields] of Object.entries({
    "an object": { "X-A": "1", Link: ["</a>", "</b>"], "Oncegate-Outcome": "success" },
    "a list": ["X-A", "1", "Link", "</a>", "Link", "</b>", "Oncegate-Outcome", "success"],
    pairs: [
      ["X-A", "1"],
      ["Link", "</a>"],
      ["link", "</b>"],
      ["Oncegate-Outcome", "success"],
    ],
  })) {
    test(`the fields of writeHead count, with a reason or without: ${name}`, async () => {
      const gateway = new MemoryGateway();
      const app = express().post("/orders", onExpress(orders(gateway)), (_request, response) => {
        response.setHeader("X-A", "0").setHeader("X-B", "2");
        response.writeHead(500, "Strange", fields as Any).end("done");
      });
      const post = await serve(app);
      for (let time = 0; time < 2; time++) {
        const { status, headers } = await post("k-1");
        assert.deepEqual(
          ["x-a", "x-b", "link", "oncegate-outcome"].map((field) => headers.get(field)),
          ["1", "2", "</a>, </b>", null],
        );
        assert.equal(status, 500);
      }
    });
  }

  test("a pipeline whose source fails is unknown at once", async () => {
    const gateway = new MemoryGateway();
    const app = express()
      .set("env", "test")
      .post("/orders", onExpress(orders(gateway)), async (_request, response) => {
        const source = Readable.from(
          (async function* () {
            yield "row 1\n";
            throw new Error("the database has stopped");
          })(),
        );
        await pipeline(source, response).catch(() => undefined);
      });
    const post = await serve(app);
    await assert.rejects(async () => (await post("k-1")).text());
    assert.equal(gateway.claims[0]?.state, "unknown");
  });

  test("with stopWhenGone the framework's own signal reaches the handler", async () => {
    const gateway = new MemoryGateway();
    let closed: Any;
    const told = new Promise((resolve) => {
      closed = resolve;
    });
    const app = express().post("/orders", onExpress(orders(gateway, { stopWhenGone: true })), (_request, response) => {
      response.on("close", closed);
      response.write("begun");
    });
    const post = await serve(app);
    const abort = new AbortController();
    const answer = await post("k-1", { signal: abort.signal });
    assert.equal(answer.status, 200);
    abort.abort();
    await told;
    while (gateway.claims[0]?.state !== "unknown") await new Promise(setImmediate);
  });

  test("drain waits for the runs, and says if some are left", async () => {
    const gateway = new MemoryGateway();
    let go: Any;
    const protect = onExpress(orders(gateway));
    const app = express().post("/orders", protect, (_request, response) => {
      go = () => response.send("done");
    });
    const post = await serve(app);
    const posting = post("k-1");
    while (!go) await new Promise(setImmediate);
    assert.equal(await protect.drain("20ms"), false);
    const drained = protect.drain("15s");
    go();
    assert.equal(await drained, true);
    assert.equal((await posting).status, 200);
  });
});

describe("fastify", () => {
  const start = async (app: Any) => {
    await app.listen({ port: 0, host: "127.0.0.1" });
    closing.push(() => app.close());
    return app.server.address() as AddressInfo;
  };

  test("registered twice for the same routes is an error, in a scope too", async () => {
    const app = fastify();
    const options = orders(new MemoryGateway());
    await app.register(oncegate, options);
    await assert.rejects(async () => app.register(oncegate, options), /registered twice/);
    const scoped = fastify();
    await scoped.register(oncegate, options);
    scoped.register(async (scope) => {
      await scope.register(oncegate, options);
    });
    await assert.rejects(async () => scoped.ready(), /registered twice/);
  });

  test("forms that multipart attaches, and streams that the handler reads, are compared whole", async () => {
    const app = fastify({ forceCloseConnections: true });
    await app.register(multipart, { attachFieldsToBody: true });
    app.addContentTypeParser("application/x-raw", (_request, payload, done) => done(null, payload));
    await app.register(oncegate, { client: new MemoryGateway().client(), operation: "order.place", sharedKeys: true });
    app.post("/form", async ({ body }: Any) => `${body.note.value} ${await body.file.toBuffer()}`);
    app.post("/raw", async ({ body }: Any) => `${await allOf(body)}`);
    const { port } = await start(app);
    const form = (boundary: string, file: string) =>
      `${[
        "Content-Disposition: form-data; name=note\r\n\r\nhi",
        `Content-Disposition: form-data; name=file; filename=f\r\n\r\n${file}`,
      ]
        .map((part) => `--${boundary}\r\n${part}\r\n`)
        .join("")}--${boundary}--\r\n`;
    const send = async (path: string, type: string, body: string) => {
      const headers = { "idempotency-key": path, "content-type": type };
      const response = await fetch(`http://127.0.0.1:${port}${path}`, { method: "POST", headers, body });
      return [response.status, response.headers.get("idempotent-replayed"), response.ok ? await response.text() : ""];
    };
    assert.deepEqual(await send("/form", "multipart/form-data; boundary=A", form("A", "one")), [200, null, "hi one"]);
    assert.deepEqual(await send("/form", "multipart/form-data; boundary=B", form("B", "one")), [200, "true", "hi one"]);
    assert.deepEqual(await send("/form", "multipart/form-data; boundary=C", form("C", "two")), [422, null, ""]);
    assert.deepEqual(await send("/raw", "application/x-raw", "one"), [200, null, "one"]);
    assert.deepEqual(await send("/raw", "application/x-raw", "one"), [200, "true", "one"]);
    assert.deepEqual(await send("/raw", "application/x-raw", "two"), [422, null, ""]);
  });

  for (const version of ["fastify", "fastify4"]) {
    test(`${version}: a handler that sends without a return has sent its response`, async () => {
      const make = (await import(version)).default as typeof fastify;
      const app = make({ forceCloseConnections: true });
      const gateway = new MemoryGateway();
      await app.register(oncegate, orders(gateway, {}));
      app.setErrorHandler(async (error: Error, _request, reply) => {
        if (error.message === "again") throw new Error("the handler of errors fails");
        reply.code(409).send({ error: error.message });
      });
      app.post("/silent", async (_request, reply) => {
        reply.code(201).send({ order: 1 });
      });
      app.post("/returns", async (_request, reply) => {
        reply.code(201).send({ order: 1 });
        return { order: 2 };
      });
      app.post("/throws", async (_request, reply) => {
        reply.code(201).send({ order: 1 });
        throw new Error("late");
      });
      app.post("/error", async (_request, reply) => {
        reply.send(new Error("sold out"));
      });
      app.post("/thrown", async () => {
        throw new Error("sold out");
      });
      app.post("/again", async () => {
        throw new Error("again");
      });
      const { port } = await start(app);
      const post = async (path: string) => {
        const headers = { "idempotency-key": path };
        const answer = await fetch(`http://127.0.0.1:${port}${path}`, { method: "POST", headers });
        return [answer.status, answer.headers.get("idempotent-replayed"), (await answer.json()) as Any] as const;
      };
      for (const path of ["/silent", "/returns", "/throws"])
        assert.deepEqual(
          [await post(path), await post(path)],
          [null, "true"].map((replayed) => [201, replayed, { order: 1 }]),
        );
      for (const path of ["/error", "/thrown"])
        assert.deepEqual(
          [await post(path), await post(path)],
          [null, "true"].map((replayed) => [409, replayed, { error: "sold out" }]),
        );
      assert.deepEqual((await post("/again"))[0], 500);
      assert.equal((await post("/again"))[2].state, "unknown");
    });
  }

  test("two scopes may have one each, and a wrong option stops the start", async () => {
    const gateway = new MemoryGateway();
    const app = fastify({ forceCloseConnections: true });
    for (const path of ["/a", "/b"]) {
      app.register(async (scope) => {
        await scope.register(oncegate, orders(gateway, { operation: `order${path}` }));
        scope.post(path, async () => "done");
      });
    }
    const { port } = await start(app);
    for (const path of ["/a", "/b"])
      await fetch(`http://127.0.0.1:${port}${path}`, { method: "POST", headers: { "idempotency-key": "k-1" } });
    assert.deepEqual(
      gateway.claims.map(({ operation }) => operation),
      ["order/a", "order/b"],
    );
    await assert.rejects(async () => fastify().register(oncegate, orders(gateway, { leese: "1s" })), /have no leese/);
  });

  test("bytes that an outer layer decompressed are the body", async () => {
    const gateway = new MemoryGateway();
    const app = fastify({ forceCloseConnections: true });
    app.addHook("preParsing", async (_request, _reply, payload) =>
      Object.assign(payload.pipe(createGunzip()), { receivedEncodedLength: 0 }),
    );
    await app.register(oncegate, orders(gateway));
    app.post("/orders", async (request) => request.body);
    const { port } = await start(app);
    const post = (level: number) =>
      fetch(`http://127.0.0.1:${port}/orders`, {
        method: "POST",
        body: gzipSync('{"a":1}', { level }),
        headers: { "content-type": "application/json", "idempotency-key": "k-1" },
      });
    assert.deepEqual(await (await post(1)).json(), { a: 1 });
    assert.equal((await post(0)).headers.get("idempotent-replayed"), "true");
  });

  for (const [name, answer] of Object.entries({
    "a Response": () => new Response("order 7", { status: 202, headers: { "X-Own": "1" } }),
    "a web stream": () => Readable.toWeb(Readable.from([Buffer.from("order "), Buffer.from("7")])),
    "a Response with a stream": () => new Response(new Blob(["order 7"]).stream(), { status: 202 }),
  })) {
    test(`the payload is ${name}`, async () => {
      const gateway = new MemoryGateway();
      const app = fastify({ forceCloseConnections: true });
      await app.register(oncegate, orders(gateway));
      app.post("/orders", async (_request, reply) => reply.send(answer()));
      const { port } = await start(app);
      const post = () => fetch(`http://127.0.0.1:${port}/orders`, { method: "POST", headers: { "idempotency-key": "k-1" } });
      const first = await post();
      const second = await post();
      assert.deepEqual([await first.text(), await second.text()], ["order 7", "order 7"]);
      assert.deepEqual([second.status, second.headers.get("x-own")], [first.status, first.headers.get("x-own")]);
      assert.equal(second.headers.get("idempotent-replayed"), "true");
    });
  }

  test("a reply that is hijacked is unknown", async () => {
    const gateway = new MemoryGateway();
    const app = fastify({ forceCloseConnections: true });
    await app.register(oncegate, orders(gateway));
    app.post("/orders", (_request, reply) => {
      reply.hijack();
      reply.raw.end("by hand");
    });
    const { port } = await start(app);
    const answer = await fetch(`http://127.0.0.1:${port}/orders`, { method: "POST", headers: { "idempotency-key": "k-1" } });
    assert.equal(await answer.text(), "by hand");
    while (gateway.claims[0]?.state !== "unknown") await new Promise(setImmediate);
  });
});

describe("HTTP/2", () => {
  const left = (grant: Any) => new Promise((resolve) => grant.callerGone.addEventListener("abort", resolve));
  const apps: Record<string, (gateway: MemoryGateway) => Promise<AddressInfo>> = {
    fastify: async (gateway) => {
      const app = fastify({ http2: true });
      app.addContentTypeParser("text/plain", { parseAs: "string" }, (_request, body, done) => done(null, body));
      await app.register(oncegate, orders(gateway) as never);
      app.post("/orders", async (request, reply) => {
        if (request.body === "wait") await left(request.oncegate);
        return reply
          .code(201)
          .header("x-own", "1")
          .send(`got ${request.body ?? ""}`);
      });
      await app.listen({ port: 0, host: "127.0.0.1" });
      closing.push(() => app.close());
      return app.server.address() as AddressInfo;
    },
    koa: async (gateway) => {
      const app = new Koa();
      app.use(onKoa(orders(gateway)));
      app.use(async (context) => {
        const body = String(await allOf(context.req));
        if (body === "wait") await left((context as Any).oncegate);
        context.body = `got ${body}`;
        context.status = 201;
        context.set("x-own", "1");
      });
      const server = http2.createServer(app.callback());
      await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
      closing.push(() => new Promise((resolve) => server.close(resolve)));
      return server.address() as AddressInfo;
    },
  };
  for (const [name, start] of Object.entries(apps)) {
    test(`${name}: a body, no body, and a hang-up`, async () => {
      const gateway = new MemoryGateway();
      const { port } = await start(gateway);
      const session = http2.connect(`http://127.0.0.1:${port}`);
      const post = (key: string, body: string) =>
        new Promise<Any>((resolve, reject) => {
          const stream = session.request({
            ":method": "POST",
            ":path": "/orders",
            "content-type": "text/plain",
            "idempotency-key": key,
          });
          let [headers, text]: Any[] = [null, ""];
          stream.on("response", (fields) => {
            headers = fields;
          });
          stream.on("data", (piece) => {
            text += piece;
          });
          stream.on("end", () =>
            resolve({ status: headers[":status"], replayed: headers["idempotent-replayed"], own: headers["x-own"], text }),
          );
          stream.on("error", reject);
          stream.end(body);
        });
      try {
        assert.deepEqual(await post("k-1", "one"), { status: 201, replayed: undefined, own: "1", text: "got one" });
        assert.deepEqual(await post("k-1", "one"), { status: 201, replayed: "true", own: "1", text: "got one" });
        assert.equal((await post("k-1", "two")).status, 422);
        assert.equal((await post("k-2", "")).text, "got ");
        assert.equal((await post("k-2", "")).replayed, "true");
        const long = "x".repeat(200_000);
        assert.equal((await post("k-3", long)).text.length, long.length + 4);
        // The handler waits for its caller to go, and is not stopped by that.
        const headers = { ":method": "POST", ":path": "/orders", "content-type": "text/plain", "idempotency-key": "k-4" };
        const hanging = session.request(headers);
        hanging.on("error", () => {});
        hanging.end("wait");
        while (gateway.claims.length < 4) await new Promise((resolve) => setTimeout(resolve, 5));
        hanging.close(http2.constants.NGHTTP2_CANCEL);
        while (gateway.claims[3]?.state === "in_progress") await new Promise((resolve) => setTimeout(resolve, 5));
        assert.deepEqual(await post("k-4", "wait"), { status: 201, replayed: "true", own: "1", text: "got wait" });
      } finally {
        session.close();
      }
    });
  }
});

describe("errors of the client in HTTP", () => {
  test("a gateway that hangs may have taken the key; one that is not there has not", async () => {
    const silent = net.createServer((socket) => socket.resume().on("error", () => {})).listen(0, "127.0.0.1");
    await once(silent, "listening");
    const { port } = silent.address() as AddressInfo;
    const gateway = new Client(`http://127.0.0.1:${port}`, { timeoutMs: 100, claimWithinMs: 100, onEvent: () => {} });
    const refusedOf = async () => {
      const error = await gateway.claim("order.place", { cart_id: "C-1" }).catch((error: unknown) => error);
      assert.ok(error instanceof Unavailable);
      return [error.mayHaveActed, JSON.parse(String(problemOf(error)?.body)).detail.includes("may have taken the key")];
    };
    assert.deepEqual(await refusedOf(), [true, true]);
    gateway.close();
    await new Promise((resolve) => silent.close(resolve));
    assert.deepEqual(await refusedOf(), [false, false]);
  });

  const MEANINGS: [unknown, number, string][] = [
    [new Unavailable([]), 503, "store_unavailable"],
    [new Rejected(429, "quota_exceeded", "", null, 2000), 429, "quota_exceeded"],
    [new Rejected(401, "unauthenticated", ""), 503, "store_unavailable"],
    [new Rejected(201, "identity_differs", ""), 500, "identity_differs"],
    [new NotCanonical("float", "$", "a float"), 422, "contents_not_canonical"],
    [{ kind: "mismatch", code: "fingerprint_mismatch" }, 422, "fingerprint_mismatch"],
    [{ kind: "duplicate", state: "in_progress", retryAfterMs: 1500 }, 409, "duplicate"],
    [{ kind: "duplicate", state: "unknown" }, 409, "duplicate"],
    [{ kind: "duplicate", state: "succeeded" }, 409, "response_not_stored"],
    [new NotSettled("{}", "order 7", new Unavailable([])), 500, ""],
  ];
  const apps: Record<string, (thrown: unknown) => Promise<Any>> = {
    express: async (thrown) =>
      express()
        .set("env", "test")
        .post("/orders", () => {
          throw thrown;
        })
        .use(expressErrors()),
    koa: async (thrown) => {
      const app = new Koa();
      app.silent = true;
      app.use(koaErrors()).use(() => {
        throw thrown;
      });
      return app.callback();
    },
    fastify: async (thrown) => {
      const app = fastify();
      app.setErrorHandler(fastifyErrors() as Any);
      app.post("/orders", async () => {
        throw thrown;
      });
      await app.ready();
      return app.routing;
    },
  };
  for (const [name, start] of Object.entries(apps)) {
    test(name, async () => {
      for (const [thrown, status, code] of MEANINGS) {
        const post = await serve(await start(thrown));
        const answer = await post("k-1");
        assert.equal(answer.status, status, String(thrown));
        if (code === "") continue;
        assert.equal(answer.headers.get("content-type"), "application/problem+json");
        const problem = (await answer.json()) as Any;
        assert.deepEqual([problem.code, problem.type, problem.status], [code, `urn:oncegate:problem:${code}`, status]);
        if (status === 429) assert.equal(answer.headers.get("retry-after"), "2");
      }
    });
  }
});

const WRONG: [Any, RegExp][] = [
  [{ operation: undefined }, /operation is required/],
  [{ sharedKeys: undefined }, /principal is required/],
  [{ principal: () => "a" }, /give one of them/],
  [{ client: {} }, /client is a Client/],
  [{ methods: ["GET"] }, /which is safe/],
  [{ methods: ["post"] }, /upper case/],
  [{ methods: [] }, /methods is a list/],
  [{ fingerprint: ["host"] }, /fingerprint is a list/],
  [{ fingerprint: ["body", "body:json"] }, /body and body:json/],
  [{ store: ["2x"] }, /store is a list/],
  [{ store: [409], release: [409] }, /in store and in release/],
  [{ on5xx: "forget" }, /on5xx is/],
  [{ nothingHappened: new Error("x") }, /nothingHappened is/],
  [{ lease: 30 }, /lease is a duration/],
  [{ retention: "never" }, /retention is a duration/],
  [{ wait: "5" }, /wait is a duration/],
  [{ wait: "2h" }, /wait is at most an hour/],
  [{ waitMs: 3_600_001 }, /waitMs is at most an hour/],
  [{ exchangeMaxMs: 0 }, /exchangeMaxMs is a number/],
  [{ claimWithin: "soon" }, /claimWithin is a duration/],
  [{ bodyBytes: "1MiB" }, /bodyBytes is a number/],
  [{ storeWith: ["Connection"] }, /storeWith has connection/],
  [{ storeWithout: "Date" }, /storeWithout is a list/],
  [{ onUnavailable: "open" }, /onUnavailable is/],
  [{ when: true }, /when is a function/],
  [{ observe: "yes" }, /observe is true or false/],
  [{ leese: "1s" }, /have no leese/],
];
test("a wait of an hour is not too long", () => {
  for (const make of [onExpress, onKoa] as Any[])
    for (const wait of [{ wait: "60m" }, { waitMs: 3_600_000 }]) make(orders(new MemoryGateway(), wait));
});
for (const [more, message] of WRONG) {
  test(`refused when the middleware is made: ${JSON.stringify(more)}`, () => {
    for (const make of [onExpress, onKoa] as Any[])
      assert.throws(
        () => make(orders(new MemoryGateway(), more)),
        (error) => error instanceof TypeError && message.test(String(error)),
      );
  });
}
