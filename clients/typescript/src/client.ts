/** The client: claim, run, report. */

import { sendBatch } from "./batch.js";
import { type AnyContents, type Contents, canonical, canonicalOrEmpty, globalId, idOf } from "./contents.js";
import { DISABLED, NoServer } from "./disabled.js";
import { span, spanText } from "./durations.js";
import { NotSettled, type OncegateError, OutcomeRefused, Rejected, Unavailable } from "./errors.js";
import { type Claim, Grant, type Reporter } from "./grant.js";
import { harmlessTest } from "./harmless.js";
import { Lock, type LockTerms } from "./lock.js";
import { giveBack } from "./lost.js";
import { defaultUrls, isEnabled, known, type Options, SERVERS } from "./options.js";
import { body, objectOf, type Report, Reports, readReport, written } from "./report.js";
import { encode, endsLater, omittedOf, type ResultSchema, refuseGenerators } from "./results.js";
import type { Answer, Server } from "./server.js";
import { type Attributes, spanned } from "./telemetry.js";
import {
  CLAIM_TERMS,
  type ClaimItem,
  LIMITS,
  type Limits,
  type OnceTerms,
  OPTIONS,
  type OutcomeItem,
  TERMS,
  type Terms,
} from "./terms.js";
import { type Call, hasGlobalId, rejected, serversOf, sleep, Transport } from "./transport.js";
import type { ClaimRecord, Done, Duplicate, Event, Mismatch, Omitted, Settled } from "./values.js";
import { newNonce, noteWaited, pauseBetweenWaits, WAIT_MS_MAX, withWait } from "./waits.js";

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
  constructor(urls: string | readonly string[] | undefined, options?: Options);
  constructor(first: string | readonly string[] | Options | undefined, second: Options = {}) {
    const hasUrls = typeof first === "string" || Array.isArray(first);
    const urls = typeof first === "string" ? [first] : hasUrls ? (first as readonly string[]) : defaultUrls();
    const options = hasUrls || first === undefined ? second : (first as Options);
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
   * Runs `work` unless the operation is a duplicate, renews the claim while it runs, and reports the outcome. Duplicates get the
   * result of `work`, as JSON; with `result` in the terms, they get the value that it reads.
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

  /** Claims the operation. A `Grant` is renewed until it is reported or stopped. `once` does all of that for you. */
  async claim<C>(operation: string, contents: C & Contents<C>, terms: Terms = {}): Promise<Grant | Duplicate | Mismatch> {
    known("terms of a claim", terms, TERMS);
    const claim = this.newClaim(operation, contents, terms);
    try {
      return await spanned("oncegate claim", "client", { operation }, () => this.detached(claim, terms.signal), described);
    } catch (error) {
      const { transport, proceeds, settleWithinMs } = this;
      const isUnavailable = error instanceof Unavailable;
      if (isUnavailable) transport.event(claim.about, proceeds ? "proceeded" : "unavailable", "warn", { causes: error.causes });
      if (!isUnavailable || !proceeds) {
        giveBack(transport, claim, settleWithinMs);
        throw error;
      }
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
    const answers = await sendBatch(this.transport, "/v1/claims/batch", bodies, this.claimWithinMs, this.transport.first);
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
    const answers = await sendBatch(this.transport, "/v1/outcomes/batch", bodies, this.settleWithinMs, Math.max(0, first));
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
    if (terms.onLeaseEnd !== undefined && terms.onLeaseEnd !== "unknown")
      throw new TypeError('onLeaseEnd is "unknown"; `release` is a term that operators give an operation');
    // In canonical form, so that ambiguous contents are refused here.
    const text = canonical(contents);
    const id = idOf(this.app, operation, text);
    const nonce = newNonce();
    const body = objectOf({
      operation: JSON.stringify(operation),
      contents: text,
      attempt_nonce: JSON.stringify(nonce),
      fingerprint: terms.fingerprint === undefined ? undefined : canonicalOrEmpty(terms.fingerprint),
      lease: quote(spanText(terms, "lease")),
      retention: quote(spanText(terms, "retention")),
      take_over: terms.takeOver ? "true" : undefined,
      on_lease_end: quote(terms.onLeaseEnd),
    });
    const waitMs = span(terms, "wait") ?? 0;
    return { operation, contents: text, globalId: id, body, about: { operation, globalId: id }, waitMs, nonce };
  }

  /** Claims in the background, so that no claim remains if the caller leaves. */
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
        const { transport, settleWithinMs } = this;
        void claiming
          .then(
            (late) => (late instanceof Grant ? late.fail() : undefined),
            () => giveBack(transport, claim, settleWithinMs),
          )
          .catch(() => undefined);
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
    let waited = false;
    for (let left = claim.waitMs; ; left = Math.max(1, ends - this.transport.now())) {
      const waitMs = Math.min(left, WAIT_MS_MAX);
      const { result, answer } = await this.tryClaim(claim, this.claimWithinMs, waitMs, stop);
      const waits = result.kind === "duplicate" && result.state === "in_progress";
      const pause = pauseBetweenWaits(waitMs, answer.fields);
      waited ||= (answer.fields.waited_ms ?? 0) > 0;
      if (waited) noteWaited(result);
      if (!waits || this.transport.now() + pause + 1 > ends) return this.noticed(claim, result);
      await sleep(pause, stop);
    }
  }

  /** One claim call with its repeats. */
  private async tryClaim(claim: Claim, withinMs: number, waitMs: number, stop?: AbortSignal) {
    const { transport } = this;
    const call: Call = {
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
    };
    let answer: Answer;
    try {
      answer = await transport.do(call);
      claim.uncertain = false;
    } catch (error) {
      claim.uncertain ||= call.uncertain ?? false;
      throw error;
    }
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
}

function quote(text: string | undefined): string | undefined {
  return text && JSON.stringify(text);
}

/** Attributes of a span about the answer to a claim. */
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
