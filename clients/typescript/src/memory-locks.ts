/** The locks of the double. */

import { createHash } from "node:crypto";

import { span } from "./durations.js";
import type { Fields } from "./server.js";

type Mode = "exclusive" | "shared";

interface Body {
  mode?: Mode;
  limit?: number;
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
  mode: Mode;
  ends: number;
  leaseMs: number;
  claimedAt: number;
}

interface Held {
  mode: Mode;
  fence: number;
  /** Named by all holds. */
  limit: number | undefined;
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
      return { status: 200, fields: { name, lease_ms: Math.round(hold.ends - this.now()) } };
    }
    lock.holds = lock.holds.filter((each) => each !== hold);
    this.follow(name, lock);
    return { status: 200, fields: { name, holds: lock.holds.filter(({ owner }) => isOf(hold, owner)).length } };
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

  private tryAcquire(name: string, { mode = "exclusive", limit, attempt_nonce: nonce = "", owner, lease }: Body): Answer {
    const lock = this.held.get(name) ?? { mode, fence: 0, limit, holds: [] };
    const repeated = lock.holds.find((hold) => hold.nonce === nonce);
    if (repeated) return this.granted(name, lock, repeated, true);
    const others = lock.holds.filter((hold) => !isOf(hold, owner));
    let isBusy = others.some((hold) => mode === "exclusive" || hold.mode === "exclusive");
    if (limit !== undefined && lock.limit !== undefined && limit !== lock.limit)
      return problem(409, "limit_differs", { limit: lock.limit });
    if (limit !== lock.limit) isBusy = true;
    else if (limit !== undefined) isBusy = lock.holds.length >= limit;
    else if (isBusy && mode === "exclusive" && others.length < lock.holds.length) return problem(409, "upgrade_refused");
    if (isBusy) return problem(409, "lock_held", { mode: lock.mode, waiting: 0, retry_after_ms: 50 });
    const leaseMs = span({ lease }, "lease") ?? LEASE_MS;
    const now = this.now();
    const attempt = `${Math.floor(now * 1000)}-${nonce}`;
    const hold: Hold = { attempt, nonce, owner, mode, leaseMs, ends: now + leaseMs, claimedAt: now };
    lock.holds.push(hold);
    this.follow(name, lock);
    return this.granted(name, lock, hold, false);
  }

  private granted(name: string, { holds: all, fence }: Held, hold: Hold, repeated: boolean): Answer {
    const { mode, attempt, owner } = hold;
    const holds = all.filter((each) => each === hold || isOf(each, owner)).length;
    const lease_ms = Math.round(hold.ends - this.now());
    return { status: 201, fields: { name, mode, attempt, fence, holds, lease_ms, repeated } };
  }

  /** Forgets a lock that is free. Another mode gets a new fence. */
  private follow(name: string, lock: Held): void {
    if (lock.holds.length === 0) {
      this.held.delete(name);
      return;
    }
    const mode = lock.holds.some((hold) => hold.mode === "exclusive") ? "exclusive" : "shared";
    if (mode !== lock.mode || lock.fence === 0) lock.fence = ++this.fences;
    lock.mode = mode;
    this.held.set(name, lock);
  }

  private lookup(name: string): Answer {
    const lock = this.held.get(name);
    if (!lock) return problem(404, "not_found");
    const holders = lock.holds.map(({ nonce, mode, claimedAt, ends }) => ({
      hash: createHash("sha256").update(nonce).digest("hex").slice(0, 8),
      mode,
      claimed_at: new Date(claimedAt).toISOString(),
      lease_ms: Math.round(ends - this.now()),
    }));
    const { mode, fence, limit } = lock;
    return { status: 200, fields: { mode, fence, holders, waiting: 0, ...(limit && { limit }) } as Fields };
  }

  private sweep(name: string): void {
    const lock = this.held.get(name);
    if (!lock) return;
    lock.holds = lock.holds.filter(({ ends }) => ends > this.now());
    this.follow(name, lock);
  }
}

function isOf(hold: Hold, owner: string | undefined): boolean {
  return owner !== undefined && hold.owner === owner;
}

function problem(status: number, code: string, fields: Fields = {}): Answer {
  return { status, fields: { code, detail: `The double answers ${status} ${code}.`, ...fields } };
}
