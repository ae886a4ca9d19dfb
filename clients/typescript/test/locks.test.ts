/** Locks against a real gateway, which ONCEGATE_BIN names. Each client is one process of a fleet. */

import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { type AddressInfo, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";

import { afterAll, beforeAll, describe, test } from "vitest";

import { Client, type Hold, type LockRecord, type LockTerms } from "../src/index.js";

const program = process.env.ONCEGATE_BIN;

async function until(what: string, withinMs: number, holds: () => Promise<boolean>): Promise<void> {
  for (const ends = Date.now() + withinMs; !(await holds()); await pause(20))
    assert.ok(Date.now() < ends, `not within ${withinMs} ms: ${what}`);
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  return port;
}

// Without a gateway: set ONCEGATE_BIN.
describe.skipIf(program === undefined)("locks of a real gateway", () => {
  const folder = mkdtempSync(join(tmpdir(), "oncegate-locks-"));
  let gateway: ChildProcess;
  let one: Client;
  let two: Client;

  beforeAll(async () => {
    const listen = `127.0.0.1:${await freePort()}`;
    const admin = `127.0.0.1:${await freePort()}`;
    const serve = ["serve", "--engine", "memory:", "--data-dir", folder, "--listen", listen, "--admin-listen", admin];
    // A gateway takes each variable with this prefix for a setting, and scripts/with-gateway sets some for clients.
    const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("ONCEGATE_")));
    gateway = spawn(program ?? "", serve, { stdio: "ignore", env });
    const quiet = { onEvent: () => {} };
    one = new Client([`http://${listen}`], quiet);
    two = new Client([`http://${listen}`], quiet);
    await until("the gateway answers", 30_000, () =>
      one
        .lock("any")
        .lookup()
        .then(
          () => true,
          () => false,
        ),
    );
  });
  afterAll(() => {
    one.close();
    two.close();
    gateway.kill("SIGKILL");
    rmSync(folder, { recursive: true, force: true });
  });

  const acquired = async (client: Client, name: string, terms: LockTerms = {}): Promise<Hold> => {
    const hold = await client.lock(name, terms).acquire();
    assert.ok(hold, `${name} is held`);
    return hold;
  };
  const found = async (client: Client, name: string): Promise<LockRecord> => {
    const record = await client.lock(name).lookup();
    assert.ok(record, `${name} is free`);
    return record;
  };

  test("another client is excluded until the release", async () => {
    const hold = await acquired(one, "excluded");
    assert.equal(await two.lock("excluded").acquire(), null);
    const { held, mode, fence, holders } = await found(two, "excluded");
    assert.deepEqual(
      { held, mode, fence, holders: holders.length },
      { held: true, mode: "exclusive", fence: hold.fence, holders: 1 },
    );
    await hold.release();
    assert.equal(await two.lock("excluded").lookup(), null);
    const next = await acquired(two, "excluded");
    assert.ok(next.fence > hold.fence);
    await next.release();
  });

  test("a waiter is granted on the release", async () => {
    const hold = await acquired(one, "waited");
    const waiting = two.lock("waited", { fair: true }).acquire({ wait: "60s" });
    await until("it waits", 30_000, async () => (await found(one, "waited")).waiting === 1);
    await hold.release();
    const next = await waiting;
    assert.ok(next && next.fence > hold.fence);
    await next.release();
  });

  test("a lock outlives its lease while it is renewed", async () => {
    const hold = await acquired(one, "renewed", { lease: "3s" });
    await pause(4000);
    assert.ok(hold.isLive, String(hold.lost));
    assert.equal(await two.lock("renewed").acquire(), null);
    assert.deepEqual(
      (await found(two, "renewed")).holders.map(({ leaseMs }) => leaseMs <= 3000),
      [true],
    );
    await hold.release();
  });

  test("a wait that is aborted leaves no place in the queue", async () => {
    const hold = await acquired(one, "aborted");
    const abort = new AbortController();
    const reason = new Error("the caller has gone");
    const ended = assert.rejects(two.lock("aborted", { fair: true }).acquire({ wait: "60s", signal: abort.signal }), reason);
    await until("it waits", 30_000, async () => (await found(one, "aborted")).waiting === 1);
    abort.abort(reason);
    await ended;
    // A place that is not given back ends after ten seconds.
    await until("it has left", 8000, async () => (await found(one, "aborted")).waiting === 0);
    await hold.release();
  });

  test("readers share, and exclude a writer", async () => {
    const first = await acquired(one, "read", { mode: "shared" });
    const second = await acquired(two, "read", { mode: "shared" });
    const { mode, holders } = await found(one, "read");
    assert.deepEqual([mode, holders.length, first.fence], ["shared", 2, second.fence]);
    await first.release();
    assert.equal(await one.lock("read").acquire(), null);
    await second.release();
    await (await acquired(one, "read")).release();
  });

  test("a hold is lost while no gateway answers", async () => {
    const hold = await acquired(one, "lost", { lease: "1s" });
    const lost = once(hold.lostSignal, "abort", { signal: AbortSignal.timeout(30_000) });
    gateway.kill("SIGSTOP");
    try {
      await lost;
      assert.deepEqual([hold.isLive, hold.lost], [false, "not_renewed"]);
      // The gateway may have granted it a little later than the client counts.
      await pause(1000);
    } finally {
      gateway.kill("SIGCONT");
    }
    const next = await two.lock("lost").acquire({ wait: "30s" });
    assert.ok(next && next.fence > hold.fence);
    await hold.release();
    assert.equal((await found(two, "lost")).holders.length, 1, "the release of the lost hold released the next one");
    await next.release();
  });
});
