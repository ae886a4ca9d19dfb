/** Looks for the grant of a claim call that ended without an answer, and gives it back. */

import { createHash } from "node:crypto";
import type { Claim } from "./grant.js";
import { Reports } from "./report.js";
import { hasGlobalId, PAUSE_MS_MIN, rejected, sleep, type Transport } from "./transport.js";

/** The longest time to look for it and to report it; less if `settleWithin` is. */
const GIVE_BACK_MS_MAX = 30_000;
/** Grants that one client looks for at once. Those above it wait for the end of their leases: a gateway that comes back has enough to do. */
const GIVE_BACKS_MAX = 64;

const running = new WeakMap<Transport, number>();

/** Gives it back in the background; its lease ends in any case. */
export function giveBack(transport: Transport, claim: Claim, settleWithinMs: number): void {
  const count = running.get(transport) ?? 0;
  if (!claim.uncertain || count >= GIVE_BACKS_MAX) return;
  running.set(transport, count + 1);
  void lookAndReport(transport, claim, Math.min(settleWithinMs, GIVE_BACK_MS_MAX))
    // Each try has emitted its event.
    .catch(() => undefined)
    .finally(() => running.set(transport, (running.get(transport) ?? 1) - 1));
}

async function lookAndReport(transport: Transport, claim: Claim, withinMs: number): Promise<void> {
  const ends = transport.now() + withinMs;
  const attempt = await findGrant(transport, claim, ends);
  if (attempt === null) return;
  const { globalId, operation, contents } = claim;
  const reports = new Reports(transport, Math.max(1, ends - transport.now()));
  await reports.settle({ globalId, attempt, outcome: "failure", operation, contents }, undefined);
}

/** The attempt with the nonce of the call, if it holds the claim. No further claim is made: that one would take the key if it was free. */
async function findGrant(transport: Transport, claim: Claim, ends: number): Promise<string | null> {
  await sleep(Math.random() * PAUSE_MS_MIN);
  let record = await look(transport, claim, ends);
  if (!record) {
    // The call may still be on its way.
    await sleep(transport.timeoutMs, undefined, true);
    record = await look(transport, claim, ends);
  }
  if (record?.state !== "in_progress" && record?.state !== "unknown") return null;
  const attempt = `${record.timestamp}-${claim.nonce}`;
  const hash = createHash("sha256").update(attempt).digest("hex").slice(0, 8);
  return record.attempt_hash === hash ? attempt : null;
}

async function look(transport: Transport, { globalId, about }: Claim, ends: number) {
  const { status, fields } = await transport.do({
    endpoint: "lookup",
    method: "GET",
    path: `/v1/claims/${globalId}`,
    withinMs: Math.max(1, ends - transport.now()),
    first: transport.first,
    genuine: hasGlobalId,
    about,
    idle: true,
  });
  if (status === 404 && fields.code === "not_found") return null;
  if (status >= 300) throw rejected(status, fields);
  return fields;
}
