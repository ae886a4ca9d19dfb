/** The locks of the double. */

import { createHash } from "node:crypto";

import { span } from "./durations.js";
import type { Fields } from "./server.js";

interface Body {
  mode?: "exclusive" | "shared";
  attempt_nonce?: string;
  attempt?: string;
  owner?: string;
  lease?: string;
  wait?: string;
}

interface Hold {
  attempt: string;
  nonce: string;
  owner: string | undefined;
  ends: number;
  leaseMs: number;
  claimedAt: number;
}

interface Held {
  mode: "exclusive" | "shared";
  fence: number;
  holds: Hold[];
}

type Answer = { status: number; fields: Fields };

const LEASE_MS = 30_000;
const WAITING_MS = 5;

export class MemoryLocks {
  private readonly held = new Map<string, Held>();
  private fences = 0;

  constructor(private readonly now: () => number) {}

  answer(method: string, name: string, call: string | undefined, body: Body): Answer | Promise<Answer> {
    this.sweep(name);
    if (method === "GET") return this.lookup(name);
    if (call === "holds") return this.acquire(name, body);
    const lock = this.held.get(name);
    const hold = lock?.holds.find(({ attempt, nonce }) => attempt === body.attempt || nonce === body.attempt_nonce);
    if (!lock || !hold) return problem(409, "not_held");
    if (call === "renewal") {
      hold.ends = this.now() + (span({ lease: body.lease }, "lease") ?? hold.leaseMs);
      return { status: 200, fields: { lease_ms: Math.round(hold.ends - this.now()) } };
    }
    lock.holds = lock.holds.filter((each) => each !== hold);
    if (lock.holds.length === 0) this.held.delete(name);
    return {
      status: 200,
      fields: { holds: lock.holds.filter(({ owner }) => owner !== undefined && owner === hold.owner).length },
    };
  }

  private async acquire(name: string, body: Body): Promise<Answer> {
    const began = this.now();
    const waitMs = body.wait === undefined ? 0 : (span({ wait: body.wait }, "wait") as number);
    for (;;) {
      this.sweep(name);
      const answer = this.tryAcquire(name, body);
      const waited_ms = Math.round(this.now() - began);
      if (answer.status < 300 || waited_ms >= waitMs) return { ...answer, fields: { ...answer.fields, waited_ms } };
      await new Promise((resolve) => setTimeout(resolve, WAITING_MS));
    }
  }

  private tryAcquire(name: string, { mode = "exclusive", attempt_nonce: nonce = "", owner, lease }: Body): Answer {
    const lock = this.held.get(name);
    const isOwn = lock?.holds.some((hold) => owner !== undefined && hold.owner === owner);
    const isShared = lock?.mode === "shared" && mode === "shared";
    if (lock && !isOwn && !isShared) return problem(409, "lock_held", { mode: lock.mode, waiting: 0, retry_after_ms: 50 });
    const leaseMs = span({ lease }, "lease") ?? LEASE_MS;
    const now = this.now();
    const hold: Hold = {
      attempt: `${Math.floor(now * 1000)}-${nonce}`,
      nonce,
      owner,
      leaseMs,
      ends: now + leaseMs,
      claimedAt: now,
    };
    const held = lock ?? { mode, fence: ++this.fences, holds: [] };
    held.holds.push(hold);
    this.held.set(name, held);
    const holds = owner === undefined ? 1 : held.holds.filter((each) => each.owner === owner).length;
    return { status: 201, fields: { mode: held.mode, attempt: hold.attempt, fence: held.fence, holds, lease_ms: leaseMs } };
  }

  private lookup(name: string): Answer {
    const lock = this.held.get(name);
    if (!lock) return problem(404, "not_found");
    const holders = lock.holds.map(({ nonce, claimedAt, ends }) => ({
      hash: createHash("sha256").update(nonce).digest("hex").slice(0, 8),
      mode: lock.mode,
      claimed_at: new Date(claimedAt).toISOString(),
      lease_ms: Math.round(ends - this.now()),
    }));
    return { status: 200, fields: { mode: lock.mode, fence: lock.fence, holders, waiting: 0 } as Fields };
  }

  private sweep(name: string): void {
    const lock = this.held.get(name);
    if (!lock) return;
    lock.holds = lock.holds.filter(({ ends }) => ends > this.now());
    if (lock.holds.length === 0) this.held.delete(name);
  }
}

function problem(status: number, code: string, fields: Fields = {}): Answer {
  return { status, fields: { code, detail: `The double answers ${status} ${code}.`, ...fields } };
}
