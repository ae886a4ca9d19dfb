/** The client: claim, run, report. */

import { randomBytes } from "node:crypto";

import { type AnyContents, type Contents, canonical, canonicalOrEmpty, globalId, idOf } from "./contents.js";
import { DISABLED, NoServer } from "./disabled.js";
import { duration, span, spanText } from "./durations.js";
import { NotSettled, type OncegateError, OutcomeRefused, Rejected, Unavailable } from "./errors.js";
import { type Claim, Grant } from "./grant.js";
import { type Harmless, harmlessTest } from "./harmless.js";
import { Lock, type LockTerms } from "./lock.js";
import { defaultUrls, isEnabled, known } from "./options.js";
import { body, objectOf, type Report, type Reporter, Reports, readReport, written } from "./report.js";
import { encode, endsLater, type Omitted, omittedOf, type ResultSchema, refuseGenerators } from "./results.js";
import type { Answer, Fields, Server } from "./server.js";
import { type Attributes, spanned } from "./telemetry.js";
import { answered, hasGlobalId, jitter, PAUSE_MS_MIN, rejected, serversOf, sleep, Transport } from "./transport.js";
import {
  type ClaimRecord,
  type Done,
  type Duplicate,
  type Event,
  type Mismatch,
  type Options,
  SERVERS,
  type Settled,
} from "./values.js";

/** The longest wait of one call: proxies on the way may cut off a longer one. */
export const WAIT_MS_MAX = 20_000;
const BATCH_MAX = 1000;

/** The terms of one claim. */
export interface Terms {
  /** What else must be equal on a repeat, without being part of the identity. */
  fingerprint?: AnyContents;
  /** How long to hold the claim while in progress, such as `30s`. */
  lease?: string;
  leaseMs?: number;
  /** How long a success is kept against repeats, such as `30d` or `forever`. */
  retention?: string;
  retentionMs?: number;
  /** Take over a claim that is unknown. Only after its effect was looked up. */
  takeOver?: boolean;
  /** Wait up to this time for an operation that is in progress, such as `10s`. */
  wait?: string;
  waitMs?: number;
  /** Before the claim is answered, a grant that crosses the abort is released. The work and its report are not aborted. */
  signal?: AbortSignal;
}

/** The terms of `once`. */
export interface OnceTerms extends Terms {
  /** Errors of the work that mean that nothing happened, beside those of the client. */
  nothingHappened?: Harmless;
}

export interface ClaimItem extends Pick<Terms, "fingerprint" | "lease" | "leaseMs" | "retention" | "retentionMs" | "takeOver"> {
  operation: string;
  contents: AnyContents;
}

export interface OutcomeItem {
  grant: Grant;
  outcome: "success" | "failure" | "unknown";
  /** Goes with a success. */
  result?: unknown;
}

/** The options that `Client.with` changes. */
export interface Limits {
  claimWithin?: string | undefined;
  claimWithinMs?: number | undefined;
  settleWithin?: string | undefined;
  settleWithinMs?: number | undefined;
  onUnavailable?: "fail_closed" | "proceed" | undefined;
}

const LIMITS = ["claimWithin", "claimWithinMs", "settleWithin", "settleWithinMs", "onUnavailable"];
const OPTIONS = [
  ...LIMITS,
  "credential",
  "timeout",
  "timeoutMs",
  "onEvent",
  "metrics",
  "traceparent",
  "tls",
  "enabled",
  "nothingHappened",
];
const CLAIM_TERMS = ["fingerprint", "lease", "leaseMs", "retention", "retentionMs", "takeOver"];
const TERMS = [...CLAIM_TERMS, "wait", "waitMs", "signal"];

/** One or more gateways in front of the same store. */
export class Client {
  private readonly transport: Transport;
  /** False if it is switched off. */
  readonly enabled: boolean;
  private readonly isHarmless: (error: unknown) => boolean;
  private readonly app: string;
  private reports!: Reports;
  private reporter!: Reporter;
  private claimWithinMs = 5000;
  private settleWithinMs = 30_000;
  private proceeds = false;

  /**
   * Without URLs those of `ONCEGATE_URL`, separated by commas; else `http://127.0.0.1:8080`.
   */
  constructor(options?: Options);
  constructor(urls: string | readonly string[], options?: Options);
  constructor(first: string | readonly string[] | Options = {}, second: Options = {}) {
    const hasUrls = typeof first === "string" || Array.isArray(first);
    const urls = typeof first === "string" ? [first] : hasUrls ? (first as readonly string[]) : defaultUrls();
    const options = hasUrls ? second : (first as Options);
    known("options of a client", options, OPTIONS);
    const { credential } = options;
    if (credential && !/^[a-z0-9][a-z0-9._-]{0,63}\.\w+$/.test(credential)) {
      throw new TypeError("the credential is not <app_key>.<secret>, such as shop.3nC0…");
    }
    this.app = credential ? credential.slice(0, credential.lastIndexOf(".")) : "default";
    const timeoutMs = span(options, "timeout") ?? 2000;
    const real: Server[] = options[SERVERS]?.(this.app) ?? serversOf(urls, options.tls);
    this.enabled = isEnabled(options.enabled);
    this.isHarmless = harmlessTest(options.nothingHappened);
    this.transport = new Transport(this.enabled ? real : [new NoServer(this.app)], timeoutMs, options);
    if (!this.enabled) this.transport.event({ operation: "", globalId: null }, DISABLED, "warn");
    const { claimWithin, claimWithinMs, settleWithin, settleWithinMs, onUnavailable } = options;
    this.limit({ claimWithin, claimWithinMs, settleWithin, settleWithinMs, onUnavailable });
  }

  /** Returns the same client, with its connections, and with other limits. */
  with(options: Limits): Client {
    known("limits of a client", options, LIMITS);
    const copy: Client = Object.create(Client.prototype, Object.getOwnPropertyDescriptors(this));
    copy.limit(options);
    return copy;
  }

  private limit(options: Limits): void {
    const { onUnavailable } = options;
    if (onUnavailable !== undefined && onUnavailable !== "fail_closed" && onUnavailable !== "proceed")
      throw new TypeError('onUnavailable is "fail_closed" or "proceed"');
    this.claimWithinMs = span(options, "claimWithin") ?? this.claimWithinMs;
    this.settleWithinMs = span(options, "settleWithin") ?? this.settleWithinMs;
    if (onUnavailable) this.proceeds = onUnavailable === "proceed";
    const reports = new Reports(this.transport, this.settleWithinMs);
    this.reports = reports;
    this.reporter = {
      settle: (report, result) => reports.settle(report, result),
      claimLate: (claim) => this.tryClaim(claim, this.transport.timeoutMs, 0).then(({ result }) => this.noticed(claim, result)),
    };
  }

  /**
   * Runs `work` unless the operation is a duplicate, renews the claim while it runs, and reports the outcome. Duplicates get what
   * `work` returns, as JSON; with `result` in the terms, what that reads of it.
   *
   * If it throws `NothingHappened` or an error that `nothingHappened` declares, the operation can be claimed again at once. After any
   * other error the effect may have happened: the outcome is unknown. Both are thrown again.
   */
  once<C, Result>(
    operation: string,
    contents: C & Contents<C>,
    work: (grant: Grant) => Promise<Result> | Result,
    terms: OnceTerms & { result: ResultSchema<Result> },
  ): Promise<Done<Result> | Duplicate<Result> | Mismatch>;
  once<C, Result>(
    operation: string,
    contents: C & Contents<C>,
    work: (grant: Grant) => Promise<Result> | Result,
    terms?: OnceTerms,
  ): Promise<Done<Result> | Duplicate | Mismatch>;
  async once<Result>(
    operation: string,
    contents: AnyContents,
    work: (grant: Grant) => Promise<Result> | Result,
    given: OnceTerms & { result?: ResultSchema<Result> } = {},
  ): Promise<Done<Result> | Duplicate<Result> | Mismatch> {
    refuseGenerators(work);
    const { result: schema, nothingHappened, ...terms } = given;
    if (schema !== undefined && typeof schema?.parse !== "function")
      throw new TypeError("result is a schema, with a function parse");
    const isHarmless = harmlessTest(nothingHappened);
    const grant = await this.claim(operation, contents as never, terms);
    if (!(grant instanceof Grant)) return read(grant, schema) as Duplicate<Result> | Mismatch;
    try {
      let result: Result;
      try {
        result = await spanned("oncegate run", "internal", { operation, degraded: grant.degraded }, () => work(grant));
        const later = endsLater(result);
        if (later) throw new TypeError(`the work returned ${later}, which has not ended: read it to its end, and return a value`);
      } catch (error) {
        const isNothing = isHarmless(error) || this.isHarmless(error);
        // The error of the work says more than one of its report. The claim ends with its lease.
        await (isNothing ? grant.fail() : grant.giveUp()).catch(() => undefined);
        throw error;
      }
      return await grant.succeed(result, schema !== undefined);
    } finally {
      grant.stop();
    }
  }

  /** Claims the operation. A `Grant` is renewed until it is reported or stopped. `once` does all of that by itself. */
  async claim<C>(operation: string, contents: C & Contents<C>, terms: Terms = {}): Promise<Grant | Duplicate | Mismatch> {
    known("terms of a claim", terms, TERMS);
    const claim = this.newClaim(operation, contents, terms);
    try {
      return await spanned("oncegate claim", "client", { operation }, () => this.detached(claim, terms.signal), described);
    } catch (error) {
      if (!(error instanceof Unavailable)) throw error;
      const { causes } = error;
      this.transport.event(claim.about, this.proceeds ? "proceeded" : "unavailable", "warn", { causes });
      if (!this.proceeds) throw error;
      return new Grant(this.transport, this.reporter, claim, null);
    }
  }

  /** Repeats a kept report until it is accepted. Safe to repeat. Throws `NotSettled` again if it is not accepted in time. */
  async settle(text: string): Promise<Settled> {
    const { report, result } = readReport(text);
    return this.reports.settle(report, result);
  }

  /** The record of a claim, or null. */
  async lookup(id: string): Promise<ClaimRecord | null> {
    if (!/^[0-9a-f]{32}$/.test(id)) throw new TypeError("not a global ID: expected 32 hex digits");
    const { status, fields } = await this.transport.do({
      endpoint: "lookup",
      method: "GET",
      path: `/v1/claims/${id}`,
      withinMs: this.claimWithinMs,
      first: this.transport.first,
      genuine: hasGlobalId,
      about: { operation: "", globalId: id },
    });
    if (status === 404 && fields.code === "not_found") return null;
    if (status >= 300) throw rejected(status, fields);
    return recordOf(fields as Record<string, never>);
  }

  /**
   * Claims up to 1000 operations in one call. Not atomic: each item has its own answer, or error. Items that were not done (429, 5xx)
   * are sent again with their nonces. Granted claims are renewed until they are reported or stopped.
   */
  async claimBatch(items: readonly ClaimItem[]): Promise<(Grant | Duplicate | Mismatch | OncegateError)[]> {
    const claims = items.map(({ operation, contents, ...terms }) => {
      known("terms of an item", terms, CLAIM_TERMS);
      return this.newClaim(operation, contents, terms);
    });
    const bodies = claims.map(({ body }) => body);
    const answers = await this.batch("/v1/claims/batch", bodies, this.claimWithinMs, this.transport.first);
    return answers.map((answer, at) => {
      const claim = claims[at] as Claim;
      if (answer instanceof Error) return answer;
      const result = this.resultOf(claim, answer);
      if (!result) return rejected(answer.status, answer.fields);
      const foreign = this.foreign(claim, result);
      if (foreign) return foreign;
      this.noticed(claim, result);
      if (result instanceof Grant) result.expire();
      return result;
    });
  }

  /** Reports up to 1000 outcomes in one call. Each item has its own answer, or error: a `NotSettled` holds its report. */
  async settleBatch(items: readonly OutcomeItem[]): Promise<(Settled | OncegateError)[]> {
    const reports = items.map(({ grant, outcome, result }): Report & { omitted: Omitted | null } => {
      if (!(grant instanceof Grant) || grant.attempt === "") throw new TypeError("each item needs the grant of a gateway");
      const { text, omitted } = outcome === "success" ? encode(result) : { omitted: null };
      return { ...grant.reportOf(outcome), result: text, omitted: omitted?.code ?? null };
    });
    const bodies = reports.map((report) => `{"global_id":"${report.globalId}",${body(report).slice(1)}`);
    const first = this.transport.servers.findIndex(({ url }) => url === reports[0]?.gateway);
    const answers = await this.batch("/v1/outcomes/batch", bodies, this.settleWithinMs, Math.max(0, first));
    return answers.map((answer, at) => {
      const { grant, result } = items[at] as OutcomeItem;
      const { omitted, ...report } = reports[at] as Report & { omitted: Omitted | null };
      grant.stop();
      if (answer instanceof Error) return new NotSettled(written(report), result, answer);
      const { status, fields } = answer;
      if (status === 409) return new OutcomeRefused(fields.code ?? "", result);
      if (status >= 300) return new NotSettled(written(report), result, rejected(status, fields));
      const { state = "", late = null, degraded = null } = fields;
      return { globalId: report.globalId, state, late, degraded, resultOmitted: omitted };
    });
  }

  /** The global ID of an operation of this client's app, computed without a gateway. */
  globalId<C>(operation: string, contents: C & Contents<C>): string {
    return globalId(this.app, operation, contents);
  }

  /** A named lock. Nothing is sent yet. */
  lock(name: string, terms: LockTerms = {}): Lock {
    return new Lock(this.transport, this.claimWithinMs, this.settleWithinMs, name, terms);
  }

  /** @internal For the double of the tests: its clock steps. */
  stepClock(stepped: () => number): void {
    this.transport.now = () => performance.now() + stepped();
  }

  /** @internal For the middleware: an event of this client. */
  event({ name, level, fields, ...about }: Event): void {
    this.transport.event(about, name, level, fields);
  }

  /** @internal For the middleware: the result of a request. */
  counted(operation: string, result: string): void {
    this.transport.counted(operation, result);
  }

  /** Closes all connections. */
  close(): void {
    this.transport.close();
  }

  private newClaim(operation: string, contents: AnyContents, terms: Terms): Claim {
    // In canonical form, so that contents that would be read differently elsewhere are refused here.
    const text = canonical(contents);
    const id = idOf(this.app, operation, text);
    const body = objectOf({
      operation: JSON.stringify(operation),
      contents: text,
      attempt_nonce: JSON.stringify(newNonce()),
      fingerprint: terms.fingerprint === undefined ? undefined : canonicalOrEmpty(terms.fingerprint),
      lease: quote(spanText(terms, "lease")),
      retention: quote(spanText(terms, "retention")),
      take_over: terms.takeOver ? "true" : undefined,
    });
    const waitMs = span(terms, "wait") ?? 0;
    return { operation, contents: text, globalId: id, body, about: { operation, globalId: id }, waitMs };
  }

  /** Claims in the background, so that a caller that leaves keeps no claim. */
  private async detached(claim: Claim, signal?: AbortSignal): Promise<Grant | Duplicate | Mismatch> {
    signal?.throwIfAborted();
    const claiming = this.claimAndWait(claim, signal);
    if (!signal) return claiming;
    let abort = () => {};
    const aborted = new Promise<never>((_, reject) => {
      abort = () => reject(signal.reason);
      signal.addEventListener("abort", abort, { once: true });
    });
    try {
      const result = await Promise.race([claiming, aborted]);
      signal.throwIfAborted();
      return result;
    } catch (error) {
      if (signal.aborted) {
        void claiming.then((late) => (late instanceof Grant ? late.fail() : undefined)).catch(() => undefined);
        throw signal.reason;
      }
      throw error;
    } finally {
      signal.removeEventListener("abort", abort);
    }
  }

  /** Repeats the claim while it is in progress and there is time to wait. */
  private async claimAndWait(claim: Claim, stop?: AbortSignal): Promise<Grant | Duplicate | Mismatch> {
    const ends = this.transport.now() + claim.waitMs;
    for (let left = claim.waitMs; ; left = Math.max(1, ends - this.transport.now())) {
      const waitMs = Math.min(left, WAIT_MS_MAX);
      const { result, answer } = await this.tryClaim(claim, this.claimWithinMs, waitMs, stop);
      const waits = result.kind === "duplicate" && result.state === "in_progress";
      const pause = pauseBetweenWaits(waitMs, answer.fields);
      if (!waits || this.transport.now() + pause + 1 > ends) return this.noticed(claim, result);
      await sleep(pause, stop);
    }
  }

  /** One claim call with its repeats. */
  private async tryClaim(claim: Claim, withinMs: number, waitMs: number, stop?: AbortSignal) {
    const { transport } = this;
    const answer = await transport.do({
      endpoint: "claim",
      path: "/v1/claims",
      body: withWait(claim.body, waitMs),
      withinMs,
      waitMs,
      first: transport.first,
      genuine: ({ global_id: id, attempt, lease_ms: lease }) =>
        typeof id === "string" && typeof attempt === "string" && (lease ?? 0) > 0,
      about: claim.about,
      stop,
    });
    transport.first = answer.at;
    const result = this.resultOf(claim, answer);
    if (!result) throw rejected(answer.status, answer.fields);
    const foreign = this.foreign(claim, result);
    if (foreign) throw foreign;
    if (result instanceof Grant && !result.isLive) {
      result.stop();
      this.noticed(claim, result);
      await result.fail().catch(() => undefined);
      const detail = "the grant arrived after its lease had ended, and was released";
      throw new Unavailable([{ url: result.gateway ?? "", kind: "too_late", detail }]);
    }
    return { result, answer };
  }

  /** A grant of another identity protects nothing that other callers ask for: it is released before the work. */
  private foreign(claim: Claim, result: Grant | Duplicate | Mismatch): Rejected | null {
    if (!(result instanceof Grant) || result.globalId === claim.globalId) return null;
    result.stop();
    void result.fail().catch(() => undefined);
    const detail =
      `the gateway granted ${result.globalId}, and this client computes ${claim.globalId}; nothing was run, and the claim is ` +
      "released. Leave the credential out if the gateway has no apps; else use a client and a gateway of the same version";
    return new Rejected(201, "identity_differs", detail);
  }

  /** Null if the answer is an error of the caller. */
  private resultOf(claim: Claim, answer: Answer): Grant | Duplicate | Mismatch | null {
    const { status, fields } = answer;
    const { globalId } = claim;
    if (status < 300) return new Grant(this.transport, this.reporter, claim, answer);
    if (status === 409) {
      const omitted = omittedOf(fields.result);
      return {
        kind: "duplicate",
        globalId,
        state: fields.state as Duplicate["state"],
        result: omitted ? null : (fields.result ?? null),
        resultOmitted: omitted,
        retryAfterMs: fields.retry_after_ms ?? 1000,
        claimedAt: fields.claimed_at ?? null,
        expiresAt: fields.expires_at ?? null,
        contentsVerified: fields.contents_verified ?? true,
        degraded: fields.degraded ?? null,
        wouldBe: fields.would_be ?? null,
      };
    }
    const code = fields.code ?? "";
    return status === 422 && code.endsWith("_mismatch") ? { kind: "mismatch", globalId, code } : null;
  }

  private noticed<Result extends Grant | Duplicate | Mismatch>(claim: Claim, result: Result): Result {
    const { transport } = this;
    if (result.kind === "grant") {
      const { repeated, takenOver: taken_over, degraded, wouldBe: would_be } = result;
      transport.event(claim.about, "granted", degraded && degraded !== DISABLED ? "warn" : "debug", {
        repeated,
        taken_over,
        degraded,
        would_be,
      });
    } else if (result.kind === "duplicate") {
      transport.event(claim.about, "duplicate", "debug", { state: result.state });
    } else {
      transport.event(claim.about, "mismatch", "info", { code: result.code });
    }
    return result;
  }

  /** Sends the items until each has an answer or time is over. */
  private async batch(path: string, bodies: string[], withinMs: number, first: number): Promise<(Answer | OncegateError)[]> {
    if (bodies.length === 0 || bodies.length > BATCH_MAX)
      throw new TypeError(`a batch has 1 to ${BATCH_MAX} items, not ${bodies.length}`);
    const { transport } = this;
    const ends = transport.now() + withinMs;
    const answers: (Answer | OncegateError)[] = new Array(bodies.length);
    let open = bodies.map((_, at) => at);
    for (let round = 1; ; round++) {
      const body = `{"items":[${open.map((at) => bodies[at]).join()}]}`;
      const genuine = ({ items }: Fields) => Array.isArray(items) && items.length === open.length;
      const about = { operation: "", globalId: null };
      let answer: Answer;
      try {
        answer = await transport.do({
          endpoint: "batch",
          path,
          body,
          withinMs: Math.max(1, ends - transport.now()),
          first,
          genuine,
          about,
        });
        if (answer.status >= 300) throw rejected(answer.status, answer.fields);
      } catch (error) {
        if (round === 1) throw error;
        for (const at of open) answers[at] = error as OncegateError;
        return answers;
      }
      const { sent, at: gateway, fields } = answer;
      const again: number[] = [];
      let pause = jitter(round);
      open.forEach((at, position) => {
        const item = fields.items?.[position] ?? {};
        const status = item.status ?? 0;
        if (status !== 429 && status < 500) {
          answers[at] = { status, fields: item, sent, at: gateway };
          return;
        }
        const url = transport.servers[gateway]?.url ?? "";
        answers[at] = status === 429 ? rejected(429, item) : new Unavailable([answered(url, status, item)]);
        again.push(at);
        pause = Math.max(pause, item.retry_after_ms ?? 0);
      });
      if (again.length === 0 || transport.now() + pause > ends) return answers;
      await sleep(pause);
      open = again;
    }
  }
}

const NONCE_BYTES = 16;
let random = Buffer.alloc(0);
let randomAt = 0;

/** 32 random hex digits: fresh for each try at an operation, and kept for all repeats of its call. Drawn 64 at a time, which costs less. */
export function newNonce(): string {
  if (randomAt === random.length) {
    random = randomBytes(64 * NONCE_BYTES);
    randomAt = 0;
  }
  randomAt += NONCE_BYTES;
  return random.toString("hex", randomAt - NONCE_BYTES, randomAt);
}

function quote(text: string | undefined): string | undefined {
  return text && JSON.stringify(text);
}

/** What a span says of the answer to a claim. */
function described(found: Grant | Duplicate | Mismatch): Attributes {
  if (found.kind === "mismatch") return { state: "mismatch" };
  return { state: found.kind === "grant" ? "in_progress" : found.state, degraded: found.degraded };
}

/** A duplicate with its result as the caller's schema reads it. */
function read<Result>(
  found: Duplicate | Mismatch,
  schema: ResultSchema<Result> | undefined,
): Duplicate<Result | unknown> | Mismatch {
  if (!schema || found.kind === "mismatch" || found.state !== "succeeded" || found.resultOmitted) return found;
  return { ...found, result: found.result === null ? null : schema.parse(found.result) };
}

export function withWait(body: string, waitMs: number): string {
  return waitMs < 1 ? body : `${body.slice(0, -1)},"wait":"${duration(waitMs)}"}`;
}

/** Short after a wait that the gateway shortened, and what the gateway asks for if it did not wait at all. */
export function pauseBetweenWaits(waitMs: number, fields: Fields): number {
  const after = fields.retry_after_ms ?? 1000;
  return waitMs > 0 && (fields.waited_ms ?? 0) > 0 ? Math.min(after, PAUSE_MS_MIN) : after;
}

function recordOf(fields: Record<string, never>): ClaimRecord {
  const { contents, result } = fields;
  return {
    globalId: fields.global_id as unknown as string,
    operation: fields.operation ?? null,
    state: fields.state as unknown as string,
    timestamp: fields.timestamp as unknown as number,
    attemptHash: fields.attempt_hash as unknown as string,
    claimedAt: fields.claimed_at as unknown as string,
    expiresAt: fields.expires_at ?? null,
    fence: fields.fence ?? null,
    late: fields.late ?? false,
    ...(contents === undefined ? {} : { contents }),
    contentsSha256: fields.contents_sha256 ?? null,
    hasFingerprint: fields.has_fingerprint ?? false,
    ...(result === undefined ? {} : { result }),
    retention: fields.retention as unknown as string,
    onLeaseEnd: fields.on_lease_end as unknown as string,
    degraded: fields.degraded ?? null,
  };
}
