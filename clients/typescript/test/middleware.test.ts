/** Rules of the middleware in addition to the vectors, on each framework. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import net from "node:net";
import { Readable } from "node:stream";
import { setTimeout as pause } from "node:timers/promises";

import { afterEach, describe, test } from "vitest";

import { current } from "../src/express.js";
import { MemoryGateway } from "../src/testing.js";
import { frameworks, type Handler, type Options } from "./frameworks.js";
import type { Any } from "./gateway.js";

const SHARED: Any = JSON.parse(readFileSync(new URL("../../vectors/shared.json", import.meta.url), "utf8"));

class StockError extends Error {}
class SoldOut extends StockError {
  readonly answer = 409;
}

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0)) await close();
});

for (const [name, start] of Object.entries(frameworks)) {
  describe(name, () => {
    const serve = async (handler: Handler, options: Partial<Options> = {}) => {
      const gateway = new MemoryGateway();
      const events: Any[] = [];
      const results: string[] = [];
      const client = gateway.client({
        onEvent: (event) => events.push(event),
        metrics: { request: () => {}, protected: (_operation, result) => results.push(result) },
      });
      const { url, close, drain } = await start(handler, { client, ...options });
      closing.push(close);
      const post = (key: string | null, init: Any = {}) =>
        fetch(`${url}/orders`, {
          method: "POST",
          body: "one",
          ...init,
          headers: { "x-user": "alice", ...(key !== null && { "idempotency-key": key }), ...init.headers },
        });
      return { gateway, client, events, results, post, url, drain };
    };
    const counting = (answer: () => Any = () => ({})): [Handler, () => number] => {
      let runs = 0;
      return [
        async () => {
          runs++;
          return { body: `run ${runs}`, ...(await answer()) };
        },
        () => runs,
      ];
    };

    test("twenty clicks at once have one effect", async () => {
      const [handler, runs] = counting(() => pause(50));
      const { post } = await serve(handler, { wait: "5s" });
      const clicks = await Promise.all(Array.from({ length: 20 }, () => post("k-1")));
      assert.deepEqual(new Set(await Promise.all(clicks.map((click) => click.text()))), new Set(["run 1"]));
      assert.equal(clicks.filter(({ headers }) => headers.get("idempotent-replayed")).length, 19);
      assert.equal(runs(), 1);
    });

    test("fields of outer layers are theirs, at a replay too", async () => {
      const [handler] = counting(() => ({ headers: { "X-Own": "1", Link: ["</a>", "</b>"] } }));
      const { post, gateway } = await serve(handler);
      const first = await post("k-1");
      const second = await post("k-1");
      const id = first.headers.get("x-request-id");
      assert.ok(id?.startsWith("r-") && second.headers.get("x-request-id")?.startsWith("r-"));
      assert.notEqual(second.headers.get("x-request-id"), id);
      assert.deepEqual([second.headers.get("x-own"), second.headers.get("link")], ["1", "</a>, </b>"]);
      const { v, status, fields, body } = (gateway.claims[0] as Any).result;
      assert.deepEqual([v, status, Buffer.from(body, "base64").toString()], [1, 201, "run 1"]);
      const names = fields.map(([field]: Any) => field);
      assert.ok(!names.includes("x-request-id") && !names.includes("x-powered-by"), `${names}`);
      assert.deepEqual(
        fields.filter(([field]: Any) => field === "link"),
        [
          ["link", "</a>"],
          ["link", "</b>"],
        ],
      );
    });

    test("the claim has the contents that every language gives it", async () => {
      const { post, gateway } = await serve(counting()[0]);
      await post('"k\\"1"');
      const principal = "2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90";
      assert.deepEqual(gateway.claims[0]?.contents, { key: 'k"1', principal });
    });

    test("declared errors, their subclasses too, release the key; others do not", async () => {
      for (const [error, again] of [
        [new SoldOut(), 2],
        [Object.assign(new Error("wrapped", { cause: new SoldOut() }), { answer: 500 }), 1],
      ] as [Error, number][]) {
        let runs = 0;
        const handler = () => {
          runs++;
          if (runs === 1) throw error;
          return { body: "done" };
        };
        const { post } = await serve(handler, { nothingHappened: [StockError] });
        assert.equal(await (await post("k-1")).text(), "handled");
        await post("k-1");
        assert.equal(runs, again, String(error));
      }
    });

    test("the handler finds its grant, marks it, and learns that its caller has disconnected", async () => {
      let seen: Any;
      const { post, gateway } = await serve(({ grant }) => {
        seen = { same: current() === grant, fence: grant?.fence, gone: grant?.callerGone.aborted };
        grant?.mark("failure");
        assert.throws(() => grant?.mark("done" as Any), TypeError);
        return { status: 200 };
      });
      await post("k-1");
      assert.deepEqual(seen, { same: true, fence: 1, gone: false });
      assert.equal(gateway.claims.length, 0);
      assert.equal(current(), undefined);
    });

    for (const [body, why] of [
      [() => "x".repeat(60_000), "text"],
      [
        () =>
          Readable.from(
            (async function* () {
              for (let row = 0; row < 60; row++) yield Buffer.alloc(1000, "x");
            })(),
            { objectMode: false },
          ),
        "a stream",
      ],
    ] as [() => Any, string][]) {
      test(`a caller that hangs up does not stop the handler: ${why}`, async () => {
        let gone: AbortSignal | undefined;
        const go = gate();
        const { gateway, url } = await serve(
          async ({ grant }) => {
            gone = grant?.callerGone;
            await go.passed;
            return { body: body() };
          },
          { responseBytes: 100_000 },
        );
        const socket = net.connect(Number(new URL(url).port), "127.0.0.1");
        socket.write("POST /orders HTTP/1.1\r\nHost: a\r\nX-User: alice\r\nIdempotency-Key: k-1\r\nContent-Length: 3\r\n\r\none");
        await until(() => gateway.claims.length === 1 && gone !== undefined);
        socket.resetAndDestroy();
        await until(() => gone?.aborted === true);
        go.pass();
        await until(() => gateway.claims[0]?.state === "succeeded");
      });
    }

    test("no caller takes a response for complete before its outcome is recorded", async () => {
      for (const body of [() => "order 7", () => Readable.from([Buffer.from("order "), Buffer.from("7")])]) {
        const { post, client } = await serve(() => ({ body: body() }));
        const [reported, go] = [gate(), gate()];
        const [server] = (client as Any).transport.servers;
        const call = server.call.bind(server);
        server.call = async (request: Any) => {
          if (request.path.endsWith("/outcome")) {
            reported.pass();
            await go.passed;
          }
          return call(request);
        };
        let isWhole = false;
        const text = post("k-1").then(async (answer) => {
          const all = await answer.text();
          isWhole = true;
          return all;
        });
        await reported.passed;
        await pause(50);
        assert.equal(isWhole, false);
        go.pass();
        assert.equal(await text, "order 7");
      }
    });

    test("observe refuses and replays nothing, and counts", async () => {
      const [handler, runs] = counting();
      const { post, results } = await serve(handler, { observe: true, required: true, bodyBytes: 5 });
      const answers = [
        await post("k-1"),
        await post("k-1"),
        await post("k-1", { body: "two" }),
        await post("a b"),
        await post(null),
        await post("k-2", { headers: { "x-user": "" } }),
        await post("k-3", { body: "longer than five" }),
      ];
      assert.deepEqual([...new Set(answers.map(({ status }) => status))], [201]);
      assert.equal(runs(), answers.length);
      assert.deepEqual(results, ["forwarded", "replayed", "mismatch", "refused", "no_key", "refused", "refused"]);
    });

    test("a long body that is observed reaches the handler whole", async () => {
      const seen: number[] = [];
      const { post } = await serve(({ body }) => ({ body: String(seen.push(body.length)) }), { observe: true, bodyBytes: 5 });
      await post("k-1", { body: "x".repeat(200_000) });
      assert.deepEqual(seen, [200_000]);
    });

    test("requests are counted under the same names in every language", async () => {
      const of = async (rules: { required?: boolean; observe?: boolean }) =>
        serve(counting()[0], { ...rules, methods: ["POST"] });
      const services = [await of({}), await of({ required: true }), await of({ observe: true }), await of({})] as const;
      for (const { name, required = false, observe = false, method = "POST", key, gateway, result } of SHARED.counted) {
        const { client, post, results } = services[gateway ? 3 : required ? 1 : observe ? 2 : 0];
        if (gateway)
          (client as Any).transport.servers[0].call = async ({ path }: Any) =>
            path.endsWith("/outcome")
              ? { status: 200, fields: { global_id: path.split("/")[3], state: "released" } }
              : { status: gateway.status, fields: gateway.body };
        results.splice(0);
        await post(key, { method, ...(method === "GET" && { body: undefined }) });
        assert.deepEqual(results, result === null ? [] : [result], name);
      }
    });

    test("what the options leave out passes, and is counted if it has a key", async () => {
      const [handler, runs] = counting();
      const { post, results } = await serve(handler, { when: () => false });
      await post("k-1");
      await post("k-1");
      await post(null);
      assert.deepEqual([runs(), results], [3, ["unprotected", "unprotected"]]);
    });

    test("shared keys need no principal", async () => {
      const [handler, runs] = counting();
      const { post } = await serve(handler, { sharedKeys: true, principal: undefined } as Any);
      await post("k-1");
      await post("k-1", { headers: { "x-user": "bob" } });
      assert.equal(runs(), 1);
    });

    test("an error of the principal goes to the framework", async () => {
      const failing = () => {
        throw Object.assign(new Error("no session"), { answer: 401 });
      };
      const { post, gateway } = await serve(counting()[0], { principal: failing });
      const answer = await post("k-1");
      assert.deepEqual([answer.status, await answer.text(), gateway.claims.length], [401, "handled", 0]);
    });

    test("refusals have the form of the service", async () => {
      const render = ({ code, status }: Any) => ({
        status: status + 1,
        headers: { "Content-Type": "application/vnd.shop+json" },
        body: JSON.stringify({ error: code }),
      });
      const { post } = await serve(counting()[0], { render });
      const answer = await post("a b");
      const { headers } = answer;
      assert.deepEqual([answer.status, headers.get("content-type")], [401, "application/vnd.shop+json"]);
      assert.deepEqual(await answer.json(), { error: "idempotency_key_invalid" });
    });

    test("a body of another length than declared is no whole response", async () => {
      for (const length of ["2", "9"]) {
        const body = () => Readable.from([Buffer.from("a"), Buffer.from("bc")]);
        const { post, gateway } = await serve(() => ({ headers: { "Content-Length": length }, body: body() }));
        await post("k-1")
          .then((answer) => answer.text())
          .catch(() => "broken");
        await until(() => gateway.claims[0]?.state === "unknown");
      }
    });

    test("a response that Node.js refuses to send breaks off, and the service goes on", async () => {
      const { post } = await serve(() => ({ headers: { "Content-Length": "3", Trailer: "X-Sum" }, body: "abc" }));
      await post("k-1")
        .then((answer) => answer.text())
        .catch(() => "broken");
      assert.equal((await post("k-1")).status < 600, true);
    });

    test("cookies and private responses are stored if that is said", async () => {
      const [handler] = counting(() => ({ headers: { "Set-Cookie": ["a=1", "b=2"], "Cache-Control": "private, no-store" } }));
      const { post } = await serve(handler, { storePrivate: true, storeWith: ["Set-Cookie"], storeWithout: ["Cache-Control"] });
      await post("k-1");
      const again = await post("k-1");
      assert.deepEqual([again.status, again.headers.getSetCookie()], [201, ["a=1", "b=2"]]);
      assert.equal(again.headers.get("cache-control"), null);
    });

    for (const [on5xx, state] of [
      ["unknown", "unknown"],
      ["store", "succeeded"],
      ["release", undefined],
    ] as const) {
      test(`a 5xx with on5xx ${on5xx}`, async () => {
        const { post, gateway } = await serve(() => ({ status: 502, body: "no" }), { on5xx });
        assert.equal((await post("k-1")).status, 502);
        assert.equal(gateway.claims[0]?.state, state);
      });
    }

    test("an outage while the outcome is reported does not replace the response", async () => {
      let gateway: MemoryGateway | undefined;
      const [handler] = counting(() => gateway?.unavailable());
      const served = await serve(handler, { settleWithin: "200ms" });
      gateway = served.gateway;
      const answer = await served.post("k-1");
      assert.deepEqual([answer.status, await answer.text()], [201, "run 1"]);
      assert.ok(served.events.some((event) => event.name === "not_settled"));
    });

    test("a gateway that is back after an unprotected run records its response", async () => {
      let gateway: MemoryGateway | undefined;
      const [handler, runs] = counting(() => gateway?.unavailable(false));
      const served = await serve(handler, { onUnavailable: "proceed", claimWithin: "100ms" });
      gateway = served.gateway;
      gateway.unavailable();
      const [first, second] = [await served.post("k-1"), await served.post("k-1")];
      assert.deepEqual([first.headers.get("oncegate-degraded"), first.headers.get("idempotent-replayed")], ["caller", null]);
      assert.deepEqual([await second.text(), second.headers.get("idempotent-replayed"), runs()], ["run 1", "true", 1]);
    });

    test("a gateway that names operations differently is not taken for a caller's mistake", async () => {
      const [handler, runs] = counting();
      const { post, client, events } = await serve(handler);
      (client as Any).transport.servers[0].call = async ({ path }: Any) =>
        path.endsWith("/outcome")
          ? { status: 200, fields: { global_id: "f".repeat(32), state: "released" } }
          : { status: 201, fields: { global_id: "f".repeat(32), attempt: "1-2", lease_ms: 1000 } };
      const answer = await post("k-1");
      assert.deepEqual([answer.status, ((await answer.json()) as Any).code, runs()], [500, "identity_differs", 0]);
      assert.ok(events.some(({ level, name: event }) => level === "error" && event === "rejected"));
    });

    test("a quota and an outage are refused, each with its code", async () => {
      const { post, gateway, client } = await serve(counting()[0], { claimWithin: "100ms" });
      gateway.unavailable();
      const away = await post("k-1");
      assert.deepEqual(
        [away.status, away.headers.get("retry-after"), ((await away.json()) as Any).code],
        [503, "1", "store_unavailable"],
      );
      (client as Any).transport.servers[0].call = async () => ({
        status: 429,
        fields: { code: "quota_exceeded", retry_after_ms: 7000 },
      });
      const quota = await post("k-1");
      assert.deepEqual(
        [quota.status, quota.headers.get("retry-after"), ((await quota.json()) as Any).code],
        [429, "7", "quota_exceeded"],
      );
    });

    test("a stream whose caller disconnects is unknown with stopWhenGone, and its source ends", async () => {
      let source: Any;
      const { post, gateway } = await serve(
        () => {
          source = new Readable({ read() {} });
          source.push("begun");
          return { body: source };
        },
        { stopWhenGone: true },
      );
      const abort = new AbortController();
      await post("k-1", { signal: abort.signal });
      abort.abort();
      await until(() => gateway.claims[0]?.state === "unknown");
      // Express has piped it, which does not end it.
      if (name !== "express") await until(() => source.destroyed);
    });

    test("a run that takes too long is unknown, until its response comes", async () => {
      const { post, gateway, drain } = await serve(
        async () => {
          await until(() => gateway.claims[0]?.state === "unknown");
          assert.ok(await drain("10s"), "it is no longer waited for");
          return { body: "late" };
        },
        { exchangeMax: "50ms", lease: "1s" },
      );
      const first = await post("k-1");
      assert.deepEqual([first.status, await first.text()], [201, "late"]);
      assert.equal(gateway.claims[0]?.state, "succeeded");
      const second = await post("k-1");
      assert.deepEqual([await second.text(), second.headers.get("idempotent-replayed")], ["late", "true"]);
    });
  });
}

function gate(): { passed: Promise<void>; pass: () => void } {
  let pass = () => {};
  const passed = new Promise<void>((resolve) => {
    pass = resolve;
  });
  return { passed, pass };
}

async function until(condition: () => boolean): Promise<void> {
  for (const ends = performance.now() + 15_000; !condition(); await pause(5))
    assert.ok(performance.now() < ends, "it does not come");
}
