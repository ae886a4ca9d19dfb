/** The table of the calls of locks, at the double and at a real gateway. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

import { describe, test } from "vitest";

import { Client, type Hold, LockNotAcquired } from "../src/index.js";
import { MemoryGateway } from "../src/testing.js";
import type { Any } from "./gateway.js";

const locks = JSON.parse(readFileSync(new URL("../../vectors/locks.json", import.meta.url), "utf8"));

const termsOf = ({ mode, limit, own }: Any) => ({
  ...(mode && { mode }),
  ...(limit !== undefined && { limit }),
  ...(own && { owner: locks.owner }),
});

async function run(client: Client, steps: Any[]): Promise<void> {
  const name = `table:${Date.now()}:${Math.random()}`.replace("0.", "");
  const holds = new Map<string, Hold>();
  let fence = 0;
  for (const [at, step] of steps.entries()) {
    if (step.release) await holds.get(step.release)?.release();
    else if ("lookup" in step) {
      const record = await client.lock(name).lookup();
      const seen = record && { mode: record.mode, holders: record.holders.length, limit: record.limit };
      assert.deepEqual(seen, step.lookup, `step ${at}`);
    } else if (step.refused) {
      const refused = await client
        .lock(name, termsOf(step))
        .run(() => null)
        .catch((error) => error);
      assert.ok(refused instanceof LockNotAcquired, `step ${at}: ${refused}`);
      assert.deepEqual([refused.code, refused.limit], [step.refused, step.in_use ?? null], `step ${at}`);
    } else {
      const hold = await client.lock(name, termsOf(step)).acquire();
      assert.ok(hold && hold.fence >= fence, `step ${at}`);
      const seen = { mode: hold.mode, holds: hold.holds, fence: hold.fence > fence ? "new" : "same" };
      assert.deepEqual(seen, step.held, `step ${at}`);
      holds.set(step.acquire, hold);
      fence = hold.fence;
    }
  }
}

for (const { name, steps } of locks.tables) test(`in memory: ${name}`, () => run(new MemoryGateway().client(), steps));

const { ONCEGATE_URL: url, ONCEGATE_CREDENTIAL: credential } = process.env;
describe.skipIf(url === undefined)("at a gateway", () => {
  for (const { name, steps } of locks.tables) {
    test(name, async () => {
      const client = new Client(url as string, { credential, onEvent: () => {} });
      await run(client, steps);
      client.close();
    });
  }
});

test("a wrong limit is refused before anything is sent", () => {
  const client = new MemoryGateway().client();
  for (const { says, ...terms } of locks.wrong_limits)
    assert.throws(
      () => client.lock("stock:42", terms),
      (error) => error instanceof TypeError && error.message.includes(says),
    );
  for (const limit of [2.5, "3", null] as Any[])
    assert.throws(() => client.lock("stock:42", { mode: "shared", limit }), /from 2 to 1000/);
});
