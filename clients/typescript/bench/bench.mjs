// Cost of `once` around an empty function, compared with the same two calls written by hand with `node:http`.
//
// Run it with `scripts/with-gateway node clients/typescript/bench/bench.mjs SECONDS`, after `npm run build`.

import { randomBytes } from "node:crypto";
import http from "node:http";

import { Client } from "../dist/index.js";

const ROUNDS = 5;
const { ONCEGATE_URL, ONCEGATE_CREDENTIAL } = process.env;
const seconds = Number(process.argv[2] ?? 2);
const { hostname, port } = new URL(ONCEGATE_URL);
const agent = new http.Agent({ keepAlive: true, maxFreeSockets: 64 });
const client = new Client([ONCEGATE_URL], { credential: ONCEGATE_CREDENTIAL });
let orders = 0;

function order() {
  orders += 1;
  return `A-${process.pid}-${orders}`;
}

function post(path, members) {
  const body = JSON.stringify(members);
  const authorization = `Bearer ${ONCEGATE_CREDENTIAL}`;
  const headers = { "content-type": "application/json", authorization, "content-length": Buffer.byteLength(body) };
  return new Promise((resolve, reject) => {
    const request = http.request({ hostname, port, path, method: "POST", agent, headers }, (response) => {
      const pieces = [];
      response.on("data", (piece) => pieces.push(piece));
      response.on("end", () => resolve(JSON.parse(Buffer.concat(pieces).toString())));
    });
    request.on("error", reject);
    request.end(body);
  });
}

async function byHand() {
  const contents = { order_id: order() };
  const claim = { operation: "order.submit", contents, attempt_nonce: randomBytes(16).toString("hex") };
  const { global_id: id, attempt } = await post("/v1/claims", claim);
  return post(`/v1/claims/${id}/outcome`, { attempt, outcome: "success", result: 7 });
}

const once = () => client.once("order.submit", { order_id: order() }, () => 7);

/** Microseconds of CPU for each run of both calls. */
async function cpuOf(callers, call) {
  const [start, used] = [performance.now(), process.cpuUsage()];
  let runs = 0;
  const caller = async () => {
    for (; performance.now() - start < seconds * 1000; runs++) await call();
  };
  await Promise.all(Array.from({ length: callers }, caller));
  const { user, system } = process.cpuUsage(used);
  return (user + system) / runs;
}

const median = (figures) => figures.toSorted((a, b) => a - b)[ROUNDS >> 1];

for (const callers of [1, 64]) {
  // Alternately, so that both have the same conditions; the first round warms up.
  const figures = { byHand: [], once: [] };
  for (let round = 0; round <= ROUNDS; round++) {
    const taken = { byHand: await cpuOf(callers, byHand), once: await cpuOf(callers, once) };
    if (round > 0) for (const [name, figure] of Object.entries(taken)) figures[name].push(figure);
  }
  const [hand, own] = [median(figures.byHand), median(figures.once)];
  console.log(`${callers} callers: by hand ${hand.toFixed(0)} µs, once ${own.toFixed(0)} µs, ${(own / hand).toFixed(2)} times`);
}
client.close();
agent.destroy();
