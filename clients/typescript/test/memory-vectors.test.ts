/** The gateway in memory gives the answers of the scripted gateway of the behaviour vectors. */

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";

import { test } from "vitest";

import { MemoryGateway } from "../src/testing.js";
import type { Any, Vector } from "./gateway.js";

const BEHAVIOUR = new URL("../../vectors/behaviour/", import.meta.url);
const load = (name: string): Any => JSON.parse(readFileSync(new URL(name, BEHAVIOUR), "utf8"));
const common = load("common.json");

/** The calls of another caller that lead to an answer. */
const SEEDS: Record<string, string[]> = {
  granted: [],
  duplicate_succeeded: ["claim", "success"],
  in_progress: ["claim"],
  duplicate_unknown: ["claim", "unknown"],
  hold: [],
  lock_held: ["acquire"],
};
/** The answers that follow a first one, without a fault. */
const FOLLOWS = ["succeeded", "released", "unknown", "renewed", "hold_released", "hold_renewed"];
const COMPARED = ["code", "state", "global_id", "late", "result", "repeated", "name", "mode", "holds"];

/** Sends the requests of vectors with its nonce, and keeps its attempt. */
class Caller {
  private attempt = "";

  constructor(
    private readonly gateway: MemoryGateway,
    private readonly nonce: string,
  ) {}

  async send({ method, path, body }: Any): Promise<{ status: number; fields: Any }> {
    const text = JSON.stringify(body ?? {})
      .replaceAll("1792488615123456-$nonce", this.attempt)
      .replaceAll("$nonce", this.nonce);
    const answer = await (this.gateway as Any).call("shop", { method, path, body: body === undefined ? "" : text });
    this.attempt = answer.fields.attempt ?? this.attempt;
    return answer;
  }
}

/** A request by its name, or one that `use` names with another result. */
function plainRequest(expect: Any): Any {
  if (typeof expect === "string") return common.requests[expect];
  const { use, body = {}, ...others } = expect;
  const isPlain = Object.keys(others).length === 0 && Object.keys(body).join() === "result";
  return isPlain && use ? { ...common.requests[use], body: { ...common.requests[use].body, ...body } } : null;
}

test("the double answers as the gateway of the vectors", async () => {
  let answered = 0;
  for (const file of readdirSync(BEHAVIOUR).filter((name) => name !== "common.json")) {
    for (const { name, exchanges } of load(file).cases as Vector[]) {
      const gateway = new MemoryGateway();
      const caller = new Caller(gateway, "a".repeat(32));
      for (const [at, { expect, answer }] of exchanges.entries()) {
        const request = plainRequest(expect);
        const isKnown = typeof answer === "string" && (at === 0 ? answer in SEEDS : FOLLOWS.includes(answer));
        if (!request || !isKnown) break;
        const wanted = common.answers[answer];
        const other = new Caller(gateway, "b".repeat(32));
        for (const step of at === 0 ? (SEEDS[answer] as string[]) : []) {
          const before = common.requests[step];
          const { result } = wanted.body;
          await other.send(step === "success" ? { ...before, body: { ...before.body, result } } : before);
        }
        const { status, fields } = await caller.send(request);
        const where = `${file}: ${name}: exchange ${at + 1}`;
        assert.equal(status, wanted.status, `${where}: ${JSON.stringify(fields)}`);
        for (const member of COMPARED)
          if (member in wanted.body) assert.deepEqual(fields[member], wanted.body[member], `${where}: ${member}`);
        answered++;
      }
    }
  }
  assert.ok(answered >= 50, `${answered} exchanges`);
});
