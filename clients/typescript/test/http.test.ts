/** Middleware: the same rules for each framework. */

import assert from "node:assert/strict";
import type { AddressInfo } from "node:net";

import express from "express";
import fastify from "fastify";
import { test } from "vitest";

import { idempotent, type Request } from "../src/express.js";
import { grantOf, oncegate } from "../src/fastify.js";
import { type Stub, stub } from "./stub.js";

/** What the handler of a test answers. */
interface Answer {
  status: number;
  headers?: Record<string, string>;
  body?: string;
}

type Start = (
  gateway: Stub,
  handler: (fence: number | null | undefined) => Answer,
) => Promise<{ url: string; close: () => Promise<unknown> }>;

const frameworks: Record<string, Start> = {
  express: async ({ client }, handler) => {
    const app = express();
    app.use(express.json());
    const protect = idempotent<Request>({ client, operation: "order.submit", principal: () => "customer-1", required: true });
    app.post("/orders", protect as never, (request, response) => {
      const { status, headers, body } = handler((request as unknown as Request).oncegate?.fence);
      response
        .status(status)
        .set(headers ?? {})
        .send(body ?? "");
    });
    const server = app.listen(0, "127.0.0.1");
    await new Promise((resolve) => server.once("listening", resolve));
    const close = () => {
      server.closeAllConnections();
      return new Promise((resolve) => server.close(resolve));
    };
    return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, close };
  },
  fastify: async ({ client }, handler) => {
    const app = fastify({ forceCloseConnections: true });
    await app.register(
      oncegate as never,
      { client, operation: "order.submit", principal: () => "customer-1", required: true } as never,
    );
    app.post("/orders", (request, reply) => {
      const { status, headers, body } = handler(grantOf(request)?.fence);
      return reply
        .code(status)
        .headers(headers ?? {})
        .send(body ?? "");
    });
    const url = await app.listen({ port: 0, host: "127.0.0.1" });
    return { url, close: () => app.close() };
  },
};

for (const [name, start] of Object.entries(frameworks)) {
  const serve = async (
    handler: Parameters<Start>[1],
    use: (post: (key: string | null, body?: object) => Promise<Response>, gateway: Stub) => Promise<void>,
  ) => {
    const gateway = await stub();
    const { url, close } = await start(gateway, handler);
    const post = (key: string | null, body: object = {}) => {
      const headers = { "content-type": "application/json", ...(key && { "idempotency-key": key }) };
      return fetch(`${url}/orders`, { method: "POST", headers, body: JSON.stringify(body) });
    };
    try {
      await use(post, gateway);
    } finally {
      await close();
      gateway.close();
    }
  };

  test(`${name}: a repeat gets the stored response`, async () => {
    let runs = 0;
    const handler = (fence?: number | null) => {
      runs++;
      return { status: 201, headers: { location: "/orders/7", "set-cookie": "a=b" }, body: `order 7, fence ${fence}` };
    };
    await serve(handler, async (post) => {
      const first = await post("k-1", { order: "A-1001" });
      assert.deepEqual([first.status, await first.text()], [201, "order 7, fence 7"]);
      assert.equal(first.headers.get("set-cookie"), "a=b");
      const second = await post('"k-1"', { order: "A-1001" });
      assert.deepEqual(
        [second.status, await second.text(), second.headers.get("location")],
        [201, "order 7, fence 7", "/orders/7"],
      );
      assert.equal(second.headers.get("idempotent-replayed"), "true");
      assert.equal(second.headers.get("set-cookie"), null);
      assert.equal(runs, 1);
      assert.equal((await post("k-1", { order: "A-1002" })).status, 422);
      assert.equal((await post(null)).status, 400);
    });
  });

  for (const { status, outcome, repeat, runs } of [
    { status: 402, repeat: 402, runs: 1 },
    { status: 429, repeat: 429, runs: 2 },
    { status: 500, repeat: 409, runs: 1 },
    { status: 500, outcome: "failure", repeat: 500, runs: 2 },
    { status: 200, outcome: "unknown", repeat: 409, runs: 1 },
  ]) {
    test(`${name}: ${status} ${outcome ?? ""} decides the outcome`, async () => {
      let ran = 0;
      const handler = () => {
        ran++;
        return { status, headers: outcome ? { "Oncegate-Outcome": outcome } : {} };
      };
      await serve(handler, async (post) => {
        const first = await post("k-1");
        assert.deepEqual([first.status, first.headers.get("oncegate-outcome")], [status, null]);
        assert.equal((await post("k-1")).status, repeat);
        assert.equal(ran, runs);
      });
    });
  }

  test(`${name}: a long response is passed on and not stored`, async () => {
    const body = "x".repeat(200_000);
    await serve(
      () => ({ status: 200, body }),
      async (post, { outcomes }) => {
        assert.equal(await (await post("k-1")).text(), body);
        const again = await post("k-1");
        assert.equal(again.status, 409);
        assert.match(await again.text(), /response_not_stored/);
        assert.deepEqual(outcomes, ["success"]);
      },
    );
  });
}
