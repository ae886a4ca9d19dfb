/** The recipe for AWS Lambda Powertools, with the utility itself. Uses what was built, as the recipe does. */

import assert from "node:assert/strict";

import {
  IdempotencyAlreadyInProgressError,
  IdempotencyConfig,
  IdempotencyPersistenceLayerError,
  IdempotencyValidationError,
  makeIdempotent,
} from "@aws-lambda-powertools/idempotency";
import { MemoryGateway } from "@oncegate/client/testing";
import { test, vi } from "vitest";

import { OncegatePersistenceLayer } from "../recipes/powertools.js";
import type { Any } from "./gateway.js";

vi.spyOn(console, "warn").mockImplementation(() => {});

function made(work: (event: Any) => Any, options: Any = {}, gateway = new MemoryGateway()) {
  const persistenceStore = new OncegatePersistenceLayer(gateway.client({ claimWithin: "200ms" }) as Any);
  const config = new IdempotencyConfig({ eventKeyJmesPath: "id", ...options });
  config.registerLambdaContext({ getRemainingTimeInMillis: () => 20_000 } as Any);
  return {
    gateway,
    call: makeIdempotent(async (event: Any) => work(event), { persistenceStore, config } as Any) as (event: Any) => Promise<Any>,
  };
}

test("a repeat gets the stored response, another event runs", async () => {
  let runs = 0;
  const { call, gateway } = made(() => ({ run: ++runs }));
  assert.deepEqual([await call({ id: 1 }), await call({ id: 1 }), await call({ id: 2 })], [{ run: 1 }, { run: 1 }, { run: 2 }]);
  assert.deepEqual(
    gateway.claims.map(({ state }) => state),
    ["succeeded", "succeeded"],
  );
});

test("responses that are nothing, a text or a list are kept as they are", async () => {
  for (const response of [undefined, null, "done", [1, 2], 0, false]) {
    let runs = 0;
    const { call } = made(() => {
      runs++;
      return response;
    });
    await call({ id: 1 });
    assert.deepEqual([(await call({ id: 1 })) ?? null, runs], [response ?? null, 1]);
  }
});

test("while the first is running, a repeat is refused", async () => {
  let go: Any;
  const { call } = made(
    () =>
      new Promise((resolve) => {
        go = resolve;
      }),
  );
  const first = call({ id: 1 });
  while (!go) await new Promise(setImmediate);
  await assert.rejects(call({ id: 1 }), IdempotencyAlreadyInProgressError);
  go("done");
  assert.equal(await first, "done");
});

test("a function that threw may run again", async () => {
  let runs = 0;
  const { call, gateway } = made(() => {
    if (++runs === 1) throw new Error("no stock");
    return runs;
  });
  await assert.rejects(call({ id: 1 }), /no stock/);
  assert.equal(gateway.claims.length, 0);
  assert.equal(await call({ id: 1 }), 2);
});

test("another payload with the same key is refused", async () => {
  const { call } = made(() => "done", { payloadValidationJmesPath: "cents" });
  await call({ id: 1, cents: 5 });
  assert.equal(await call({ id: 1, cents: 5 }), "done");
  await assert.rejects(call({ id: 1, cents: 6 }), IdempotencyValidationError);
});

test("the key is free again when its time is over", async () => {
  let runs = 0;
  const { call, gateway } = made(() => ++runs, { expiresAfterSeconds: 60 });
  await call({ id: 1 });
  gateway.advance("61s");
  assert.equal(await call({ id: 1 }), 2);
});

test("a function that was killed frees its key when its time is over", async () => {
  const gateway = new MemoryGateway();
  void made(() => new Promise(() => {}), {}, gateway).call({ id: 1 });
  while (gateway.claims.length === 0) await new Promise(setImmediate);
  gateway.advance("21s");
  assert.equal(await made(() => "again", {}, gateway).call({ id: 1 }), "again");
});

test("the local cache answers without the gateway", async () => {
  const { call, gateway } = made(() => "done", { useLocalCache: true });
  await call({ id: 1 });
  gateway.unavailable();
  assert.equal(await call({ id: 1 }), "done");
});

test("without a gateway nothing runs", async () => {
  let runs = 0;
  const { call, gateway } = made(() => ++runs);
  gateway.unavailable();
  await assert.rejects(call({ id: 1 }), IdempotencyPersistenceLayerError);
  assert.equal(runs, 0);
});

test("twenty calls at once have one effect", async () => {
  let runs = 0;
  const { call } = made(async () => {
    await new Promise((resolve) => setTimeout(resolve, 20));
    return ++runs;
  });
  const ends = await Promise.allSettled(Array.from({ length: 20 }, () => call({ id: 1 })));
  assert.equal(ends.filter(({ status }) => status === "fulfilled").length, 1);
  assert.equal(runs, 1);
});
