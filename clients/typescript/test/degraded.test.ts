/** Claims that a gateway answers by its outage policy: callers learn of it, on each framework. */

import assert from "node:assert/strict";
import { Readable } from "node:stream";

import { afterEach, describe, test } from "vitest";

import { MemoryGateway } from "../src/testing.js";
import { type Answer, frameworks } from "./frameworks.js";
import { type Any, answersBy } from "./gateway.js";

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0)) await close();
});

const RESPONSES: Record<string, () => Answer> = {
  "a whole response": () => ({ body: "done" }),
  "a stream": () => ({ body: Readable.from([Buffer.from("do"), Buffer.from("ne")]) }),
  "a response without a body": () => ({ status: 204, body: null }),
  "an error that the framework answers": () => {
    throw Object.assign(new Error("no such order"), { answer: 404 });
  },
};

for (const [name, start] of Object.entries(frameworks)) {
  describe(name, () => {
    for (const [what, respond] of Object.entries(RESPONSES)) {
      for (const policy of ["local", "fail_open"]) {
        test(`${what} by ${policy}`, async () => {
          const gateway = new MemoryGateway();
          let answering: string | null = policy;
          answersBy(gateway, () => answering);
          const { url, close } = await start(respond, { client: gateway.client() });
          closing.push(close);
          const post = async () => {
            const answer = await fetch(`${url}/orders`, {
              method: "POST",
              body: "one",
              headers: { "x-user": "alice", "idempotency-key": "k-1" },
            });
            await answer.text();
            return [answer.headers.get("oncegate-degraded"), answer.headers.get("idempotent-replayed")];
          };
          assert.deepEqual(await post(), [policy, null]);
          const { fields } = (gateway.claims[0] as Any).result;
          assert.ok(!fields.some(([field]: Any) => field.startsWith("oncegate-")), "it is not stored");
          assert.deepEqual(await post(), [policy, "true"]);
          answering = null;
          assert.deepEqual(await post(), [null, "true"]);
        });
      }
    }
  });
}
