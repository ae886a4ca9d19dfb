/** Named locks with a lease. */

import { span, spanText } from "./durations.js";
import { LockNotAcquired, Rejected, Unavailable } from "./errors.js";
import { Lease, leaseEnds } from "./lease.js";
import { known } from "./options.js";
import { objectOf } from "./report.js";
import type { Answer } from "./server.js";
import { type About, type Call, rejected, sleep, type Transport } from "./transport.js";
import type { LockRecord } from "./values.js";
import { newNonce, pauseBetweenWaits, WAIT_MS_MAX, withWait } from "./waits.js";

export interface LockTerms {
  /** Default `exclusive`. */
  mode?: "exclusive" | "shared";
  /**
   * With `mode: "shared"`: how many holds there are at most at once, 2 to 1000, as of a semaphore. All that hold the lock at the same time
   * name the same limit.
   */
  limit?: number;
  /** The thread, process or workflow that asks: an owner that holds the lock gets another hold at once. Default: each hold is its own. */
  owner?: string;
  /** Lease of a hold without renewal, such as `30s`. */
  lease?: string;
  leaseMs?: number;
  /** Grants requests in the order in which they first asked. */
  fair?: boolean;
}

export interface AcquireTerms {
  /** Longest wait for the lock, such as `10s`, or `forever`. Default: one try. */
  wait?: string;
  waitMs?: number;
  /** Withdraws the request when it is aborted before the lock is held. */
  signal?: AbortSignal;
}

/** The answer to a lookup. */
interface Stored extends Omit<LockRecord, "name" | "held" | "holders"> {
  readonly holders: readonly { hash: string; mode: "exclusive" | "shared"; claimed_at: string; lease_ms: number }[];
}

/** A named lock. Holds nothing itself, and can be used again. */
export class Lock {
  private readonly about: About;
  private readonly lease: string | undefined;

  /** Made by `Client.lock`. */
  constructor(
    private readonly transport: Transport,
    private readonly claimWithinMs: number,
    private readonly settleWithinMs: number,
    readonly name: string,
    private readonly terms: LockTerms,
  ) {
    if (!/^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$/.test(name)) {
      throw new TypeError(
        `not the name of a lock: ${name}; expected 1 to 128 of A-Z a-z 0-9 . _ : -, beginning with a letter or digit`,
      );
    }
    if (terms.owner !== undefined && !/^[\w-]{16,64}$/.test(terms.owner)) {
      throw new TypeError("not an owner: expected 16 to 64 of A-Z a-z 0-9 _ -");
    }
    known("terms of a lock", terms, ["mode", "limit", "owner", "lease", "leaseMs", "fair"]);
    if (!["exclusive", "shared", undefined].includes(terms.mode)) throw new TypeError('mode is "exclusive" or "shared"');
    checkLimit(terms);
    this.lease = spanText(terms, "lease");
    this.about = { operation: name, globalId: null };
  }

  /** Acquires the lock, or returns null if it was held until the wait was over. */
  async acquire(terms: AcquireTerms = {}): Promise<Hold | null> {
    try {
      return await this.acquireOrThrow(terms);
    } catch (error) {
      if (error instanceof LockNotAcquired && error.code === "lock_held") return null;
      throw error;
    }
  }

  /** Acquires the lock, runs the work and releases the lock. Throws `LockNotAcquired` if it was held until the wait was over. */
  async run<Result>(work: (hold: Hold) => Promise<Result> | Result, terms: AcquireTerms = {}): Promise<Result> {
    const hold = await this.acquireOrThrow(terms);
    let result: Result;
    try {
      result = await work(hold);
    } catch (error) {
      await hold.release().catch(() => undefined);
      throw error;
    }
    // The work is done: a release that was not answered ends with the lease.
    await hold.release().catch(() => undefined);
    return result;
  }

  /** The holders of the lock and the length of its queue, or null if it is free and no request queues. Acquires nothing. */
  async lookup(): Promise<LockRecord | null> {
    const { status, fields } = await this.transport.do({
      endpoint: "lookup",
      method: "GET",
      path: `/v1/locks/${this.name}`,
      withinMs: this.claimWithinMs,
      first: this.transport.first,
      genuine: ({ waiting }) => typeof waiting === "number",
      about: this.about,
    });
    if (status === 404 && fields.code === "not_found") return null;
    if (status >= 300) throw rejected(status, fields);
    const { mode, limit = null, fence, holders, waiting } = fields as unknown as Stored;
    return {
      name: this.name,
      held: mode !== null,
      mode,
      limit,
      fence,
      holders: holders.map(({ hash, mode, claimed_at: claimedAt, lease_ms: leaseMs }) => ({ hash, mode, claimedAt, leaseMs })),
      waiting,
    };
  }

  /** For `Hold`: repeats a release like an outcome. */
  async release(body: string, first: number, withinMs = this.settleWithinMs): Promise<Answer> {
    const genuine: Call["genuine"] = ({ holds }) => typeof holds === "number";
    return this.transport.do({ endpoint: "lock", path: this.path("release"), body, withinMs, first, genuine, about: this.about });
  }

  private path(call: string): string {
    return `/v1/locks/${this.name}/${call}`;
  }

  private async acquireOrThrow(asked: AcquireTerms): Promise<Hold> {
    known("terms of an acquisition", asked, ["wait", "waitMs", "signal"]);
    const { signal } = asked;
    const { transport, terms, about } = this;
    const { mode = "exclusive", limit, owner, fair } = terms;
    const { lease } = this;
    const nonce = newNonce();
    const members = { mode, limit, attempt_nonce: nonce, owner, lease, fair: fair || undefined };
    const body = objectOf(
      Object.fromEntries(
        Object.entries(members).map(([name, value]) => [name, value === undefined ? undefined : JSON.stringify(value)]),
      ),
    );
    const waitMs = asked.wait === "forever" ? Number.POSITIVE_INFINITY : (span(asked, "wait") ?? 0);
    const ends = transport.now() + waitMs;
    // A request whose reply was lost may hold the lock or a place in its queue.
    let uncertain = fair === true;
    let first = transport.first;
    for (let left = waitMs; ; left = Math.max(1, ends - transport.now())) {
      const part = Math.min(left, WAIT_MS_MAX);
      const call: Call = {
        endpoint: "lock",
        path: this.path("holds"),
        body: withWait(body, part),
        withinMs: this.claimWithinMs,
        waitMs: part,
        first,
        genuine: ({ attempt, lease_ms: leaseMs }) => typeof attempt === "string" && (leaseMs ?? 0) > 0,
        about,
        abort: signal,
      };
      let answer: Answer;
      try {
        answer = await transport.do(call);
        first = answer.at;
        transport.first = first;
        if (answer.status < 300) {
          if (answer.fields.name === this.name) return await this.held(answer);
          uncertain = true;
          throw this.differs(answer.fields.name);
        }
        if (answer.status === 422) throw rejected(422, answer.fields);
        const { code = "", retry_after_ms: after = 1000, limit: inUse = null } = answer.fields;
        // A ticket lives while its request polls.
        const pause = Math.min(pauseBetweenWaits(part, answer.fields), fair ? 1000 : Number.POSITIVE_INFINITY);
        if (code !== "lock_held" || transport.now() + pause + 1 > ends) throw new LockNotAcquired(this.name, code, after, inUse);
        await sleep(pause, signal);
      } catch (error) {
        uncertain ||= call.uncertain === true;
        if (error instanceof LockNotAcquired) transport.event(about, "lock_held", "debug", { code: error.code });
        const withdrawing = signal?.aborted || uncertain ? this.withdraw(nonce, first) : undefined;
        // A caller that has disconnected does not wait for it.
        if (!signal?.aborted) await withdrawing;
        throw error;
      }
      uncertain ||= call.uncertain === true;
    }
  }

  /** The error of a grant of another lock than this one: it would protect nothing that others ask for. */
  private differs(granted = ""): Rejected {
    const detail =
      `the gateway granted the lock ${granted.slice(0, 130)} for ${this.name}; the request was withdrawn, and nothing has run. Is ` +
      "something between client and gateway that changes paths?";
    return new Rejected(201, "identity_differs", detail);
  }

  private async held(answer: Answer): Promise<Hold> {
    const { transport, about } = this;
    const attempt = answer.fields.attempt ?? "";
    const keeping = {
      endpoint: "lock",
      path: this.path("renewal"),
      attempt,
      lease: this.lease,
      first: answer.at,
      about,
      event: "lock_lost",
    } as const;
    const hold = new Hold(this, transport, about, answer, new Lease(transport, leaseEnds(answer), keeping));
    transport.event(about, "lock_acquired", "debug", { fence: hold.fence });
    if (hold.isLive) return hold;
    await hold.release().catch(() => undefined);
    const detail = "the hold arrived after its lease had ended, and was released";
    throw new Unavailable([{ url: transport.servers[answer.at]?.url ?? "", kind: "too_late", detail }]);
  }

  private async withdraw(nonce: string, first: number): Promise<void> {
    const body = JSON.stringify({ attempt_nonce: nonce });
    await this.release(body, first, this.transport.timeoutMs).catch(() => undefined);
  }
}

function checkLimit({ mode, limit }: LockTerms): void {
  if (limit === undefined) return;
  if (mode !== "shared") throw new TypeError('limit: only shared holds have a limit; give mode: "shared" with it');
  if (!Number.isInteger(limit) || limit < 2 || limit > 1000) {
    throw new TypeError(
      "limit: a limit is a number of holds from 2 to 1000, such as 4; for one, request the lock in mode exclusive",
    );
  }
}

/** One acquisition of a lock. Renewed in the background until it is released. */
export class Hold implements AsyncDisposable {
  readonly name: string;
  readonly mode: string;
  /** Proves the hold: keep it like a secret. */
  readonly attempt: string;
  /** Rises whenever the lock becomes held or changes its mode, for the resource to compare. */
  readonly fence: number;
  /** The number of holds that the owner has. */
  readonly holds: number;
  private readonly gateway: number;

  /** Made by `Lock.acquire`. */
  constructor(
    private readonly lock: Lock,
    private readonly transport: Transport,
    private readonly about: About,
    answer: Answer,
    private readonly lease: Lease,
  ) {
    const { fields } = answer;
    this.name = lock.name;
    this.mode = fields.mode ?? "exclusive";
    this.attempt = fields.attempt ?? "";
    this.fence = fields.fence ?? 0;
    this.holds = fields.holds ?? 1;
    this.gateway = answer.at;
  }

  /** The hold is still live by this clock. Only the fence closes the gap. */
  get isLive(): boolean {
    return this.lease.isLive;
  }

  /** `not_held` by the answer to a renewal, `not_renewed` if none came in time, or null. */
  get lost(): string | null {
    return this.lease.lost;
  }

  /** Aborted when the lease could not be kept: stop the work. */
  get lostSignal(): AbortSignal {
    return this.lease.lostSignal;
  }

  /** Renews the hold now, in addition to the renewal in the background. */
  async renew(): Promise<void> {
    await this.lease.renew(this.transport.timeoutMs);
  }

  /** Releases the hold. A hold that was lost is no error. */
  async release(): Promise<void> {
    const body = JSON.stringify({ attempt: this.attempt });
    let answer: Answer;
    try {
      answer = await this.lock.release(body, this.gateway);
    } finally {
      this.lease.stop();
    }
    const { status, fields } = answer;
    if (status < 300) this.transport.event(this.about, "lock_released", "debug", { fence: this.fence });
    else if (status !== 409) throw rejected(status, fields);
    else if (this.lost === null) this.transport.event(this.about, "lock_lost", "warn", { code: fields.code });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }
}
