/**
 * The program that the repository's tests run: the client in its own process, with options as `name=value`. The same options and lines
 * in every language.
 */

import { readFileSync } from "node:fs";

import {
  Client,
  type Grant,
  globalId,
  type Json,
  JsonText,
  NothingHappened,
  NotSettled,
  OutcomeRefused,
  Rejected,
  type Terms,
  Unavailable,
} from "../src/index.js";

type Settings = Record<string, string | undefined>;

const sleep = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));
const say = (...words: unknown[]) => console.log(words.map((word) => word ?? "-").join(" "));
const number = (result: unknown) => (result as { order_number?: string } | null)?.order_number;

async function main(what: string, words: string[]) {
  if (what === "vectors") return vectors(words[0] ?? "");
  const settings: Settings = Object.fromEntries(
    words.map((word) => [word.slice(0, word.indexOf("=")), word.slice(word.indexOf("=") + 1)]),
  );
  const client = new Client((settings.urls ?? "").split(","), {
    credential: settings.credential,
    onUnavailable: settings.policy === "proceed" ? "proceed" : "fail_closed",
    timeoutMs: Number(settings.timeout ?? 1000),
    claimWithinMs: Number(settings.claim_within ?? 5000),
    settleWithinMs: Number(settings.settle_within ?? 30000),
    onEvent: () => {},
  });
  await (what === "orders" ? orders(client, settings) : one(client, settings));
}

async function orders(client: Client, settings: Settings) {
  const worker = async () => {
    for (let at = 0; at < Number(settings.orders); at++) {
      for (;;) {
        const pause = await tryOrder(client, settings, `A-${at}`);
        if (pause === null) break;
        await sleep(pause);
      }
    }
  };
  await Promise.all(Array.from({ length: Number(settings.workers) }, worker));
}

/** Null once the order has an answer, else how long to wait. */
async function tryOrder(client: Client, settings: Settings, order: string): Promise<number | null> {
  try {
    const answer = await run(client, settings, order);
    if (answer.kind === "duplicate" && answer.state !== "succeeded") return Math.min(answer.retryAfterMs, 100);
    if (answer.kind !== "mismatch") say(answer.kind, order, number(answer.result));
    return null;
  } catch (error) {
    if (error instanceof Unavailable) return 50;
    throw error;
  }
}

async function one(client: Client, settings: Settings) {
  const order = settings.order ?? "";
  try {
    const answer = await run(client, settings, order);
    if (answer.kind === "done") {
      if (answer.resultOmitted) say("not_stored");
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
      say("settled", (await settled(client, error.report)).state);
    } else say("raised unknown");
  }
}

function run(client: Client, settings: Settings, order: string) {
  const work = async (grant: Grant): Promise<object> => {
    say("granted", order, grant.repeated ? "repeated" : "first", grant.degraded);
    await sleep(Number(settings.work ?? 0));
    if (settings.fails === "failure") throw new NothingHappened("nothing happened");
    if (settings.fails === "unknown") throw new Error("who knows");
    if (!grant.isLive) say("lost", grant.lost);
    say("effect", order);
    return { order_number: order, ...returned(settings.returns) };
  };
  const { lease, fingerprint } = settings;
  const terms: Terms = { ...(lease && { lease }), ...(fingerprint && { fingerprint }) };
  return client.once("order.submit", { order_id: order }, work, terms);
}

/** Values that the work returns in addition to the order number. */
function returned(kind: string | undefined): object {
  let deep: Json = [];
  for (let level = 0; level < 98; level++) deep = [deep];
  const returns: Record<string, object> = { foreign: { total: 1250n }, long: { page: "x".repeat(70_000) }, deep: { tree: deep } };
  return returns[kind ?? ""] ?? {};
}

/** Repeated until a gateway is back. */
async function settled(client: Client, report: string) {
  for (;;) {
    try {
      return await client.settle(report);
    } catch (error) {
      if (!(error instanceof NotSettled)) throw error;
    }
  }
}

function vectors(path: string) {
  const table = JSON.parse(readFileSync(path, "utf8"));
  for (const { app_key, operation, contents_json } of table.accepted) {
    say("accepted", globalId(app_key, operation, new JsonText(contents_json)));
  }
  for (const { contents_json } of table.refused) {
    try {
      say("accepted", globalId("shop", "default", new JsonText(contents_json)));
    } catch {
      say("refused");
    }
  }
}

void main(process.argv[2] ?? "", process.argv.slice(3));
