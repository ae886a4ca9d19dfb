// The decision in Node: `SET NX` with ioredis, or `once` of the client. See ../README.md.

import { randomBytes } from "node:crypto";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const [callers, warmUp, seconds] = process.argv.slice(2).map(Number);
const { REDIS_URL, ONCEGATE_CREDENTIAL, PEER_MODULES, PEER_CLIENT } = process.env;
const KEPT_MS = 300_000;
const SAMPLE = 200;
const run = randomBytes(4).toString("hex");

// The packages are not in this folder, so that it stays as it is in the repository.
const { claim, close } = REDIS_URL ? bare(createRequire(PEER_MODULES)) : await ours();

function bare(require) {
  const { Redis } = require("ioredis");
  const redis = new Redis(REDIS_URL);
  return {
    async claim(order) {
      const key = `og:{${run}${order.toString(16).padStart(24, "0")}}:load`;
      const attempt = `1767225600000000-${order.toString(16).padStart(16, "0")}`;
      const value = `${attempt} 1p l=306s r=306s o=load.unique c={"order":"${run}-${order}"}`;
      return (await redis.set(key, value, "PX", KEPT_MS, "NX", "GET")) === null;
    },
    close: () => redis.quit(),
  };
}

async function ours() {
  const { Client } = await import(PEER_CLIENT);
  const client = new Client({ credential: ONCEGATE_CREDENTIAL });
  const terms = { lease: "5m", retention: "5m" };
  return {
    async claim(order) {
      return (await client.once("load.unique", { order: `${run}-${order}` }, () => {}, terms)).kind === "done";
    },
    close: () => client.close(),
  };
}

const begins = performance.now() + warmUp * 1000;
const ends = begins + seconds * 1000;
let next = 0;
let granted = 0;
let refused = 0;

async function call() {
  for (let now = performance.now(); now < ends; now = performance.now()) {
    const isGranted = await claim(next++);
    if (now < begins) continue;
    if (isGranted) granted++;
    else refused++;
  }
}

const all = Array.from({ length: callers }, call);
await sleep(warmUp * 1000);
console.log("begin");
await Promise.all(all);
console.log("end", granted, refused);
const step = Math.max(Math.floor(next / SAMPLE), 1);
let repeated = 0;
let again = 0;
for (let order = 0; order < next; order += step, repeated++) {
  if (await claim(order)) again++;
}
console.log("repeated", repeated, again);
for await (const _ of process.stdin);
await close();
