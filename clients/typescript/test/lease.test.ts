/** When a lease is renewed. */

import assert from "node:assert/strict";
import { setTimeout as pause } from "node:timers/promises";

import { test } from "vitest";

import { type Keeping, Lease } from "../src/lease.js";
import type { Any } from "./gateway.js";

test("no renewal is sent in the last milliseconds of a lease", async () => {
  let now = 0;
  let looks = 0;
  let renewals = 0;
  const transport: Any = {
    now: () => {
      looks++;
      return now;
    },
    event: () => {},
    // Gives up just before the end of the lease, as a timer may do that knows whole milliseconds only.
    do: async () => {
      renewals++;
      now = 59.6;
      throw new Error("no answer");
    },
  };
  const lease = new Lease(transport, 60, { about: {}, event: "lost" } as Keeping);
  while (renewals === 0) await pause(1);
  const before = looks;
  while (looks < before + 4) await pause(1);
  assert.deepEqual([renewals, lease.lost], [1, null]);
  now = 60;
  while (lease.lost === null) await pause(1);
  assert.deepEqual([renewals, lease.lost], [1, "not_renewed"]);
});
