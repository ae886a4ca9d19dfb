/**
 * A client of Oncegate in one file, to be copied. For Node.js 20 or later and whatever else has `fetch`; no dependencies.
 *
 *     const gateway = new Gateway(["http://10.0.0.5:8080", "http://10.0.0.6:8080"], { credential: "shop.the_secret" });
 *     const answer = await gateway.runOnce("order.submit", { order_id: "A-1001" }, (held) => place(order, held.fence));
 *
 * `runOnce` claims the operation, renews the claim while the work runs, and reports what became of it. That somebody else does
 * it or did it is an answer (`kind: "duplicate"`), not an exception. What to do with each: docs/callers.md of the gateway.
 */

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

/** The work ran here, and its end is recorded. */
export interface Done<Result> {
  kind: "done";
  result: Result;
  /** What stands now: `succeeded`, `spooled` (kept by one gateway, to be delivered), or null if nothing could be recorded. */
  state: string | null;
  /**
   * The policy that answered in the store's place, at the claim or at the outcome: repeats may not have been noticed. `caller` is
   * this client's own `proceed`.
   */
  degraded: string | null;
  /** True: the claim was gone when the outcome came, so somebody else may have done it as well. Null: cannot be told. */
  late: boolean | null;
}

/** Somebody else does it or did it. */
export interface Duplicate {
  kind: "duplicate";
  state: "in_progress" | "succeeded" | "unknown";
  /** What a success left, for whoever asks again. */
  result: Json;
  /** After how many milliseconds to ask again, while it is in progress. */
  retryAfterMs: number;
  degraded: string | null;
}

/** The same operation was claimed with another fingerprint, or with other contents of the same ID. */
export interface Mismatch {
  kind: "mismatch";
  code: string;
}

/** No gateway could tell in time. The work was not begun. */
export class Unavailable extends Error {}

/** A gateway refuses this call as it is: a mistake of the caller, or (429) more than its quota. */
export class Rejected extends Error {
  constructor(readonly status: number, readonly code: string, detail: string) {
    super(`${status} ${code}: ${detail}`);
  }
}

/** Thrown by the work: it failed, and certainly had no effect. It can be claimed again at once. */
export class NothingHappened extends Error {}

/** The outcome was answered with 409. `superseded` after a success: perhaps done twice, so raise an alarm. */
export class OutcomeRefused extends Error {
  constructor(readonly code: string, readonly result: Json | undefined) {
    super(`the outcome was refused: ${code}`);
  }
}

/** No gateway took the outcome in time. `report` is text: keep it, and give it to `Gateway.settle` later. */
export class NotSettled extends Error {
  constructor(readonly report: string, readonly result: Json | undefined) {
    super("no gateway has taken the outcome yet");
  }
}

/** These contents would not mean the same to every reader. */
export class NotCanonical extends Error {}

export interface Options {
  /** `<app>.<secret>`, where apps are configured. */
  credential?: string;
  /** The caller's own policy when no gateway can tell: throw `Unavailable`, or run the work unprotected and say so. */
  onUnavailable?: "fail_closed" | "proceed";
  /** Of one call; longer than the gateways' deadline. */
  timeoutMs?: number;
  /** Of all tries of one claim. */
  claimWithinMs?: number;
  /** Of all tries of one outcome; `Infinity`: until it is taken. */
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
  /** The contents in their one spelling. */
  contents: string;
  /** The whole question, to be repeated as it is. */
  body: string;
}

interface Answer {
  /** 0 if there was no answer, or not one of a gateway: then nobody knows whether the call was taken. */
  status: number;
  // What a gateway says: fields that are not known are ignored.
  told: any;
  sent: number;
}

/** Gateways in front of one store: it does not matter which of them is asked. */
export class Gateway {
  // The gateway that answered last is asked first, so that one that is gone costs one timeout, not one a call.
  private first = 0;
  private readonly options: Required<Omit<Options, "credential">> & Options;

  constructor(private readonly urls: string[], options: Options = {}) {
    if (urls.length === 0) throw new Error("at least one URL");
    const defaults = { onUnavailable: "fail_closed", timeoutMs: 2000, claimWithinMs: 5000, settleWithinMs: 30000 } as const;
    this.options = { ...defaults, ...options };
  }

  /**
   * Runs `work` if nobody else has, and reports its end. What it returns is the result that repeats are told.
   *
   * If it throws `NothingHappened`, the operation can be claimed again at once; anything else may have come after the effect, so
   * the outcome is `unknown`. Both are thrown again.
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
      if (!held.isOurs) throw new NothingHappened("the answer came when the lease was over");
      const result = await work(held);
      return await held.succeed(result);
    } catch (error) {
      try {
        await held.end(error);
      } catch {
        // What the work threw says more. The claim ends with its lease.
      }
      throw error;
    } finally {
      held.stop();
    }
  }

  /** Asks whether to go ahead. What it holds is renewed until it is settled or stopped. */
  async claim(operation: string, contents: Json, terms: Terms = {}): Promise<Held | Duplicate | Mismatch> {
    const fields = {
      operation,
      // Fresh for each try at the operation, the same for all repeats of this one question: so a claim whose answer was lost is
      // recognised as ours.
      attempt_nonce: crypto.randomUUID(),
      fingerprint: terms.fingerprint,
      lease: terms.lease,
      retention: terms.retention,
      take_over: terms.takeOver,
    };
    // In their one spelling, so that what would be read differently elsewhere is refused here.
    const spelled = canonical(contents);
    const claim = { operation, contents: spelled, body: bodyOf(fields, spelled) };
    try {
      return await this.ask(claim, this.options.claimWithinMs);
    } catch (error) {
      if (!(error instanceof Unavailable) || this.options.onUnavailable !== "proceed") throw error;
      return new Held(this, claim, null, 0);
    }
  }

  /** Repeats a report until it is taken (200 or 202) or refused (409). Repeating it does no harm. */
  async settle(report: string, withinMs = this.options.settleWithinMs, result?: Json): Promise<any> {
    const [globalId, body] = JSON.parse(report);
    let answer: Answer;
    try {
      answer = await this.call(`/v1/claims/${globalId}/outcome`, body, withinMs);
    } catch (error) {
      throw error instanceof Unavailable ? new NotSettled(report, result) : error;
    }
    if (answer.status === 409) throw new OutcomeRefused(answer.told.code, result);
    return answer.status === 202 ? { ...answer.told, state: "spooled" } : answer.told;
  }

  /** What the gateway will call this operation, computed here. */
  globalId(operation: string, contents: Json): string {
    const credential = this.options.credential;
    return globalId(credential ? credential.slice(0, credential.lastIndexOf(".")) : "default", operation, contents);
  }

  /** For `Held`: one question, within a time. */
  async ask(claim: Claim, withinMs = this.options.timeoutMs): Promise<Held | Duplicate | Mismatch> {
    const { status, told, sent } = await this.call("/v1/claims", claim.body, withinMs);
    if (status === 201) return new Held(this, claim, told, sent);
    if (status !== 409) return { kind: "mismatch", code: told.code };
    const { state, result = null, retry_after_ms: retryAfterMs = 1000, degraded = null } = told;
    return { kind: "duplicate", state, result, retryAfterMs, degraded };
  }

  /** For `Held`: asks one gateway after the other until one of them has answered, and tells when that question was sent. */
  async call(path: string, body: string, withinMs: number): Promise<Answer> {
    const ends = performance.now() + withinMs;
    for (let tries = 1; ; tries++) {
      const at = (this.first + tries - 1) % this.urls.length;
      // The lease counts from here: the answer may be long on its way.
      const sent = performance.now();
      const timeout = Math.max(1, Math.min(this.options.timeoutMs, ends - sent));
      const { status, told } = await this.post(this.urls[at].replace(/\/$/, "") + path, body, timeout);
      if ([200, 201, 202, 409].includes(status) || (status === 422 && String(told.code).endsWith("_mismatch"))) {
        this.first = at;
        return { status, told, sent };
      }
      if (status >= 400 && status < 500 && status !== 429) throw new Rejected(status, told.code, told.detail);
      let pause = status === 429 ? told.retry_after_ms ?? 1000 : 0;
      if (tries % this.urls.length === 0) {
        // Full jitter: those who failed together do not come back together.
        pause = Math.max(pause, Math.random() * Math.min(1000, 50 * 2 ** (tries / this.urls.length)));
      }
      if (performance.now() + pause >= ends) {
        if (status === 429) throw new Rejected(status, told.code, told.detail);
        throw new Unavailable(`no gateway could tell; the last one said ${status || "nothing"} ${told.code ?? ""}`);
      }
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }

  private async post(url: string, body: string, timeoutMs: number): Promise<{ status: number; told: any }> {
    const headers: Record<string, string> = { "content-type": "application/json" };
    if (this.options.credential) headers.authorization = `Bearer ${this.options.credential}`;
    const abort = new AbortController();
    const timer = setTimeout(() => abort.abort(), timeoutMs);
    try {
      const answer = await fetch(url, { method: "POST", headers, body, signal: abort.signal, redirect: "error" });
      const told = await answer.json();
      return typeof told === "object" && told !== null ? { status: answer.status, told } : { status: 0, told: {} };
    } catch {
      return { status: 0, told: {} };
    } finally {
      clearTimeout(timer);
    }
  }
}

/** The right to do one operation, until the lease ends. It is renewed in the background until it is settled or stopped. */
export class Held {
  /** Why the claim was lost, once a renewal was told so: `lease_lost`, `superseded`, or `not_renewed` in time. */
  lost: string | null = null;
  /** Rises with every attempt at the operation; for the resource to compare. Null where the store has none. */
  readonly fence: number | null;
  /** The policy that granted in the store's place; `caller` if none was asked. */
  readonly degraded: string | null;
  /** True if a repeat of the question found the claim that it had already been given. */
  readonly repeated: boolean;
  private ends: number;
  private settled = false;
  private stopped = false;
  private wake: () => void = () => undefined;

  /** Made by `Gateway.claim`. */
  constructor(private readonly gateway: Gateway, private readonly question: Claim, private answer: any, sent: number) {
    this.ends = sent + (answer?.lease_ms ?? 0);
    this.fence = answer?.fence ?? null;
    this.degraded = answer ? answer.degraded ?? null : "caller";
    this.repeated = answer?.repeated ?? false;
    // One that is observed only holds nothing that could be renewed.
    if (answer && !("would_be" in answer)) void this.renew();
  }

  /** Whether to go ahead with what cannot be undone. It narrows the gap after a pause; only the fence closes it. */
  get isOurs(): boolean {
    const holds = this.degraded !== "caller" && !("would_be" in this.answer);
    return !holds || (this.lost === null && performance.now() < this.ends);
  }

  /** It is finished and must never run again, also if the answer is "declined". Repeats are told `result`. */
  async succeed<Result extends Json | undefined>(result: Result): Promise<Done<Result>> {
    const told = await this.settle("success", result);
    const degraded = this.degraded ?? told.degraded ?? null;
    return { kind: "done", result, state: told.state ?? null, degraded, late: told.late ?? null };
  }

  /** It certainly did not happen. */
  async fail(): Promise<void> {
    await this.settle("failure");
  }

  /** Nobody knows whether it happened. Repeats are stopped until somebody has looked. */
  async giveUp(): Promise<void> {
    await this.settle("unknown");
  }

  /** Reports how the work ended that threw this, unless that is done. */
  async end(error: unknown): Promise<void> {
    if (this.settled) return;
    await (error instanceof NothingHappened ? this.fail() : this.giveUp());
  }

  /** Ends the renewal. The claim itself ends with its lease, unless it is settled. */
  stop(): void {
    this.stopped = true;
    this.wake();
  }

  private async settle(outcome: string, result?: Json): Promise<any> {
    if (!this.answer) {
      // Nobody was asked before. Perhaps somebody answers now: then repeats are stopped at least from here on.
      const late = await this.gateway.ask(this.question).catch(() => null);
      if (!(late instanceof Held)) {
        this.settled = true;
        return { late: late !== null };
      }
      late.stop();
      this.answer = late.answer;
    }
    const { global_id: globalId, attempt } = this.answer;
    // Operation and contents matter if it comes late: they tell its terms, and let its contents be compared.
    const fields = { attempt, outcome, operation: this.question.operation, result };
    const report = JSON.stringify([globalId, bodyOf(fields, this.question.contents)]);
    try {
      const told = await this.gateway.settle(report, undefined, result);
      this.settled = true;
      return told;
    } catch (error) {
      // After any other error it is not reported yet.
      this.settled = error instanceof NotSettled || error instanceof OutcomeRefused;
      throw error;
    } finally {
      this.stopped = this.settled;
      if (this.settled) this.wake();
    }
  }

  /** At a third of the lease, so that a lost answer leaves time to ask again; until the lease is over by our own count. */
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
        const { status, told, sent } = await this.gateway.call(path, body, this.ends - performance.now());
        if (this.stopped) return;
        if (status !== 200) {
          this.lost = told.code;
          return;
        }
        this.ends = sent + told.lease_ms;
      } catch {
        // Not known: asked again, as long as there is something to renew.
      }
    }
    if (!this.stopped) this.lost = "not_renewed";
  }
}

/** JSON of what is there, with contents that are spelled already. */
function bodyOf(fields: Record<string, Json | undefined>, contents: string): string {
  return `${JSON.stringify(fields).slice(0, -1)},"contents":${contents}}`;
}

// The name of an operation. -------------------------------------------------------------------------------------------

const DEPTH_MAX = 32;

/** MD5 of app key, operation and canonical contents, in hex: the same operation, the same ID, whoever computes it. */
export function globalId(app: string, operation: string, contents: Json): string {
  return md5(new TextEncoder().encode(`${app}\n${operation}\n${canonical(contents)}`));
}

/**
 * The one spelling of a value (RFC 8785). Throws `NotCanonical` where others would read something else. What a literal lost
 * when it became a number, or an object of a key that occurred twice, cannot be seen here any more.
 */
export function canonical(contents: Json): string {
  if (contents === null || contents === "") {
    throw new NotCanonical('contents must not be null or "": give what tells this operation from others');
  }
  return spelled(contents, 0);
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
