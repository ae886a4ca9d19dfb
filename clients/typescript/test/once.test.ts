/** `once` and what is built on it: results, declared errors, work that ends later, types. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { Readable } from "node:stream";

import { test } from "vitest";

import {
  type Done,
  type Duplicate,
  type Mismatch,
  NotRun,
  once,
  ResultNotStored,
  type ResultSchema,
  resultOf,
} from "../src/index.js";
import { fingerprintOf } from "../src/middleware/fingerprint.js";
import { MemoryGateway } from "../src/testing.js";
import type { Any } from "./gateway.js";

interface Order {
  readonly id: string;
  readonly cents: number;
  readonly lines: readonly { sku: string; count: number }[];
}
const order: Order = { id: "A-1001", cents: 1110, lines: [{ sku: "x", count: 1 }] };

interface Placed {
  at: Date;
  total: bigint;
}
const placed: ResultSchema<Placed> = {
  parse: (value) => {
    const { at, total } = value as { at: string; total: string };
    return { at: new Date(at), total: BigInt(total) };
  },
};

test("a schema reads back what JSON cannot say", async () => {
  const client = new MemoryGateway().client();
  const work = () => ({ at: new Date(0), total: 12n });
  for (let time = 0; time < 2; time++) {
    // Interfaces are contents, and the result has its type on both ways.
    const outcome: Done<Placed> | Duplicate<Placed> | Mismatch = await client.once("order.submit", order, work, {
      result: placed,
    });
    const result: Placed | null = resultOf(outcome);
    assert.deepEqual([outcome.kind, result], [time === 0 ? "done" : "duplicate", { at: new Date(0), total: 12n }]);
  }
});

class Money {
  constructor(readonly cents: number) {}
  toJSON() {
    return { cents: this.cents };
  }
}
const FOREIGN: Record<string, () => unknown> = {
  "a Date": () => ({ at: new Date(0) }),
  "a bigint": () => ({ total: 12n }),
  "an instance with toJSON": () => new Money(5),
  "a Map": () => new Map([["a", 1]]),
  "not a number": () => [Number.NaN],
  "a function in a list": () => [() => 1],
};
for (const [name, work] of Object.entries(FOREIGN)) {
  test(`without a schema a result that would change is not stored, and duplicates are told: ${name}`, async () => {
    const events: Any[] = [];
    const client = new MemoryGateway().client({ onEvent: (event) => events.push(event) });
    const first = (await client.once("order.submit", order, work)) as Any;
    assert.deepEqual([first.state, first.resultOmitted], ["succeeded", "not_serialisable"]);
    assert.ok(events.some((event) => event.name === "result_omitted" && /schema/.test(event.fields.why)));
    const second = (await client.once("order.submit", order, work)) as Any;
    assert.deepEqual([second.state, second.result, second.resultOmitted], ["succeeded", null, "not_serialisable"]);
    assert.throws(() => resultOf(second), ResultNotStored);
  });
}

test("a result that is too long is not stored, and null is null", async () => {
  const client = new MemoryGateway().client();
  await client.once("long", order, () => "x".repeat(70_000));
  const long = (await client.once("long", order, () => "")) as Any;
  assert.equal(long.resultOmitted, "too_large");
  await client.once("nothing", order, () => null);
  const nothing = await client.once("nothing", order, () => null);
  assert.deepEqual([nothing.kind, resultOf(nothing), (nothing as Any).resultOmitted], ["duplicate", null, null]);
});

test("resultOf says why there is none", async () => {
  const gateway = new MemoryGateway();
  const client = gateway.client();
  await client.claim("order.submit", order);
  const running = await client.once("order.submit", order, () => 1);
  assert.throws(
    () => resultOf(running),
    (error) => error instanceof NotRun && (error.outcome as Any).state === "in_progress",
  );
});

class StockError extends Error {}
class SoldOut extends StockError {}
const declared: [string, (client: Any, work: () => never) => Promise<unknown>, Any][] = [
  ["the client", (client, work) => client.once("order.submit", order, work), { nothingHappened: [StockError] }],
  ["once", (client, work) => client.once("order.submit", order, work, { nothingHappened: [StockError] }), {}],
  [
    "a predicate",
    (client, work) => client.once("order.submit", order, work, { nothingHappened: (e: unknown) => e instanceof SoldOut }),
    {},
  ],
  [
    "a function",
    (client, work) => once(work, { client, operation: "order.submit", contents: () => order, nothingHappened: [StockError] })(),
    {},
  ],
];
for (const [name, call, options] of declared) {
  test(`errors that ${name} declares release the operation, and go on unchanged`, async () => {
    const gateway = new MemoryGateway();
    const client = gateway.client(options);
    const soldOut = new SoldOut("sold out");
    const thrown = await call(client, () => {
      throw soldOut;
    }).catch((error) => error);
    assert.equal(thrown, soldOut);
    assert.equal(gateway.claims.length, 0);
    await call(client, () => {
      throw new Error("no idea", { cause: soldOut });
    }).catch(() => undefined);
    assert.equal(gateway.claims[0]?.state, "unknown");
  });
}

const LATER: Record<string, () => unknown> = {
  "a stream": () => Readable.from(["x"]),
  "a web stream": () => new Blob(["x"]).stream(),
  "an observable": () => ({ subscribe: () => {} }),
  "an asynchronous generator": () => (async function* () {})(),
  "a generator": () => (function* () {})(),
  "an iterator": () => new Map().values(),
};
for (const [name, work] of Object.entries(LATER)) {
  test(`work that has not ended when it returns is no success: ${name}`, async () => {
    const gateway = new MemoryGateway();
    await assert.rejects(gateway.client().once("order.submit", order, work), /has not ended/);
    assert.equal(gateway.claims[0]?.state, "unknown");
  });
}

test("a generator is refused before anything is claimed", async () => {
  const gateway = new MemoryGateway();
  const client = gateway.client();
  for (const work of [function* () {}, async function* () {}] as Any[]) {
    assert.throws(() => once(work, { client, operation: "order.submit", contents: () => order }), /a generator has not run/);
    await assert.rejects(client.once("order.submit", order, work), /a generator has not run/);
  }
  assert.equal(gateway.claims.length, 0);
});

test("thenables are waited for", async () => {
  const gateway = new MemoryGateway();
  // biome-ignore lint/suspicious/noThenProperty: it is one.
  const thenable = { then: (resolve: (value: number) => void) => setTimeout(() => resolve(7), 10) };
  const done = (await gateway.client().once("order.submit", order, () => thenable as Any)) as Any;
  assert.deepEqual([done.result, gateway.claims[0]?.result], [7, 7]);
});

test("contents are checked by the compiler, members of interfaces too", () => {
  const client = new MemoryGateway().client();
  client.globalId("order.submit", order);
  // @ts-expect-error: a function is no contents.
  assert.throws(() => client.globalId("order.submit", { id: () => 1 }));
  // @ts-expect-error: a set has no order.
  assert.throws(() => client.globalId("order.submit", { tags: new Set(["a"]) }));
});

test("fingerprints are those of the proxy", () => {
  const vectors = JSON.parse(readFileSync(new URL("../../../tests/vectors/fingerprint.json", import.meta.url), "utf8"));
  assert.ok(vectors.length > 0);
  for (const { name, method, url, headers, body, parts, fingerprint } of vectors) {
    const rawHeaders = headers.flatMap(([field, value]: Any) => [field, Buffer.from(value).toString("latin1")]);
    const made = fingerprintOf(parts, { method, url, rawHeaders }, { kind: "bytes", bytes: Buffer.from(body) });
    assert.deepEqual(made, JSON.parse(fingerprint), name);
  }
});
