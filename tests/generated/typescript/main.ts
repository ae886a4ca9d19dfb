// The life of a claim with the generated types and openapi-fetch. Arguments: the gateway's URL and a credential.
import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { components, paths } from "./oncegate.js";

type Problem = components["schemas"]["Problem"];

const [, , baseUrl, credential] = process.argv;
const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${credential}` } });
const nonce = () => crypto.randomUUID();

/** The success of a call, which must have this status. */
function good<T>(call: { data?: T; error?: Problem; response: Response }, status: number): T {
  assert.equal(call.response.status, status, JSON.stringify(call.error));
  assert(call.data !== undefined);
  return call.data;
}

/** The problem of a call, which must have this code. */
function problem(call: { error?: Problem; response: Response }, code: string): Problem {
  assert.equal(call.error?.code, code, JSON.stringify(call.error));
  assert.equal(call.error.status, call.response.status);
  return call.error;
}

// An operation from its claim to its duplicate, with an object as contents and as result.
const order = { order_id: `ts-${nonce()}`, lines: [1, 2.5, null, true] };
const claim = { operation: "order.submit", contents: order, attempt_nonce: nonce(), lease: "30s" };
const granted = good(await client.POST("/v1/claims", { body: claim }), 201);
assert.equal(granted.state, "in_progress");
assert.equal(granted.degraded, null);
assert(granted.fence !== null && granted.lease_ms > 20_000 && granted.lease_ms <= 30_000);
assert.equal(good(await client.POST("/v1/claims", { body: claim }), 201).repeated, true);

const path = { global_id: granted.global_id };
const renewed = good(
  await client.POST("/v1/claims/{global_id}/renewal", { params: { path }, body: { attempt: granted.attempt, lease: "2m" } }),
  200,
);
assert(renewed.lease_ms > 60_000);
const running = problem(await client.POST("/v1/claims", { body: { ...claim, attempt_nonce: nonce() } }), "duplicate");
assert(running.state === "in_progress" && running.retry_after_ms! > 0);

const success = { attempt: granted.attempt, outcome: "success", result: { order_number: 90017 } } as const;
const taken = good(await client.POST("/v1/claims/{global_id}/outcome", { params: { path }, body: success }), 200);
assert(taken.state === "succeeded" && taken.late === false);
const done = problem(await client.POST("/v1/claims", { body: claim }), "duplicate");
assert.equal(done.state, "succeeded");
assert.deepEqual(done.result, { order_number: 90017 });

const record = good(await client.GET("/v1/claims/{global_id}", { params: { path } }), 200);
assert.deepEqual(record.contents, order);
assert(Date.parse(record.expires_at!) > Date.now());

// Contents of all other kinds, and all other outcomes.
const others = [
  { contents: `ts-${nonce()}`, outcome: "failure", state: "released" },
  { contents: Math.random(), outcome: "unknown", state: "unknown" },
  { contents: ["ts", nonce()], outcome: "success", state: "succeeded" },
] as const;
for (const { contents, outcome, state } of others) {
  const held = good(await client.POST("/v1/claims", { body: { contents } }), 201);
  const path = { global_id: held.global_id };
  const settled = await client.POST("/v1/claims/{global_id}/outcome", { params: { path }, body: { attempt: held.attempt, outcome } });
  assert.equal(good(settled, 200).state, state);
  const again = await client.POST("/v1/claims", { body: { contents, take_over: true, attempt_nonce: nonce() } });
  if (state === "succeeded") assert.equal("result" in problem(again, "duplicate"), false);
  else assert.equal(good(again, 201).taken_over ?? false, state === "unknown");
}

// Batches: items are grants and problems.
const contents = { order_id: `ts-${nonce()}` };
const claims = good(await client.POST("/v1/claims/batch", { body: { items: [{ contents }, { contents }, { contents: "" }] } }), 200);
assert.deepEqual(claims.items.map((item) => item.status), [201, 409, 422]);
const [first, second] = claims.items;
assert(first.attempt !== undefined && second.code === "duplicate" && second.state === "in_progress");
const report = { global_id: first.global_id!, attempt: first.attempt, outcome: "success", result: null } as const;
const wrong = { global_id: report.global_id, attempt: report.attempt, outcome: "failure" } as const;
const outcomes = good(await client.POST("/v1/outcomes/batch", { body: { items: [report, wrong] } }), 200);
assert.deepEqual(outcomes.items.map((item) => [item.status, item.state ?? item.code]), [[200, "succeeded"], [409, "already_succeeded"]]);
assert.equal(problem(await client.POST("/v1/claims", { body: { contents } }), "duplicate").result, null);

// Problems.
problem(await client.POST("/v1/claims", { body: { contents: 1, lease: "soon" } }), "invalid_request");
problem(await client.POST("/v1/claims", { body: { contents: "" } }), "contents_empty");
problem(await client.POST("/v1/claims", { body: { ...claim, fingerprint: 1 } }), "fingerprint_mismatch");
problem(await client.GET("/v1/claims/{global_id}", { params: { path: { global_id: "0".repeat(32) } } }), "not_found");
const stranger = createClient<paths>({ baseUrl, headers: { Authorization: "Bearer nobody.aaaaaaaaaaaaaaaaaaaaaaaa" } });
problem(await stranger.POST("/v1/claims", { body: claim }), "unauthenticated");

const computed = good(await client.POST("/v1/global-ids", { body: claim }), 200);
assert.equal(computed.global_id, granted.global_id);
const document = await fetch(`${baseUrl}/openapi.yaml`);
assert(document.ok && (await document.text()).startsWith("openapi: 3.0"));
console.log("ok");
