/** The double of the gateway: held to the behaviour vectors, and to the answers of a real gateway. */

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";

import { describe, test } from "vitest";

import { Client, Grant, NothingHappened, OncegateError } from "../src/index.js";
import { MemoryGateway } from "../src/testing.js";
import type { Any, Vector } from "./gateway.js";

const BEHAVIOUR = new URL("../../vectors/behaviour/", import.meta.url);
const load = (name: string): Any => JSON.parse(readFileSync(new URL(name, BEHAVIOUR), "utf8"));
const common = load("common.json");

/** Setting of the double for the answers of a script; undefined if it has no such setting. */
type Setting = (gateway: MemoryGateway, client: Client) => Promise<unknown> | unknown;
const PLAIN = ["granted", "succeeded", "released", "unknown", "renewed", "hold", "hold_released", "hold_renewed"];
const order = ["order.submit", { order_id: "A-1001" }] as const;
const SETTINGS: Record<string, Setting> = {
  in_progress: (_, client) => client.claim(...order),
  duplicate_succeeded: (_, client) => client.once(...order, () => ({ order_number: 6 })),
  duplicate_unknown: async (_, client) => ((await client.claim(...order)) as Grant).giveUp(),
  reset: (gateway) => gateway.failNext(),
  close: (gateway) => gateway.failNext(),
};

interface Settings {
  before: Setting[];
  /** While the work runs: what the report will meet. */
  within: Setting[];
}

function settingsOf({ exchanges, options = {}, calls, needs }: Vector): Settings | null {
  const [call] = calls;
  const isOnce = calls.length === 1 && !call.cancel_at_exchange && ("once" in (call.call ?? common.call) || "lock" in call.call);
  const steps = (call?.work ?? []).flatMap((step: Any) => Object.keys(step));
  const isPlain = steps.every((step: string) => step.startsWith("returns") || step === "raises");
  const isElsewhere = options.urls?.length > 1 || options.on_unavailable === "proceed";
  if (!isOnce || !isPlain || needs?.includes("clock") || isElsewhere) return null;
  const found: Settings = { before: [], within: [] };
  let isGranted = false;
  for (const { answer } of exchanges) {
    isGranted ||= answer === "granted";
    if (typeof answer === "string" && PLAIN.includes(answer)) continue;
    // A time that the gateway asks for is not the double's.
    const status = answer?.use === "problem" && !("retry_after_ms" in answer.body) ? answer.status : 0;
    const setting = typeof answer === "string" ? SETTINGS[answer] : status >= 500 ? failing(status) : undefined;
    if (!setting) return null;
    (isGranted ? found.within : found.before).push(setting);
  }
  return found;
}

const failing =
  (status: number): Setting =>
  (gateway) =>
    gateway.failNext(1, status);

let taken = 0;
for (const file of readdirSync(BEHAVIOUR).filter((name) => name !== "common.json")) {
  for (const vector of load(file).cases as Vector[]) {
    const settings = settingsOf(vector);
    const [call] = vector.calls;
    if (!settings || JSON.stringify(call.call ?? "").includes("$")) continue;
    taken++;
    test(`${file}: ${vector.name}`, async () => {
      const gateway = new MemoryGateway();
      const events: string[] = [];
      const { credential } = common.options;
      for (const setting of settings.before) await setting(gateway, gateway.client({ credential }));
      const { claim_within_ms, settle_within_ms, on_unavailable } = { ...common.options, ...vector.options };
      const client = gateway.client({
        credential,
        claimWithinMs: claim_within_ms,
        settleWithinMs: settle_within_ms,
        onUnavailable: on_unavailable,
        onEvent: ({ name }) => events.push(name),
      });
      let runs = 0;
      const work = () => {
        runs++;
        for (const setting of settings.within) void setting(gateway, client);
        for (const step of call.work ?? common.work) {
          if ("returns" in step) return step.returns;
          if ("returns_unserialisable" in step) return { total: 1n };
          if ("returns_text_of" in step) return "x".repeat(step.returns_text_of);
          if ("raises" in step) throw step.raises === "nothing_happened" ? new NothingHappened() : new Error("who knows");
        }
      };
      const got = await make(client, call.call ?? common.call, work).catch((error) => error);
      const { expected } = call;
      const [[kind, fields]] = Object.entries<Any>(expected) as [[string, Any]];
      if (kind === "error") {
        const name =
          got instanceof OncegateError ? got.name.replace(/(?!^)[A-Z]/g, (letter) => `_${letter}`).toLowerCase() : "work";
        assert.equal(name, expected.error, String(got?.stack));
        if (expected.code) assert.equal(got.code, expected.code);
      } else {
        if (got instanceof Error) throw got;
        if (kind !== "hold") assert.equal(got.kind, kind);
        for (const name of ["state", "result", "late"] as const)
          if (name in fields) assert.deepEqual(got[name], fields[name], name);
      }
      assert.equal(runs, call.runs);
      // A call that was answered late has the same events, but for tries of a time that the script has chosen.
      if (call.events)
        assert.deepEqual(
          events,
          call.events.map((event: Any) => event.name ?? event),
        );
    });
  }
}

test("most vectors of one gateway were run on the double", () => {
  assert.ok(taken >= 15, `${taken}`);
});

async function make(client: Client, call: Any, work: () => Any): Promise<Any> {
  const { once, lock } = call;
  if (lock) return { result: await client.lock(lock.name).run(work, lock.wait ? { wait: lock.wait } : {}) };
  const { operation, contents, fingerprint, lease, retention, take_over: takeOver, wait } = once;
  const terms = Object.entries({ fingerprint, lease, retention, takeOver, wait }).filter(([, value]) => value !== undefined);
  return client.once(operation, contents, work, Object.fromEntries(terms));
}

/** Calls whose answers are compared. Operations are fresh for each run. */
async function calls(client: Client, run: string): Promise<Any[]> {
  const said: Any[] = [];
  const say = (value: Any) => {
    const { kind, state, result, resultOmitted, code, status, name, takenOver, repeated, lost, late, omitted } = value ?? {};
    const grant = value instanceof Grant ? "grant" : undefined;
    said.push({ grant, kind, state, result, resultOmitted, code, status, name, takenOver, repeated, lost, late, omitted });
    return value;
  };
  const contents = (id: string) => ({ id: `${run}-${id}` });
  const first = say(await client.claim("a", contents("1"), { fingerprint: { cents: 5 } })) as Grant;
  say(await client.claim("a", contents("1"), { fingerprint: { cents: 5 } }));
  say(await client.claim("a", contents("1"), { fingerprint: { cents: 6 } }));
  say(await client.claim("a", contents("1")));
  say(await client.lookup(first.globalId));
  await first.renew();
  say(await first.succeed({ number: 7 }));
  say(await client.claim("a", contents("1"), { fingerprint: { cents: 5 } }));
  say(await first.fail().catch((error) => error));
  say(await first.succeed({ number: 7 }).catch((error) => error));
  const second = say(await client.claim("a", contents("2"))) as Grant;
  await second.fail();
  const third = say(await client.claim("a", contents("2"))) as Grant;
  say(await second.succeed("late").catch((error) => error));
  await third.giveUp();
  say(await client.claim("a", contents("2")));
  const fourth = say(await client.claim("a", contents("2"), { takeOver: true })) as Grant;
  say(await third.succeed("too late").catch((error) => error));
  say(await fourth.succeed(null));
  say(await client.claim("a", contents("2"), { takeOver: true }));
  const waiting = client.claim("a", contents("3"));
  const held = (await waiting) as Grant;
  const waited = client.claim("a", contents("3"), { wait: "10s" });
  await held.succeed("seen");
  say(await waited);
  const batch = await client.claimBatch(["3", "4"].map((id) => ({ operation: "a", contents: contents(id) })));
  for (const each of batch) say(each);
  const settled = await client.settleBatch([{ grant: batch[1] as Grant, outcome: "success", result: 1n }]);
  for (const each of settled) say(each);
  say(await client.claim("a", contents("4")));
  say(await client.lookup("0".repeat(32)));
  const lock = client.lock(`lock-${run}`);
  const hold = await lock.acquire();
  said.push([hold?.mode, hold?.holds, await lock.acquire(), (await lock.lookup())?.holders.length]);
  await hold?.renew();
  await hold?.release();
  said.push([await lock.lookup()]);
  const shared = client.lock(`lock-${run}`, { mode: "shared" });
  const holds = [await shared.acquire(), await shared.acquire()];
  said.push([holds.map((each) => each?.mode), await lock.acquire()]);
  for (const each of holds) await each?.release();
  return said;
}

const { ONCEGATE_URL: url, ONCEGATE_CREDENTIAL: credential } = process.env;
describe.skipIf(url === undefined)("compared with a real gateway", () => {
  test("the double gives the same answers", async () => {
    const real = new Client(url as string, { credential, onEvent: () => {} });
    const run = String(Date.now());
    const [theirs, ours] = [await calls(real, run), await calls(new MemoryGateway().client(), run)];
    for (const [at, each] of theirs.entries()) assert.deepEqual(ours[at], each, `call ${at}`);
    real.close();
  });
});

test("leases and retentions end when the clock steps", async () => {
  for (const [onLeaseEnd, asked] of [
    ["release", {}],
    ["unknown", {}],
    ["release", { onLeaseEnd: "unknown" }],
  ] as const) {
    const gateway = new MemoryGateway({ onLeaseEnd });
    const client = gateway.client();
    const grant = (await client.claim(...order, { lease: "30s", ...asked })) as Grant;
    gateway.advance("31s");
    assert.equal(grant.isLive, false);
    assert.deepEqual(
      gateway.claims.map(({ state }) => state),
      onLeaseEnd === "release" && !("onLeaseEnd" in asked) ? [] : ["unknown"],
    );
  }
  const gateway = new MemoryGateway();
  const client = gateway.client();
  await client.once(...order, () => 1, { retention: "1h" });
  gateway.advance("2h");
  assert.equal((await client.once(...order, () => 2)).kind, "done");
});

test("failures are counted, and an outage lasts until it ends", async () => {
  const gateway = new MemoryGateway();
  const client = gateway.client({ claimWithin: "2s" });
  gateway.failNext(2, 503);
  assert.equal((await client.once(...order, () => 1)).kind, "done");
  gateway.unavailable();
  await assert.rejects(gateway.client({ claimWithin: "100ms" }).claim(...order), { name: "Unavailable" });
  gateway.unavailable(false);
  assert.equal((await client.once(...order, () => 1)).kind, "duplicate");
});
