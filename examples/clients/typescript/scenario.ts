// The program that the tests run: the client of this folder in its own process, with options as `name=value`.
// The same options and lines as ../python/scenario.py, which explains them.

import { Gateway, Held, NothingHappened, NotSettled, OutcomeRefused, Rejected, Unavailable, globalId } from "./oncegate.js";
import type { Json } from "./oncegate.js";

declare const process: { argv: string[] };

const sleep = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));
const say = (...words: unknown[]) => console.log(words.map((word) => word ?? "-").join(" "));
const number = (result: any) => result?.order_number;

async function main(what: string, words: string[]) {
  if (what === "vectors") return vectors(words[0]);
  const settings = Object.fromEntries(words.map((word) => [word.slice(0, word.indexOf("=")), word.slice(word.indexOf("=") + 1)]));
  const gateway = new Gateway(settings.urls.split(","), {
    credential: settings.credential,
    onUnavailable: settings.policy === "proceed" ? "proceed" : "fail_closed",
    timeoutMs: Number(settings.timeout ?? 1000),
    claimWithinMs: Number(settings.claim_within ?? 5000),
    settleWithinMs: Number(settings.settle_within ?? 30000),
  });
  await (what === "orders" ? orders(gateway, settings) : one(gateway, settings));
}

async function orders(gateway: Gateway, settings: Record<string, string>) {
  const worker = async () => {
    for (let at = 0; at < Number(settings.orders); at++) {
      for (let pause; (pause = await tryOrder(gateway, settings, `A-${at}`)) !== null; ) await sleep(pause);
    }
  };
  await Promise.all(Array.from({ length: Number(settings.workers) }, worker));
}

/** Null once the order has an answer, else how long to wait. */
async function tryOrder(gateway: Gateway, settings: Record<string, string>, order: string): Promise<number | null> {
  try {
    const answer = await run(gateway, settings, order);
    if (answer.kind === "duplicate" && answer.state !== "succeeded") return Math.min(answer.retryAfterMs, 100);
    if (answer.kind !== "mismatch") say(answer.kind, order, number(answer.result));
    return null;
  } catch (error) {
    if (error instanceof Unavailable) return 50;
    throw error;
  }
}

async function one(gateway: Gateway, settings: Record<string, string>) {
  const order = settings.order;
  try {
    const answer = await run(gateway, settings, order);
    if (answer.kind === "done") {
      if (answer.resultError) say("not_stored");
      say("done", order, number(answer.result), answer.state, answer.degraded, answer.late ? "late" : "in_time");
    } else if (answer.kind === "duplicate") {
      say("duplicate", order, number(answer.result), answer.state);
    } else {
      say("mismatch", answer.code);
    }
  } catch (error) {
    if (error instanceof Unavailable) say("unavailable", ...error.causes.map((cause) => cause.kind));
    else if (error instanceof Rejected) say("rejected", error.status, error.code);
    else if (error instanceof OutcomeRefused) say("refused", error.code);
    else if (error instanceof NothingHappened) say("raised failure");
    else if (error instanceof NotSettled) {
      say("not_settled");
      // Kept somewhere, and given to a gateway later.
      say("settled", (await gateway.settle(error.report, 20000)).state);
    } else say("raised unknown");
  }
}

function run(gateway: Gateway, settings: Record<string, string>, order: string) {
  const work = async (held: Held): Promise<Json> => {
    say("granted", order, held.repeated ? "repeated" : "first", held.degraded);
    await sleep(Number(settings.work ?? 0));
    if (settings.fails === "failure") throw new NothingHappened("nothing happened");
    if (settings.fails === "unknown") throw new Error("who knows");
    if (!held.isOurs) say("lost", held.lost);
    say("effect", order);
    return { order_number: order, ...returned(settings.returns) };
  };
  const terms = { lease: settings.lease, fingerprint: settings.fingerprint };
  return gateway.runOnce("order.submit", { order_id: order }, work, terms);
}

/** What the work returns beside the order number. */
function returned(kind: string): any {
  let deep: Json = [];
  for (let level = 0; level < 200; level++) deep = [deep];
  return { foreign: { total: 1250n }, long: { page: "x".repeat(70_000) }, deep: { tree: deep } }[kind] ?? {};
}

async function vectors(path: string) {
  const { readFileSync } = await import("node:fs" as string);
  const table = JSON.parse(readFileSync(path, "utf8"));
  for (const { app_key, operation, contents_json } of table.accepted) {
    say("accepted", globalId(app_key, operation, JSON.parse(contents_json)));
  }
  for (const { contents_json } of table.refused) {
    try {
      say("accepted", globalId("shop", "default", JSON.parse(contents_json)));
    } catch {
      say("refused");
    }
  }
}

void main(process.argv[2], process.argv.slice(3));
