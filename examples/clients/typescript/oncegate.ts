/**
 * A client for Oncegate in one file, to copy. For Node.js 20 or later and anything else that has `fetch`; no dependencies.
 *
 *     const gateway = new Gateway(["http://10.0.0.5:8080", "http://10.0.0.6:8080"], { credential: "shop.the_secret" });
 *     const answer = await gateway.runOnce("order.submit", { order_id: "A-1001" }, (held) => place(order, held.fence));
 *
 * `runOnce` claims the operation, renews the claim while the work runs, and reports the outcome. A duplicate is an answer
 * (`kind: "duplicate"`), not an exception. What to do with each answer: docs/integration.md of the gateway.
 */

/** A longer result is not sent: the default of the gateway's `limits.result_bytes`. */
const RESULT_BYTES_MAX = 64 * 1024;

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

/** The work ran here, and its outcome was reported. */
export interface Done<Result> {
  kind: "done";
  result: Result;
  /** The state of the claim: `succeeded`, `spooled` (kept by one gateway, to be delivered), or null if nothing was recorded. */
  state: string | null;
  /**
   * The outage policy that answered instead of the store, at the claim or at the outcome; duplicates may have been missed.
   * `caller` is this client's own `proceed`.
   */
  degraded: string | null;
  /** True: the claim had ended before the outcome arrived, so another attempt may have run. Null: not known. */
  late: boolean | null;
  /**
   * Why the result was not stored: it is not JSON, is too long, or was refused. The success itself was recorded; duplicates get
   * null as their result. Null if the result was stored.
   */
  resultError: string | null;
}

/** Another attempt is running or has completed the operation. */
export interface Duplicate {
  kind: "duplicate";
  state: "in_progress" | "succeeded" | "unknown";
  /** The result stored with the success. */
  result: Json;
  /** Milliseconds until it is worth asking again, while it is in progress. */
  retryAfterMs: number;
  degraded: string | null;
}

/** The operation was claimed with another fingerprint, or with other contents of the same ID. */
export interface Mismatch {
  kind: "mismatch";
  code: string;
}

/** Why a gateway gave no usable answer. */
export interface Cause {
  url: string;
  /**
   * `connection`: it was closed or broke, and in a browser any failure of `fetch`. `not_a_gateway`: something else answered, so
   * check the URL. `answer`: the gateway answered 5xx.
   */
  kind: "dns" | "refused" | "timeout" | "tls" | "connection" | "not_a_gateway" | "answer";
  detail: string;
}

/** No gateway gave an answer in time. The work was not started. */
export class Unavailable extends Error {
  /** @param causes the last failure of each gateway that was tried */
  constructor(readonly causes: Cause[]) {
    super(`no gateway answered: ${causes.map(({ url, kind, detail }) => `${url}: ${kind}: ${detail}`).join("; ")}`);
  }
}

/** A gateway refused the call: a mistake of the caller, or (429) its quota is used up. */
export class Rejected extends Error {
  constructor(readonly status: number, readonly code: string, detail: string) {
    super(`${status} ${code}: ${detail}`);
  }
}

/** Thrown by the work: it failed and certainly had no effect. The operation can be claimed again at once. */
export class NothingHappened extends Error {}

/** The outcome was answered with 409. `superseded` after a success: perhaps done twice, so raise an alarm. */
export class OutcomeRefused extends Error {
  constructor(readonly code: string, readonly result: Json | undefined) {
    super(`the outcome was refused: ${code}`);
  }
}

/** No gateway has taken the outcome; `cause` says why. `report` is text: keep it, and pass it to `Gateway.settle` later. */
export class NotSettled extends Error {
  constructor(readonly report: string, readonly result: Json | undefined, cause: Error) {
    super(`no gateway has taken the outcome yet: ${cause.message}`, { cause });
  }
}

/** The contents would not mean the same to every reader. */
export class NotCanonical extends Error {}

export interface Options {
  /** `<app>.<secret>`, where apps are configured. */
  credential?: string;
  /** The caller's own policy when no gateway answers: throw `Unavailable`, or run the work unprotected and say so. */
  onUnavailable?: "fail_closed" | "proceed";
  /** Limit of one call; longer than the gateways' deadline. */
  timeoutMs?: number;
  /** Limit of all tries of one claim. */
  claimWithinMs?: number;
  /** Limit of all tries of one outcome; `Infinity`: none. */
  settleWithinMs?: number;
}

export interface Terms {
  /** What else must be equal on a repeat, without being part of the identity. */
  fingerprint?: Json;
  lease?: string;
  retention?: string;
  takeOver?: boolean;
}

interface Claim {
  operation: string;
  /** The contents in canonical form. */
  contents: string;
  /** The whole request, to be repeated as it is. */
  body: string;
}

interface Answer {
  status: number;
  // The fields of a gateway's answer: those that are not known are ignored.
  fields: any;
  sent: number;
}

/** One or more gateways in front of the same store; any of them may answer. */
export class Gateway {
  // The gateway that answered last is called first, so that one that is down costs one timeout, not one for each call.
  private first = 0;
  private readonly options: Required<Omit<Options, "credential">> & Options;

  constructor(private readonly urls: string[], options: Options = {}) {
    if (urls.length === 0) throw new Error("at least one URL");
    for (const url of urls) {
      if (!/^https?:\/\/[^/]/.test(url)) {
        throw new Error(`not the URL of a gateway: ${url}; expected http://HOST:PORT or https://HOST:PORT`);
      }
    }
    const defaults = { onUnavailable: "fail_closed", timeoutMs: 2000, claimWithinMs: 5000, settleWithinMs: 30000 } as const;
    this.options = { ...defaults, ...options };
  }

  /**
   * Runs `work` unless the operation is a duplicate, and reports the outcome. Duplicates get what `work` returns.
   *
   * If it throws `NothingHappened`, the operation can be claimed again at once. Any other error may have come after the effect,
   * so the outcome is `unknown`. Both are thrown again.
   */
  async runOnce<Result extends Json | undefined>(
    operation: string,
    contents: Json,
    work: (held: Held) => Promise<Result> | Result,
    terms: Terms = {},
  ): Promise<Done<Result> | Duplicate | Mismatch> {
    const held = await this.claim(operation, contents, terms);
    if (!(held instanceof Held)) return held;
    try {
      if (!held.isOurs) throw new NothingHappened("the answer arrived after the lease had ended");
      const result = await work(held);
      return await held.succeed(result);
    } catch (error) {
      try {
        await held.end(error);
      } catch {
        // The error of the work says more. The claim ends with its lease.
      }
      throw error;
    } finally {
      held.stop();
    }
  }

  /** Claims the operation. A `Held` is renewed until it is settled or stopped. */
  async claim(operation: string, contents: Json, terms: Terms = {}): Promise<Held | Duplicate | Mismatch> {
    const fields = {
      operation,
      // Fresh for each try at the operation, the same for all repeats of this call: a claim whose answer was lost is then
      // recognised as ours.
      attempt_nonce: crypto.randomUUID(),
      fingerprint: terms.fingerprint,
      lease: terms.lease,
      retention: terms.retention,
      take_over: terms.takeOver,
    };
    // In canonical form, so that contents that would be read differently elsewhere are refused here.
    const text = canonical(contents);
    const claim = { operation, contents: text, body: bodyOf(fields, { contents: text }) };
    try {
      return await this.ask(claim, this.options.claimWithinMs);
    } catch (error) {
      if (!(error instanceof Unavailable) || this.options.onUnavailable !== "proceed") throw error;
      return new Held(this, claim, null, 0);
    }
  }

  /**
   * Repeats a report until it is taken (200 or 202) or refused (409). Safe to repeat. A result that the gateway refuses is left
   * out; the answer then holds the reason as `result_error`.
   */
  async settle(report: string, withinMs = this.options.settleWithinMs, result?: Json): Promise<any> {
    const { global_id: globalId, contents, result: stored, ...fields } = JSON.parse(report);
    const path = `/v1/claims/${globalId}/outcome`;
    const send = (encoded: Record<string, string | undefined>) => this.call(path, bodyOf(fields, encoded), withinMs);
    let resultError: string | undefined;
    const sent = send({ contents, result: stored }).catch((error) => {
      if (stored === undefined || !(error instanceof Rejected) || ![400, 413, 422].includes(error.status)) throw error;
      // The operation has succeeded whether or not its result can be stored.
      resultError = error.message;
      return send({ contents });
    });
    const answer = await sent.catch((error) => {
      throw error instanceof Unavailable ? new NotSettled(report, result, error) : error;
    });
    if (answer.status === 422) throw new Rejected(422, answer.fields.code, answer.fields.detail);
    if (answer.status === 409) throw new OutcomeRefused(answer.fields.code, result);
    const state = answer.status === 202 ? "spooled" : answer.fields.state;
    return { ...answer.fields, state, result_error: resultError };
  }

  /** The global ID of this operation, computed without a gateway. */
  globalId(operation: string, contents: Json): string {
    const credential = this.options.credential;
    return globalId(credential ? credential.slice(0, credential.lastIndexOf(".")) : "default", operation, contents);
  }

  /** For `Held`: one claim, within a time. */
  async ask(claim: Claim, withinMs = this.options.timeoutMs): Promise<Held | Duplicate | Mismatch> {
    const { status, fields, sent } = await this.call("/v1/claims", claim.body, withinMs);
    if (status === 201) return new Held(this, claim, fields, sent);
    if (status !== 409) return { kind: "mismatch", code: fields.code };
    const { state, result = null, retry_after_ms: retryAfterMs = 1000, degraded = null } = fields;
    return { kind: "duplicate", state, result, retryAfterMs, degraded };
  }

  /** For `Held`: calls one gateway after the other until one has answered. Returns the answer, and when its request was sent. */
  async call(path: string, body: string, withinMs: number): Promise<Answer> {
    const ends = performance.now() + withinMs;
    const causes = new Map<string, Cause>();
    let resent = false;
    for (let tries = 1; ; tries++) {
      const at = (this.first + tries - 1) % this.urls.length;
      const url = this.urls[at];
      // The lease counts from here: the answer may take long.
      const sent = performance.now();
      const timeout = Math.max(1, Math.min(this.options.timeoutMs, ends - sent));
      const answer = await this.post(url, path, body, timeout);
      const { status, fields } = "kind" in answer ? { status: 0, fields: {} as any } : answer;
      if ([200, 201, 202, 409].includes(status) || (status === 422 && fields.code.endsWith("_mismatch"))) {
        this.first = at;
        return { status, fields, sent };
      }
      if (status >= 400 && status < 500 && status !== 429) throw new Rejected(status, fields.code, fields.detail);
      const cause: Cause =
        "kind" in answer ? answer : { url, kind: "answer", detail: `${status} ${fields.code}: ${fields.detail}` };
      // A try that was cut short by `withinMs` says nothing new.
      if (cause.kind !== "timeout" || timeout === this.options.timeoutMs || !causes.has(url)) causes.set(url, cause);
      if (cause.kind === "connection" && !resent) {
        // Most likely a kept connection that the gateway had closed. The same call may be sent again: the nonce or the attempt
        // in it is recognised.
        resent = true;
        tries--;
        continue;
      }
      let pause = status === 429 ? fields.retry_after_ms ?? 1000 : 0;
      if (tries % this.urls.length === 0) {
        // Full jitter: callers that failed together do not come back together.
        pause = Math.max(pause, Math.random() * Math.min(1000, 50 * 2 ** (tries / this.urls.length)));
      }
      if (performance.now() + pause >= ends) {
        if (status === 429) throw new Rejected(status, fields.code, fields.detail);
        throw new Unavailable([...causes.values()]);
      }
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }

  /** One call. A cause if there was no answer of a gateway: whether it acted on the call is not known. */
  private async post(url: string, path: string, body: string, timeoutMs: number): Promise<Cause | { status: number; fields: any }> {
    const headers: Record<string, string> = { "content-type": "application/json" };
    if (this.options.credential) headers.authorization = `Bearer ${this.options.credential}`;
    const abort = new AbortController();
    const timer = setTimeout(() => abort.abort(), timeoutMs);
    let response: Response;
    let text: string;
    try {
      // `fetch` keeps connections and uses them again, since each answer is read to its end.
      const request = { method: "POST", headers, body, signal: abort.signal, redirect: "manual" } as const;
      response = await fetch(url.replace(/\/+$/, "") + path, request);
      text = await response.text();
    } catch (error) {
      return abort.signal.aborted ? { url, kind: "timeout", detail: `no answer within ${timeoutMs} ms` } : failure(url, error);
    } finally {
      clearTimeout(timer);
    }
    const fields = parsed(text);
    if (typeof fields?.[response.status < 300 ? "global_id" : "code"] === "string") return { status: response.status, fields };
    const type = response.headers.get("content-type") ?? "without a content type";
    return { url, kind: "not_a_gateway", detail: `answered ${response.status}, ${type}` };
  }
}

/** The cause of an error of `fetch`. Node.js says more in `cause`; browsers say nothing. */
function failure(url: string, error: any): Cause {
  const inner = error?.cause ?? error;
  const code = String(inner?.code ?? "");
  const detail = [code, inner?.message || error?.message].filter(Boolean).join(" ");
  if (code === "ECONNREFUSED") return { url, kind: "refused", detail };
  if (code === "ENOTFOUND" || code === "EAI_AGAIN" || code === "EAI_FAIL") return { url, kind: "dns", detail };
  if (code === "ETIMEDOUT" || code === "UND_ERR_CONNECT_TIMEOUT") return { url, kind: "timeout", detail };
  if (/^ERR_(SSL|TLS)|CERT|SIGNATURE|ISSUER|^EPROTO$/.test(code)) return { url, kind: "tls", detail };
  return { url, kind: "connection", detail };
}

function parsed(text: string): any {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** The right to run one operation, until the lease ends. Renewed in the background until it is settled or stopped. */
export class Held {
  /** Why the claim was lost, by the answer to a renewal: `lease_lost`, `superseded`, or `not_renewed` in time. */
  lost: string | null = null;
  /** Rises with every attempt at the operation; for the resource to compare. Null where the store has none. */
  readonly fence: number | null;
  /** The outage policy that granted the claim; `caller` if no gateway answered. */
  readonly degraded: string | null;
  /** True if a repeat of the claim call found the claim that it had already been granted. */
  readonly repeated: boolean;
  private ends: number;
  private settled = false;
  private stopped = false;
  private wake: () => void = () => undefined;

  /** Made by `Gateway.claim`. */
  constructor(private readonly gateway: Gateway, private readonly claim: Claim, private answer: any, sent: number) {
    this.ends = sent + (answer?.lease_ms ?? 0);
    this.fence = answer?.fence ?? null;
    this.degraded = answer ? answer.degraded ?? null : "caller";
    this.repeated = answer?.repeated ?? false;
    // A claim that is only observed has nothing to renew.
    if (answer && !("would_be" in answer)) void this.renew();
  }

  /** Whether the claim still stands, to check before an effect that cannot be undone. Only the fence closes the gap. */
  get isOurs(): boolean {
    const holds = this.degraded !== "caller" && !("would_be" in this.answer);
    return !holds || (this.lost === null && performance.now() < this.ends);
  }

  /**
   * Reports that the work is finished and must never run again, also if the answer is "declined". Duplicates get `result`. If it
   * cannot be sent, the success is reported without it: see `Done.resultError`.
   */
  async succeed<Result extends Json | undefined>(result: Result): Promise<Done<Result>> {
    const { text, error } = encoded(result);
    const fields = await this.settle("success", result, text);
    const degraded = this.degraded ?? fields.degraded ?? null;
    const resultError = error ?? fields.result_error ?? null;
    return { kind: "done", result, state: fields.state ?? null, degraded, late: fields.late ?? null, resultError };
  }

  /** Reports that it certainly did not happen. */
  async fail(): Promise<void> {
    await this.settle("failure");
  }

  /** Reports that it is not known whether it happened. Repeats are stopped until an operator or a take-over settles it. */
  async giveUp(): Promise<void> {
    await this.settle("unknown");
  }

  /** Reports the outcome of work that threw this, unless one was reported. */
  async end(error: unknown): Promise<void> {
    if (this.settled) return;
    await (error instanceof NothingHappened ? this.fail() : this.giveUp());
  }

  /** Ends the renewal. The claim itself ends with its lease, unless it is settled. */
  stop(): void {
    this.stopped = true;
    this.wake();
  }

  private async settle(outcome: string, result?: Json, text?: string): Promise<any> {
    if (!this.answer) {
      // Granted by this client's own policy. If a gateway answers now, repeats are stopped from here on.
      const late = await this.gateway.ask(this.claim).catch(() => null);
      if (!(late instanceof Held)) {
        this.settled = true;
        return { late: late !== null };
      }
      late.stop();
      this.answer = late.answer;
    }
    const { global_id, attempt } = this.answer;
    // Operation and contents matter if the outcome is late: its record then has their terms, and contents to compare.
    const { operation, contents } = this.claim;
    const report = JSON.stringify({ global_id, attempt, outcome, operation, contents, result: text });
    try {
      return await this.gateway.settle(report, undefined, result);
    } catch (error) {
      throw error instanceof Rejected ? new NotSettled(report, result, error) : error;
    } finally {
      this.settled = true;
      this.stop();
    }
  }

  /** Renews at a third of the lease, which leaves time to repeat a lost answer; stops when the lease has ended here. */
  private async renew(): Promise<void> {
    const body = JSON.stringify({ attempt: this.answer.attempt });
    for (let left: number; (left = this.ends - performance.now()) > 0; ) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, left / 3);
        this.wake = () => (clearTimeout(timer), resolve());
      });
      if (this.stopped) return;
      try {
        const path = `/v1/claims/${this.answer.global_id}/renewal`;
        const { status, fields, sent } = await this.gateway.call(path, body, this.ends - performance.now());
        if (this.stopped) return;
        if (status !== 200) {
          this.lost = fields.code;
          return;
        }
        this.ends = sent + fields.lease_ms;
      } catch {
        // Not known: repeated for as long as the lease lasts.
      }
    }
    if (!this.stopped) this.lost = "not_renewed";
  }
}

/** The result as JSON, or why it cannot be sent. */
function encoded(result: Json | undefined): { text?: string; error?: string } {
  try {
    const text = JSON.stringify(result) as string | undefined;
    const bytes = new TextEncoder().encode(text ?? "").length;
    return bytes > RESULT_BYTES_MAX ? { error: `the result has ${bytes} bytes, more than ${RESULT_BYTES_MAX}` } : { text };
  } catch (error) {
    return { error: `the result is not JSON: ${error}` };
  }
}

/** A JSON object of the fields that are defined, and of those that are encoded already. */
function bodyOf(fields: Record<string, Json | undefined>, encoded: Record<string, string | undefined>): string {
  const members = Object.entries(fields).flatMap(([name, value]) =>
    value === undefined ? [] : [`${JSON.stringify(name)}:${JSON.stringify(value)}`],
  );
  for (const [name, text] of Object.entries(encoded)) if (text !== undefined) members.push(`${JSON.stringify(name)}:${text}`);
  return `{${members.join()}}`;
}

// The name of an operation. -------------------------------------------------------------------------------------------

const DEPTH_MAX = 32;

/** MD5 of app key, operation and canonical contents, in hex: the same operation, the same ID, in every language. */
export function globalId(app: string, operation: string, contents: Json): string {
  return md5(new TextEncoder().encode(`${app}\n${operation}\n${canonical(contents)}`));
}

/**
 * The one spelling of a value (RFC 8785). Throws `NotCanonical` where others would read something else. What a literal lost
 * when it became a number, or an object of a key that occurred twice, cannot be seen here any more.
 */
export function canonical(contents: Json): string {
  const text = spelled(contents, 0);
  if (!holdsValue(contents)) {
    throw new NotCanonical('contents hold no value, only null, "", {} or []: give what tells this operation from others');
  }
  return text;
}

/** Whether there is a number, a boolean or a string with a character in it: one unset id must not name every order. */
function holdsValue(value: Json): boolean {
  if (value === null || typeof value !== "object") return value !== null && value !== "";
  return (Object.values(value) as Json[]).some(holdsValue);
}

function spelled(value: Json, depth: number): string {
  if (value === null || typeof value === "boolean") return String(value);
  if (typeof value === "number") return spelledNumber(value);
  if (typeof value === "string") return spelledString(value);
  if (depth === DEPTH_MAX) throw new NotCanonical(`nested deeper than ${DEPTH_MAX} levels: send it as text`);
  if (Array.isArray(value)) return `[${value.map((item) => spelled(item, depth + 1)).join()}]`;
  if (typeof value !== "object" || ![Object.prototype, null].includes(Object.getPrototypeOf(value))) {
    throw new NotCanonical(`a ${typeof value} that is no JSON: send it as text`);
  }
  // By UTF-16 code units, as the RFC wants.
  const keys = Object.keys(value).sort();
  return `{${keys.map((key) => `${spelledString(key)}:${spelled(value[key], depth + 1)}`).join()}}`;
}

function spelledString(text: string): string {
  if (/\p{Surrogate}/u.test(text)) throw new NotCanonical("a text holds half of a surrogate pair");
  return JSON.stringify(text);
}

function spelledNumber(number: number): string {
  const size = Math.abs(number);
  if (!Number.isFinite(number)) throw new NotCanonical("a number is not finite: send it as text");
  if (size >= 2 ** 53 && size < 1e21) {
    throw new NotCanonical("a number is beyond 2^53 - 1, where digits get lost: send it as text");
  }
  return JSON.stringify(number);
}

/** RFC 1321. Here, since the web's own cryptography has no MD5 (and rightly so: this one names, and secures nothing). */
function md5(message: Uint8Array): string {
  const turns = [7, 12, 17, 22, 5, 9, 14, 20, 4, 11, 16, 23, 6, 10, 15, 21];
  const sines = Array.from({ length: 64 }, (_, step) => Math.floor(Math.abs(Math.sin(step + 1)) * 2 ** 32));
  const padded = new Uint8Array((((message.length + 8) >> 6) + 1) * 64);
  padded.set(message);
  padded[message.length] = 0x80;
  const words = new DataView(padded.buffer);
  words.setUint32(padded.length - 8, message.length << 3, true);
  words.setUint32(padded.length - 4, Math.floor(message.length / 2 ** 29), true);
  const state = [0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476];
  for (let block = 0; block < padded.length; block += 64) {
    let [a, b, c, d] = state;
    for (let step = 0; step < 64; step++) {
      const round = step >> 4;
      const mixed = [(b & c) | (~b & d), (d & b) | (~d & c), b ^ c ^ d, c ^ (b | ~d)][round];
      const word = [step, 5 * step + 1, 3 * step + 5, 7 * step][round] % 16;
      const sum = (a + mixed + sines[step] + words.getUint32(block + word * 4, true)) | 0;
      const turn = turns[round * 4 + (step % 4)];
      [a, d, c, b] = [d, c, b, (b + ((sum << turn) | (sum >>> (32 - turn)))) | 0];
    }
    [a, b, c, d].forEach((word, at) => (state[at] = (state[at] + word) | 0));
  }
  const digest = new DataView(new ArrayBuffer(16));
  state.forEach((word, at) => digest.setUint32(at * 4, word, true));
  return Array.from(new Uint8Array(digest.buffer), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
