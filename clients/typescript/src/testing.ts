/** A double of the gateway for the tests of its users: in the process, without a port, with a clock that steps. */

import { randomBytes } from "node:crypto";

import { Client } from "./client.js";
import { canonicalOrEmpty, idOf, JsonText } from "./contents.js";
import { span } from "./durations.js";
import type { Cause } from "./errors.js";
import { MemoryLocks } from "./memory-locks.js";
import { type Options, SERVERS } from "./options.js";
import type { Fields, Request, Server } from "./server.js";
import type { Json } from "./values.js";

/** Stored state of a claim. */
export interface MemoryClaim {
  readonly globalId: string;
  readonly operation: string;
  readonly contents: Json;
  readonly state: "in_progress" | "succeeded" | "unknown";
  readonly fence: number;
  readonly result: Json;
  /** Number of grants: more than one after a release or a take-over. */
  readonly grants: number;
}

export interface MemoryOptions {
  /** Meaning of a lease's end for its operation. Default: `release`. */
  onLeaseEnd?: "release" | "unknown";
}

type Answer = { status: number; fields: Fields } | Cause;

interface Body {
  operation?: string;
  contents?: Json;
  attempt_nonce?: string;
  fingerprint?: Json;
  lease?: string;
  retention?: string;
  take_over?: boolean;
  on_lease_end?: string;
  wait?: string;
  attempt?: string;
  outcome?: string;
  result?: Json;
  global_id?: string;
  items?: Body[];
}

interface Stored {
  globalId: string;
  operation: string;
  contents: Json;
  fingerprint: string | null;
  state: "in_progress" | "succeeded" | "unknown";
  attempt: string;
  nonce: string;
  fence: number;
  grants: number;
  claimedAt: number;
  leaseMs: number;
  leaseEnds: number;
  expires: number;
  retentionMs: number;
  isUnknownAtEnd: boolean;
  result: Json;
}

const LEASE_MS = 30_000;
const RETENTION_MS = 24 * 3_600_000;
const WAITING_MS = 5;

/** A gateway in memory. Each test makes its own. */
export class MemoryGateway {
  private readonly stored = new Map<string, Stored>();
  private readonly locks = new MemoryLocks(() => this.now());
  private steppedMs = 0;
  private failures: Answer[] = [];
  private isAway = false;
  private fences = 0;

  constructor(private readonly options: MemoryOptions = {}) {}

  /** A client of this gateway. Events are not logged, unless `onEvent` takes them. */
  client(options: Options = {}): Client {
    const server = (app: string): Server[] => [{ url: "memory:", close: () => {}, call: (request) => this.call(app, request) }];
    const client = new Client([], { onEvent: () => {}, ...options, [SERVERS]: server });
    client.stepClock(() => this.steppedMs);
    return client;
  }

  /** All claims, in the order of their first grant. */
  get claims(): MemoryClaim[] {
    this.sweep();
    return [...this.stored.values()].map(({ globalId, operation, contents, state, fence, result, grants }) => ({
      ...{ globalId, operation, contents, state, fence, result, grants },
    }));
  }

  /** Steps the clock of the gateway and its clients, so that leases and retentions end. */
  advance(time: string): void {
    this.steppedMs += span({ time }, "time") as number;
    this.sweep();
  }

  /** Lets the next calls fail before they have an effect: with this status, or without an answer. */
  failNext(calls = 1, status?: number): void {
    for (let call = 0; call < calls; call++) this.failures.push(status === undefined ? refused() : problem(status, "overloaded"));
  }

  /** From now on no call is answered; with false, all are again. */
  unavailable(isAway = true): void {
    this.isAway = isAway;
  }

  private now(): number {
    return performance.timeOrigin + performance.now() + this.steppedMs;
  }

  private async call(app: string, { method, path, body, signal }: Request): Promise<Answer> {
    // As late as an answer over a network: never in the same turn.
    await new Promise(setImmediate);
    signal?.throwIfAborted();
    if (this.isAway) return refused();
    const failure = this.failures.shift();
    if (failure) return failure;
    return this.answer(app, method, path, body === "" ? {} : (JSON.parse(body) as Body), body);
  }

  private answer(app: string, method: string, path: string, body: Body, text: string): Answer | Promise<Answer> {
    this.sweep();
    const [, , kind, id = "", call] = path.split("/");
    if (kind === "locks") return this.locks.answer(method, decodeURIComponent(id), call, JSON.parse(text || "{}"));
    if (id === "batch") return this.batch(app, kind as string, body.items ?? []);
    if (method === "GET") return this.lookup(id);
    if (call === "outcome") return this.settle(id, body);
    if (call === "renewal") return this.renew(id, body);
    return this.claim(app, body);
  }

  private async batch(app: string, kind: string, items: Body[]): Promise<Answer> {
    const answers = items.map(async (item) =>
      kind === "claims" ? this.claim(app, item) : this.settle(item.global_id ?? "", item),
    );
    const all = (await Promise.all(answers)) as { status: number; fields: Fields }[];
    return { status: 200, fields: { items: all.map(({ status, fields }) => ({ ...fields, status })) } };
  }

  private claim(app: string, body: Body): Answer | Promise<Answer> {
    const { operation = "", attempt_nonce: nonce = randomBytes(16).toString("hex") } = body;
    const contents = body.contents ?? null;
    const id = idOf(app, operation, canonicalOrEmpty(new JsonText(JSON.stringify(contents))));
    const known = this.stored.get(id);
    const fingerprint = body.fingerprint === undefined ? null : canonicalOrEmpty(new JsonText(JSON.stringify(body.fingerprint)));
    if (known?.nonce === nonce && known.state === "in_progress") return this.granted(known, true, false);
    if (known && fingerprint !== known.fingerprint) return problem(422, "fingerprint_mismatch", { global_id: id });
    if (known && !(known.state === "unknown" && body.take_over)) {
      const waitMs = body.wait === undefined ? 0 : (span({ wait: body.wait }, "wait") as number);
      return known.state === "in_progress" && waitMs > 0 ? this.wait(app, body, known, waitMs) : duplicate(known);
    }
    const now = this.now();
    const leaseMs = body.lease === undefined ? LEASE_MS : (span({ lease: body.lease }, "lease") as number);
    const retention = body.retention === "forever" ? Number.POSITIVE_INFINITY : span({ retention: body.retention }, "retention");
    const record: Stored = {
      ...{ globalId: id, operation, contents, fingerprint, nonce, leaseMs, result: null, state: "in_progress" },
      attempt: `${Math.floor(now * 1000)}-${nonce}`,
      fence: ++this.fences,
      grants: (known?.grants ?? 0) + 1,
      claimedAt: now,
      leaseEnds: now + leaseMs,
      expires: Number.POSITIVE_INFINITY,
      retentionMs: retention ?? RETENTION_MS,
      isUnknownAtEnd: (body.on_lease_end ?? this.options.onLeaseEnd) === "unknown",
    };
    this.stored.set(id, record);
    return this.granted(record, false, known !== undefined);
  }

  /** Answers when the claim in progress has ended, or the wait is over. */
  private async wait(app: string, body: Body, known: Stored, waitMs: number): Promise<Answer> {
    const began = this.now();
    while (this.stored.get(known.globalId)?.attempt === known.attempt && known.state === "in_progress") {
      if (this.now() - began >= waitMs) break;
      await new Promise((resolve) => setTimeout(resolve, WAITING_MS));
      this.sweep();
    }
    const { wait: _, ...now } = body;
    const answer = (await this.claim(app, now)) as { status: number; fields: Fields };
    return { ...answer, fields: { ...answer.fields, waited_ms: Math.max(1, Math.round(this.now() - began)) } };
  }

  private granted(record: Stored, repeated: boolean, taken_over: boolean): Answer {
    const { globalId: global_id, attempt, fence, claimedAt, leaseEnds } = record;
    const lease_ms = Math.max(1, Math.round(leaseEnds - this.now()));
    const claimed_at = new Date(claimedAt).toISOString();
    return {
      status: 201,
      fields: { global_id, attempt, fence, state: "in_progress", repeated, taken_over, claimed_at, lease_ms },
    };
  }

  private settle(id: string, { attempt, outcome, result }: Body): Answer {
    const record = this.stored.get(id);
    const isOwn = record?.attempt === attempt;
    if (!record || !isOwn) {
      if (record?.state === "succeeded") return problem(409, "already_succeeded", { global_id: id });
      return record ? problem(409, "superseded", { global_id: id }) : problem(409, "lease_lost", { global_id: id });
    }
    const late = record.state === "unknown";
    if (record.state === "succeeded") {
      return outcome === "success" ? settled(id, "succeeded", false) : problem(409, "already_succeeded", { global_id: id });
    }
    if (outcome === "failure") {
      this.stored.delete(id);
      return settled(id, "released", late);
    }
    record.state = outcome === "success" ? "succeeded" : "unknown";
    record.result = outcome === "success" ? (result ?? null) : null;
    record.expires = this.now() + record.retentionMs;
    return settled(id, record.state, late);
  }

  private renew(id: string, { attempt, lease }: Body): Answer {
    const record = this.stored.get(id);
    if (record?.state === "in_progress" && record.attempt === attempt) {
      record.leaseEnds = this.now() + (span({ lease }, "lease") ?? record.leaseMs);
      return { status: 200, fields: { global_id: id, lease_ms: Math.round(record.leaseEnds - this.now()) } };
    }
    const code = record?.state === "succeeded" ? "already_succeeded" : record ? "superseded" : "lease_lost";
    return problem(409, code, { global_id: id });
  }

  private lookup(id: string): Answer {
    const record = this.stored.get(id);
    if (!record) return problem(404, "not_found");
    const { operation, state, fence, contents, result, claimedAt } = record;
    const claimed_at = new Date(claimedAt).toISOString();
    const fields = { global_id: id, operation, state, fence, contents, claimed_at, ...(result !== null && { result }) };
    return { status: 200, fields: fields as Fields };
  }

  /** Ends leases and retentions that are over. */
  private sweep(): void {
    const now = this.now();
    for (const [id, record] of this.stored) {
      if (record.state === "in_progress" && record.leaseEnds <= now) {
        // It has no end.
        if (record.isUnknownAtEnd) Object.assign(record, { state: "unknown", expires: Number.POSITIVE_INFINITY });
        else this.stored.delete(id);
      } else if (record.expires <= now) this.stored.delete(id);
    }
  }
}

function settled(global_id: string, state: string, late: boolean): Answer {
  return { status: 200, fields: { global_id, state, late, degraded: null } };
}

function duplicate({ globalId: global_id, state, result, claimedAt, expires }: Stored): Answer {
  const expires_at = Number.isFinite(expires) ? new Date(expires).toISOString() : null;
  const fields: Fields = { global_id, state, claimed_at: new Date(claimedAt).toISOString(), expires_at };
  return problem(409, "duplicate", {
    ...fields,
    ...(state === "in_progress" && { retry_after_ms: 100 }),
    ...(result !== null && { result }),
  });
}

function problem(status: number, code: string, fields: Fields = {}): Answer {
  return { status, fields: { code, detail: `The double answers ${status} ${code}.`, ...fields } };
}

function refused(): Cause {
  return { url: "memory:", kind: "refused", detail: "the double is unavailable" };
}
