/** The vectors that all languages share. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { readdirSync, readFileSync } from "node:fs";
import http from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as pause } from "node:timers/promises";

import { describe, test } from "vitest";

import { Client } from "../src/client.js";
import { Consumer } from "../src/consume.js";
import { canonical, Decimal, globalId, Instant, JsonText, PlainDate, Uuid } from "../src/contents.js";
import * as errors from "../src/errors.js";
import { Grant } from "../src/grant.js";
import { md5, md5InFips } from "../src/md5.js";
import type { Event } from "../src/values.js";
import { type Any, Script, type Vector } from "./gateway.js";

const VECTORS = new URL("../../vectors/", import.meta.url);
const load = (path: string): Any => JSON.parse(readFileSync(new URL(path, VECTORS), "utf8"));

class WithoutNames {
  constructor(readonly order_id: string) {}
}

/** No value of JavaScript says this: it has one type of number, and 2.0 is 2. */
const NOT_IN_JAVASCRIPT = ["binary float without a fraction"];

function typed(value: Any): Any {
  if (Array.isArray(value)) return value.map(typed);
  if (value === null || typeof value !== "object") return value;
  const [name = "", inner] = Object.entries(value)[0] ?? [];
  if (!name.startsWith("$")) return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, typed(inner)]));
  const text = String(inner);
  switch (name) {
    case "$int":
      return Number.isSafeInteger(Number(text)) ? Number(text) : BigInt(text);
    case "$decimal":
      return new Decimal(text);
    case "$float":
      return Number(text);
    case "$instant":
      // As a Date where it says the same.
      return /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,3})?(Z|[+-]\d\d:\d\d)$/.test(text) ? new Date(text) : new Instant(text);
    case "$local":
      return new Instant(text);
    case "$date":
      return new PlainDate(text);
    case "$uuid":
      return new Uuid(text);
    case "$json":
      return new JsonText(text);
    case "$utf16":
      return String.fromCharCode(...(text.match(/.{4}/g) ?? []).map((unit) => Number.parseInt(unit, 16)));
    case "$bytes":
      return Buffer.from(text, "hex");
    case "$set":
      return new Set(inner as Any[]);
    case "$object":
      return new WithoutNames("A-1001");
    case "$int_key":
      return new Map([[Number(text), "x"]]);
  }
  throw new Error(`unknown value ${name}`);
}

const contents = load("contents.json");
for (const { name, input, canonical: text, global_id } of contents.accepted) {
  test(`contents: ${name}`, () => {
    assert.equal(canonical(typed(input)), text);
    assert.equal(globalId(contents.app_key, contents.operation, typed(input)), global_id);
    assert.equal(canonical(new JsonText(text)), text, "a canonical form is its own");
  });
}
for (const { name, input, reason, path } of contents.refused) {
  test.skipIf(NOT_IN_JAVASCRIPT.includes(name))(`contents refused: ${name}`, () => {
    assert.throws(() => canonical(typed(input)), { name: "NotCanonical", reason, path });
  });
}

test("in FIPS mode MD5 is the same", () => {
  for (const length of [0, 1, 55, 56, 63, 64, 65, 1000]) {
    const message = new Uint8Array(length).map((_, at) => at * 7);
    assert.equal(md5InFips(message), md5(message));
  }
});

test("each request names its host, and says how long it is", async () => {
  const seen: http.IncomingHttpHeaders[] = [];
  const server = http.createServer((request, response) => {
    seen.push(request.headers);
    request.resume();
    response.writeHead(404, { "content-type": "application/problem+json" }).end('{"code":"not_found"}');
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  const host = `127.0.0.1:${(server.address() as AddressInfo).port}`;
  const client = new Client([`http://${host}/idempotency`], { credential: "shop.secret" });
  assert.equal(await client.lookup("0".repeat(32)), null);
  client.close();
  server.close();
  const [{ host: named, authorization, "content-length": length, connection } = {}] = seen;
  assert.deepEqual([named, authorization, length, connection], [host, "Bearer shop.secret", "0", "keep-alive"]);
});

test("global IDs are those of the gateway", () => {
  const table = load("../../tests/vectors/global_id.json");
  for (const vector of table.accepted) {
    const text = new JsonText(vector.contents_json);
    assert.equal(canonical(text), vector.canonical);
    assert.equal(globalId(vector.app_key, vector.operation, text), vector.global_id);
  }
  for (const { contents_json, why } of table.refused)
    assert.throws(() => canonical(new JsonText(contents_json)), errors.NotCanonical, why);
});

const common = load("behaviour/common.json");
for (const file of readdirSync(new URL("behaviour/", VECTORS)).filter((name) => name !== "common.json")) {
  describe.concurrent(file, () => {
    const cases: Vector[] = load(`behaviour/${file}`).cases;
    for (const vector of cases) test(vector.name, () => run(vector));
  });
}

class WorkError extends Error {}

async function run(vector: Vector): Promise<void> {
  const script = new Script(common, vector);
  const settings = { ...common.options, ...vector.options };
  await script.start(settings.urls);
  let events: Event[] = [];
  const client = new Client(script.urls, {
    credential: settings.credential,
    timeoutMs: settings.timeout_ms,
    claimWithinMs: settings.claim_within_ms,
    settleWithinMs: settings.settle_within_ms,
    onUnavailable: settings.on_unavailable,
    onEvent: (event) => events.push(event),
  });
  // An event may come after the answer that it is about.
  const noted = async (count: number) => {
    for (let tries = 0; tries < 200 && events.length < count; tries++) await pause(20);
  };
  let stepMs = 0;
  (client as Any).transport.now = () => performance.now() + stepMs;
  try {
    for (const [number, call] of vector.calls.entries()) {
      events = [];
      let runs = 0;
      const abort = new AbortController();
      const cancelled = new Error("cancelled");
      const at = call.cancel_at_exchange;
      if (at) void script.read[at - 1]?.passed.then(() => abort.abort(cancelled));
      const work = async (held: Any) => {
        runs++;
        for (const step of call.work ?? common.work) {
          const [[name, value]] = Object.entries<Any>(step) as [[string, Any]];
          if (name === "returns") return value;
          if (name === "returns_unserialisable") return { total: 1250n };
          if (name === "returns_text_of") return "x".repeat(value);
          if (name === "raises") throw value === "nothing_happened" ? new errors.NothingHappened() : new WorkError("who knows");
          if (name === "wait_ms") await pause(value);
          else if (name === "until_exchange") {
            await script.answered[value - 1]?.passed.then(() => pause(20));
            if (call.events) await noted(value);
          } else if (name === "until_lost") await new Promise((resolve) => held.lostSignal.addEventListener("abort", resolve));
          else if (name === "monotonic_clock_steps_ms") stepMs += value;
          else if (name === "sees") assertMembers(seen(held), value, "the work sees");
          else if (name === "cancelled") {
            abort.abort(cancelled);
            throw cancelled;
          } else if (name !== "wall_clock_steps_ms") throw new Error(`unknown step ${name}`);
        }
      };
      const got = await make(client, call.call ?? common.call, work, abort.signal).catch((error) => ofError(error, cancelled));
      if (number === vector.calls.length - 1) {
        for (const [at, { passed }] of script.answered.entries()) {
          const came = await Promise.race([passed.then(() => true), pause(3000, false, { ref: false })]);
          if (!came) script.failures.push(`request ${at + 1} did not come`);
        }
        await pause(20);
      }
      const { expected } = call;
      // The work is done and reported: its result is returned, also if the caller has aborted since.
      const finished =
        expected.error === "cancelled" && vector.name === "during the report: it is finished first" && "done" in got;
      if (!finished) assertMembers(withCauses(got, script.urls), script.filled(expected), vector.name);
      if (call.runs !== undefined) assert.equal(runs, call.runs, "runs");
      await noted(call.events?.length ?? 0);
      if (call.events) checkEvents(events, call.events, script.urls);
    }
    assert.deepEqual(script.failures, []);
    assert.equal(script.next, vector.exchanges.length, "requests");
  } finally {
    client.close();
    script.close();
  }
}

async function make(client: Client, call: Any, work: (held: Any) => Promise<Any>, signal: AbortSignal): Promise<Any> {
  const [[name, args]] = Object.entries<Any>(call) as [[string, Any]];
  switch (name) {
    case "once":
      return ofResult(await client.once(args.operation, typed(args.contents), work, { ...terms(args), signal }));
    case "settle": {
      const { globalId: global_id, resultOmitted, ...rest } = await client.settle(JSON.stringify(args.report));
      return { settled: { global_id, result_omitted: resultOmitted !== null, ...rest } };
    }
    case "lookup":
      return { record: await client.lookup(args.global_id) };
    case "lock_lookup": {
      const record = await client.lock(args.name).lookup();
      const holders = record?.holders.map(({ claimedAt: claimed_at, leaseMs: lease_ms, ...rest }) => ({
        claimed_at,
        lease_ms,
        ...rest,
      }));
      return { lock_record: record && { ...record, holders } };
    }
    case "claim_batch": {
      const results = await client.claimBatch(args.items.map((item: Any) => ({ ...terms(item), ...item })));
      for (const result of results) if (result instanceof Grant) result.stop();
      return { batch: results.map((result) => (result instanceof Error ? ofError(result) : ofResult(result))) };
    }
    case "lock": {
      const { name, wait, ...lockTerms } = args;
      let fence = 0;
      const holding = (hold: Any) => {
        fence = hold.fence;
        return work(hold);
      };
      const result = await client.lock(name, lockTerms).run(holding, { ...(wait && { wait }), signal });
      return { hold: { result, fence } };
    }
  }
  throw new Error(`unknown call ${name}`);
}

function terms({ fingerprint, lease, retention, take_over, on_lease_end, wait }: Any): Any {
  const all = { fingerprint, lease, retention, takeOver: take_over, onLeaseEnd: on_lease_end, wait };
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined));
}

function seen(held: Any): Any {
  const {
    globalId: global_id,
    fence,
    repeated,
    takenOver: taken_over,
    degraded,
    wouldBe: would_be,
    isLive: is_live,
    lost,
  } = held;
  return { global_id, fence, repeated, taken_over, degraded, would_be, is_live, lost };
}

function ofResult(result: Any): Any {
  if (result.kind === "grant") return { grant: seen(result) };
  const { globalId: global_id, wouldBe: would_be, resultOmitted, retryAfterMs: retry_after_ms, kind, ...rest } = result;
  const { claimedAt: claimed_at, expiresAt: expires_at, contentsVerified: contents_verified } = rest;
  const members = { ...rest, global_id, would_be, retry_after_ms, claimed_at, expires_at, contents_verified };
  return { [kind]: { ...members, result_omitted: Boolean(resultOmitted) } };
}

function ofError(error: Any, cancelled?: unknown): Any {
  if (error === cancelled) return { error: "cancelled" };
  if (error instanceof WorkError) return { error: "work" };
  if (error instanceof TypeError) return { error: "argument" };
  const names: Record<string, string> = {
    Unavailable: "unavailable",
    Rejected: "rejected",
    OutcomeRefused: "outcome_refused",
    NotSettled: "not_settled",
    NotCanonical: "not_canonical",
    NothingHappened: "nothing_happened",
    LockNotAcquired: "lock_not_acquired",
  };
  const { status, code, limit, causes, result, reason, path, requestId: request_id, retryAfterMs: retry_after_ms } = error;
  const all = {
    error: names[error.name] ?? String(error.stack),
    status,
    code,
    limit,
    causes,
    result,
    reason,
    path,
    request_id,
    retry_after_ms,
  };
  if (!(error instanceof errors.NotSettled)) return all;
  return { ...all, report: JSON.parse(error.report), cause: ofError(error.cause) };
}

/** With the position of the gateway of each cause. */
function withCauses(value: Any, urls: string[]): Any {
  const causes = value.causes?.map((cause: Any) => ({ ...cause, at: urls.indexOf(cause.url), request_id: cause.requestId }));
  return { ...value, ...(causes && { causes }), ...(value.cause && { cause: withCauses(value.cause, urls) }) };
}

function assertMembers(got: Any, expected: Any, path: string): void {
  if (Array.isArray(expected)) {
    assert.equal(got?.length, expected.length, `${path}: ${JSON.stringify(got)}`);
    for (const [at, item] of expected.entries()) assertMembers(got[at], item, `${path}[${at}]`);
  } else if (expected !== null && typeof expected === "object") {
    assert.ok(got !== null && typeof got === "object", `${path} is ${got}`);
    for (const [name, inner] of Object.entries(expected)) assertMembers(got[name], inner, `${path}.${name}`);
  } else assert.equal(got, expected, path);
}

function eventFields(fields: Any, urls: string[]): Any {
  return fields?.cause ? { ...fields, cause: { ...fields.cause, at: urls.indexOf(fields.cause.url) } } : fields;
}

function checkEvents(events: Event[], expected: Any[], urls: string[]): void {
  const names = events.map(({ name }) => name);
  assert.deepEqual(
    names,
    expected.map((event) => event.name ?? event),
  );
  for (const [at, wanted] of expected.entries()) {
    if (typeof wanted !== "string")
      assertMembers({ ...eventFields(events[at]?.fields, urls), name: names[at] }, wanted, `event ${at}`);
  }
}

test("the environment switches clients off as in every language", () => {
  const before = process.env.ONCEGATE_DISABLED;
  const isOff = (enabled: boolean) => !new Client(["http://127.0.0.1:9"], { enabled, onEvent: () => {} }).enabled;
  try {
    for (const { text, disabled } of load("shared.json").disabled) {
      process.env.ONCEGATE_DISABLED = text;
      if (disabled === "error") assert.throws(() => isOff(true), /ONCEGATE_DISABLED/);
      else assert.deepEqual([isOff(true), isOff(false)], [disabled, true], text);
    }
  } finally {
    if (before === undefined) delete process.env.ONCEGATE_DISABLED;
    else process.env.ONCEGATE_DISABLED = before;
  }
});

test("decisions of a consumer", async () => {
  for (const { end, failures = 0, report_is_kept, decision, delay_ms } of load("decisions.json").decisions) {
    const consumer = new Consumer<null>({
      client: null as unknown as Client,
      operation: "x",
      contents: () => {
        throw new Error("no contents");
      },
      handle: () => null,
      redeliverAfterMs: 7000,
      ...(report_is_kept && { keepReport: () => {} }),
    });
    const made: Record<string, () => unknown> = {
      not_canonical: () => consumer.ofError(new errors.NotCanonical("empty", "$", "")),
      contents_not_derived: () => consumer.consumeOnce(null),
      rejected: () => consumer.ofError(new errors.Rejected(end.status, "", "", null, end.retry_after_ms ?? null)),
      unavailable: () => consumer.ofError(new errors.Unavailable([])),
      nothing_happened: () => consumer.ofWork(new errors.NothingHappened(), failures),
      work: () => consumer.ofWork(new WorkError(), failures),
      outcome_refused: () => consumer.ofError(new errors.OutcomeRefused(end.code, null)),
      not_settled: () => consumer.ofError(new errors.NotSettled("{}", null, new errors.Unavailable([]))),
    };
    const [[kind, fields]] = Object.entries<Any>(end) as [[string, Any]];
    const result = { kind, ...fields, retryAfterMs: fields.retry_after_ms };
    const got = (await (end.error ? made[end.error]?.() : consumer.ofResult(result))) as Any;
    assert.equal(got?.action, decision, JSON.stringify(end));
    if (decision === "redeliver") assert.equal(got.delayMs, delay_ms ?? 7000, JSON.stringify(end));
  }
});
