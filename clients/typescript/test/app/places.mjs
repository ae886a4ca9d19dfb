/** The places of the test application: the options of the middleware at each path. */

import net from "node:net";

import { StockError } from "./steps.mjs";

/** Options for each place; `principal` is the framework's own. */
export async function places(Client, principal) {
  const client = new Client();
  const down = new Client(`http://127.0.0.1:${await portWithoutListener()}`, { onEvent: () => {} });
  const one = (at, more = {}) => ({
    client,
    operation: `vectors.${at}`,
    principal,
    lease: "3s",
    bodyBytes: 131_072,
    onUnavailable: "fail_closed",
    ...more,
  });
  return {
    plain: one("plain"),
    required: one("required", { required: true }),
    "put-only": one("put-only", { methods: ["PUT"] }),
    json: one("json", { fingerprint: ["method", "path", "query", "content-type", "if-match", "body:json"] }),
    wait: one("wait", { wait: "5s" }),
    harmless: one("harmless", { nothingHappened: [StockError] }),
    parsed: one("parsed"),
    form: one("form"),
    behind: one("behind"),
    zip: one("zip"),
    down: one("down", { client: down, claimWithinMs: 300 }),
    "down-pass": one("down-pass", { client: down, claimWithinMs: 300, onUnavailable: "proceed" }),
    off: one("off", { enabled: false }),
    observe: one("observe", { observe: true }),
    short: one("short", { exchangeMax: "1s" }),
    stop: one("stop", { stopWhenGone: true }),
    store: one("store", {
      store: ["2xx", 403],
      on5xx: "store",
      storePrivate: true,
      storeWith: ["Set-Cookie"],
      storeWithout: ["X-Secret"],
    }),
  };
}

async function portWithoutListener() {
  const server = net.createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

export async function allOf(stream) {
  const pieces = [];
  for await (const piece of stream) pieces.push(piece);
  return Buffer.concat(pieces);
}
