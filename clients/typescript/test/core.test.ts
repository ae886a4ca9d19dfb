/** Rules of the core in addition to the vectors: the identity of a grant, options, the switch. */

import assert from "node:assert/strict";
import http from "node:http";
import type { AddressInfo } from "node:net";

import { afterEach, test } from "vitest";

import { Client, once, Rejected } from "../src/index.js";
import type { Any } from "./gateway.js";

const FOREIGN = "f".repeat(32);
const closing: (() => void)[] = [];
afterEach(() => {
  for (const close of closing.splice(0)) close();
});

/** A gateway that grants another identity than it was asked for. */
async function foreign(): Promise<{ url: string; outcomes: Any[] }> {
  const outcomes: Any[] = [];
  const grant = ({ attempt_nonce }: Any) => ({ global_id: FOREIGN, attempt: `1-${attempt_nonce}`, lease_ms: 30_000, fence: 7 });
  const server = http.createServer(async (request, response) => {
    let text = "";
    for await (const piece of request) text += piece;
    const body = JSON.parse(text);
    const reply = (status: number, fields: Any) => response.writeHead(status).end(JSON.stringify(fields));
    if (request.url?.endsWith("/outcome")) {
      outcomes.push({ id: request.url.split("/")[3], outcome: body.outcome });
      return reply(200, { global_id: FOREIGN, state: "released", late: false });
    }
    if (request.url?.endsWith("/batch"))
      return reply(200, { items: body.items.map((item: Any) => ({ status: 201, ...grant(item) })) });
    reply(201, grant(body));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  closing.push(() => server.close().closeAllConnections());
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, outcomes };
}

const ways: Record<string, (client: Client, work: () => string) => Promise<unknown>> = {
  once: (client, work) => client.once("order.submit", { order_id: "A-1001" }, work),
  claim: (client) => client.claim("order.submit", { order_id: "A-1001" }),
  "claim with a wait": (client) => client.claim("order.submit", { order_id: "A-1001" }, { wait: "1s" }),
  function: (client, work) => once(work, { client, operation: "order.submit", contents: () => ({ order_id: "A-1001" }) })(),
  batch: async (client) => {
    const [first] = await client.claimBatch([{ operation: "order.submit", contents: { order_id: "A-1001" } }]);
    if (first instanceof Error) throw first;
  },
};
for (const [name, way] of Object.entries(ways)) {
  test(`a grant of another identity is released before the work: ${name}`, async () => {
    const { url, outcomes } = await foreign();
    const client = new Client([url], { credential: "shop.c2VjcmV0", onEvent: () => {} });
    closing.push(() => client.close());
    let runs = 0;
    await assert.rejects(
      way(client, () => `run ${++runs}`),
      (error) => error instanceof Rejected && error.code === "identity_differs",
    );
    assert.equal(runs, 0);
    while (outcomes.length === 0) await new Promise(setImmediate);
    assert.deepEqual(outcomes, [{ id: FOREIGN, outcome: "failure" }]);
  });
}

const terms = (all: Any) => () => new Client(["http://127.0.0.1:1"]).claim("order.submit", { order_id: "A-1001" }, all);
const wrong: [string, () => unknown, RegExp][] = [
  [
    "an option",
    () => new Client(["http://127.0.0.1:1"], { credentials: "shop.x" } as Any),
    /options of a client have no credentials/,
  ],
  ["an option without URLs", () => new Client({ timout: "1s" } as Any), /have no timout/],
  ["a duration of the client", () => new Client({ timeout: "2 seconds" }), /^TypeError: timeout is a duration/],
  ["milliseconds of the client", () => new Client({ settleWithinMs: 0 }), /settleWithinMs is a number/],
  ["both forms", () => new Client({ claimWithin: "1s", claimWithinMs: 1000 }), /claimWithin and claimWithinMs/],
  ["onUnavailable", () => new Client({ onUnavailable: "open" as Any }), /onUnavailable is/],
  ["enabled", () => new Client({ enabled: "no" as Any }), /enabled is true or false/],
  ["a URL", () => new Client("10.0.0.5:8080"), /not the URL of a gateway/],
  ["a term", terms({ leese: "30s" }), /terms of a claim have no leese/],
  ["a lease", terms({ lease: "soon" }), /lease is a duration/],
  ["a lease in milliseconds", terms({ leaseMs: -1 }), /leaseMs is a number/],
  ["a retention", terms({ retention: 30 }), /retention is a duration/],
  ["a wait", terms({ wait: "10" }), /wait is a duration/],
  ["a limit", () => new Client().with({ timeoutMs: 1 } as Any), /limits of a client have no timeoutMs/],
  ["a term of a lock", () => new Client().lock("stock:42", { leased: "1s" } as Any), /terms of a lock have no leased/],
  ["a lease of a lock", () => new Client().lock("stock:42", { lease: "1 s" }), /lease is a duration/],
  ["a wait for a lock", () => new Client().lock("stock:42").acquire({ wait: "always" }), /wait is a duration/],
];
for (const [name, make, message] of wrong) {
  test(`refused before anything is sent, by its name: ${name}`, async () => {
    const refused = (error: Error) => error instanceof TypeError && message.test(String(error));
    await assert.rejects(async () => make(), refused);
  });
}

test("durations are text, or milliseconds under a name that ends in Ms", async () => {
  const seen: Any[] = [];
  const server = http.createServer(async (request, response) => {
    let text = "";
    for await (const piece of request) text += piece;
    seen.push(JSON.parse(text));
    response.writeHead(409).end('{"code":"duplicate","state":"succeeded"}');
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  closing.push(() => server.close().closeAllConnections());
  const client = new Client(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, { onEvent: () => {} });
  closing.push(() => client.close());
  for (const given of [
    { lease: "90s", retention: "forever" },
    { leaseMs: 90_000, retentionMs: 60_000 },
  ])
    await client.claim("order.submit", { order_id: "A-1001" }, given);
  assert.deepEqual(
    seen.map(({ lease, retention }) => [lease, retention]),
    [
      ["90s", "forever"],
      ["90s", "1m"],
    ],
  );
});

test("without URLs the environment names the gateway", () => {
  const before = process.env.ONCEGATE_URL;
  process.env.ONCEGATE_URL = "http://10.0.0.5:8080, http://10.0.0.6:8080";
  try {
    // A variable of the environment that is not set is no URL, and leaves the options.
    for (const client of [
      new Client(),
      new Client({ credential: "shop.secret" }),
      new Client(undefined, { credential: "shop.secret" }),
    ]) {
      const { servers } = (client as Any).transport;
      assert.deepEqual(
        servers.map(({ url }: Any) => url),
        ["http://10.0.0.5:8080", "http://10.0.0.6:8080"],
      );
    }
    assert.throws(() => new Client(undefined, { credential: "no dot" }), /credential/);
    assert.throws(() => new Client(undefined, { timeoutt: "1s" } as Any), /timeoutt/);
  } finally {
    if (before === undefined) delete process.env.ONCEGATE_URL;
    else process.env.ONCEGATE_URL = before;
  }
});

test("a copy with other limits shares connections, and does not change its original", () => {
  const client = new Client({ claimWithinMs: 1000 }) as Any;
  const copy = client.with({ claimWithinMs: 50, onUnavailable: "proceed" }) as Any;
  assert.equal(copy.transport, client.transport);
  assert.deepEqual([client.claimWithinMs, client.proceeds, copy.claimWithinMs, copy.proceeds], [1000, false, 50, true]);
});

for (const [name, make] of Object.entries({
  "the option": (onEvent: Any) => new Client(["http://127.0.0.1:1"], { enabled: false, onEvent }),
  "the environment": (onEvent: Any) => {
    process.env.ONCEGATE_DISABLED = "1";
    try {
      return new Client(["http://127.0.0.1:1"], { onEvent });
    } finally {
      delete process.env.ONCEGATE_DISABLED;
    }
  },
})) {
  test(`switched off by ${name}, everything runs and nothing is claimed`, async () => {
    const events: Any[] = [];
    const client = make((event: Any) => events.push(event));
    for (let time = 0; time < 2; time++) {
      const result = await client.once("order.submit", { order_id: "A-1001" }, () => "order 7");
      assert.equal(result.kind, "done");
      const { degraded, state, resultOmitted } = result as Any;
      assert.deepEqual([degraded, state, resultOmitted], ["disabled", null, null]);
      assert.equal(result.globalId, client.globalId("order.submit", { order_id: "A-1001" }));
    }
    const grants = await client.claimBatch([{ operation: "order.submit", contents: { order_id: "A-1001" } }]);
    const settled = await client.settleBatch(grants.map((grant) => ({ grant: grant as Any, outcome: "success" })));
    assert.equal((settled[0] as Any).degraded, "disabled");
    assert.equal(await client.lock("stock:42").run((hold) => hold.isLive), true);
    assert.equal(await client.lookup("0".repeat(32)), null);
    const loud = events.filter(({ level }) => level !== "debug").map((event) => event.name);
    assert.deepEqual(loud, ["disabled"], "one warning, at the start");
  });
}
