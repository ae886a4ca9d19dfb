/** The decision about one request: it runs, it passes unprotected, or it has an answer. */

import { NotCanonical, Rejected, Unavailable } from "../errors.js";
import { Grant } from "../grant.js";
import type { Duplicate, Mismatch } from "../values.js";
import { hasWaited, WAIT_MS_MAX } from "../waits.js";
import type { Body, NoBody } from "./body.js";
import { DEGRADED_FIELD, Exchange } from "./exchange.js";
import { digest, fingerprintOf, type Incoming, methodOverrides } from "./fingerprint.js";
import { keyOf, linesOf } from "./key.js";
import { type IdempotencyOptions, isUnsafe, type Rules, rulesOf } from "./options.js";
import { type Refusal, refusal, replyOf } from "./problems.js";
import { type FieldLines, type Reply, readStored, replay, tombstoneFields } from "./stored.js";

/** The results of requests, for metrics; the names of the proxy. */
export type RequestResult =
  | "forwarded"
  | "unprotected"
  | "replayed"
  | "in_progress"
  | "unknown"
  | "not_stored"
  | "mismatch"
  | "no_key"
  | "refused"
  | "unavailable";

export type Decision<Kind extends string, Value> = { readonly kind: Kind } & Value;
export type Pass = Decision<"pass", object>;
export type Answered = Decision<"answer", { reply: Reply }>;
/** Keyed: its body must be read, and then it is claimed. */
export type Keyed = Decision<"keyed", { key: string }>;
export type Granted = Decision<"run", { exchange: Exchange }>;

const PASS: Pass = { kind: "pass" };

export class Engine<Request> {
  readonly rules: Rules<Request>;
  private readonly running = new Set<Exchange>();
  private idle: (() => void)[] = [];

  constructor(options: IdempotencyOptions<Request>) {
    this.rules = rulesOf(options);
  }

  /** True if the body of a request will be needed. */
  isKeyed(request: Request, { method, rawHeaders }: Incoming): boolean {
    const { isEnabled, covers, given } = this.rules;
    if (!isEnabled || !isUnsafe(method) || !covers(method)) return false;
    const key = keyOf(rawHeaders);
    return key !== null && "key" in key && (given.when?.(request) ?? true);
  }

  /** Decisions that are possible before the body is read. */
  begin(request: Request, incoming: Incoming): Pass | Answered | Keyed {
    const { rules } = this;
    if (!rules.isEnabled) return PASS;
    const key = keyOf(incoming.rawHeaders);
    if (!isUnsafe(incoming.method)) {
      const isDoubtful = key !== null && methodOverrides(incoming.rawHeaders).length > 0;
      if (!isDoubtful || !(rules.given.when?.(request) ?? true)) return PASS;
      const detail = "The request has a key and a safe method that a field overrides. Send it with the method that is meant.";
      return this.refuse("refused", refusal("ambiguous_target", detail));
    }
    const isCovered = rules.covers(incoming.method) && (rules.given.when?.(request) ?? true);
    if (!isCovered || (key === null && !rules.given.required)) {
      if (isCovered || key !== null) this.count("unprotected");
      return PASS;
    }
    if (key === null)
      return this.refuse(
        "no_key",
        refusal(
          "idempotency_key_invalid",
          "Idempotency-Key is required: send a fresh random value for each operation, such as a UUID.",
        ),
      );
    if ("invalid" in key) return this.refuse("refused", refusal("idempotency_key_invalid", key.invalid));
    if (isConversation(incoming)) {
      const detail = "A request with an Idempotency-Key cannot become a WebSocket or a gRPC call; send it without the key.";
      return this.refuse("refused", refusal("not_supported", detail));
    }
    return { kind: "keyed", key: key.key };
  }

  /** The principal of a request; an answer if it has none. An error of the service's own function goes to its caller. */
  async principal(request: Request): Promise<string | Answered | Pass> {
    const { principal } = this.rules.given;
    const value = principal ? await principal(request) : "";
    if (principal && (value === undefined || value === null || value === "")) {
      const detail = "The caller is not known, so its keys cannot be told from those of others; send credentials.";
      return this.refuse("refused", refusal("principal_missing", detail));
    }
    if (typeof value !== "string") throw new TypeError("principal returns text");
    return digest(value);
  }

  /** The answer to a body that cannot be taken. */
  withoutBody(body: NoBody): Answered | Pass {
    const { rules } = this;
    if (body.kind === "cut")
      return this.refuse("refused", refusal("invalid_request", "The body ended early; send it again."), true);
    if (body.kind === "too_large")
      return this.refuse(
        "refused",
        refusal("body_too_large", `The body has more than ${rules.bodyBytes} bytes, the limit for requests with a key.`),
      );
    rules.event("body_not_seen", "error", { why: body.why });
    const detail =
      "The request cannot be identified: " +
      `${body.why}. Put the idempotency middleware before the parsers of the body, or let them keep the bytes in request.rawBody.`;
    return this.refuse("refused", refusal("body_not_seen", detail));
  }

  /** Claims the request. */
  async claim(key: string, principal: string, incoming: Incoming, body: Body): Promise<Granted | Answered | Pass> {
    const { rules } = this;
    // A caller may ask for the longest wait of one call to the gateway, or for that of the service itself.
    const preferred = preferredWait(incoming.rawHeaders, Math.max(WAIT_MS_MAX, rules.waitMs));
    const waitMs = rules.given.observe ? 0 : (preferred ?? rules.waitMs);
    let found: Grant | Duplicate | Mismatch;
    try {
      const fingerprint = fingerprintOf(rules.fingerprint, incoming, body);
      const terms = { ...rules.terms, ...(waitMs > 0 && { waitMs }), fingerprint };
      found = await rules.client.claim(rules.operation, { key, principal }, terms);
    } catch (error) {
      return this.failed(error);
    }
    if (found instanceof Grant) return { kind: "run", exchange: this.exchange(found) };
    const answer = found.kind === "mismatch" ? this.mismatch() : this.repeat(found);
    if (answer.kind === "answer") {
      if ("degraded" in found && found.degraded) answer.reply.fields.push([DEGRADED_FIELD, found.degraded]);
      if (preferred && hasWaited(found)) answer.reply.fields.push(["preference-applied", `wait=${Math.ceil(waitMs / 1000)}`]);
    }
    return answer;
  }

  /** Waits until no handler runs under a claim. False if some still did when time was over. */
  async drain(withinMs: number): Promise<boolean> {
    if (this.running.size === 0) return true;
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<boolean>((resolve) => {
      timer = setTimeout(() => resolve(false), Math.min(withinMs, 2 ** 31 - 1));
    });
    const idle = new Promise<boolean>((resolve) => this.idle.push(() => resolve(true)));
    return Promise.race([idle, late]).finally(() => clearTimeout(timer));
  }

  count(result: RequestResult): void {
    this.rules.client.counted(this.rules.operation, result);
  }

  private exchange(grant: Grant): Exchange {
    this.count("forwarded");
    const exchange: Exchange = new Exchange(this.rules as unknown as Rules, grant, () => {
      this.running.delete(exchange);
      if (this.running.size === 0) for (const idle of this.idle.splice(0)) idle();
    });
    this.running.add(exchange);
    return exchange;
  }

  private repeat({ state, result, retryAfterMs: afterMs }: Duplicate): Answered | Pass {
    const { rules } = this;
    if (state === "in_progress") {
      const detail = "The first request with this key is still running.";
      return this.refuse("in_progress", refusal("duplicate", detail, { state, afterMs }));
    }
    if (state !== "succeeded") {
      const detail =
        "The outcome of the first request with this key is not known. It is not run again: look up its effect, or send a " +
        "fresh key if a second effect does no harm.";
      return this.refuse("unknown", refusal("duplicate", detail, { state: "unknown" }));
    }
    const kept = readStored(result);
    const reply = kept && replay(kept, rules.storedFields);
    if (reply) {
      this.count("replayed");
      return rules.given.observe ? PASS : { kind: "answer", reply };
    }
    const detail =
      "The first request with this key is done, but its response was not stored. `response_status` is its status; `Location` " +
      "and `ETag` are its own.";
    const members = { state, ...(kept && { response_status: kept.status, fields: tombstoneFields(kept, rules.storedFields) }) };
    return this.refuse("not_stored", refusal("response_not_stored", detail, members));
  }

  private mismatch(): Answered | Pass {
    const detail = "This key was used with another request; send a fresh key for each operation.";
    return this.refuse("mismatch", refusal("fingerprint_mismatch", detail));
  }

  private failed(error: unknown): Answered | Pass {
    return this.refuse(
      error instanceof Rejected && error.status === 429 ? "refused" : "unavailable",
      refusalOf(error, this.rules.event),
    );
  }

  /** In observe mode nothing is refused, except an upload that cannot be handled. */
  private refuse(result: RequestResult, refused: Refusal, always = false): Answered | Pass {
    this.count(result);
    if (this.rules.given.observe && !always) return PASS;
    return { kind: "answer", reply: replyOf(refused, this.rules.given.render) };
  }
}

/** True if the response to a request cannot be recorded: WebSocket and gRPC. */
function isConversation({ rawHeaders }: Incoming): boolean {
  const offers = linesOf(rawHeaders, "upgrade").flatMap((line) => line.split(","));
  if (offers.some((offer) => offer.trim().toLowerCase() === "websocket")) return true;
  return /^application\/grpc/i.test(linesOf(rawHeaders, "content-type")[0] ?? "");
}

/** The refusal for an error of the client. An event reports what the service must correct; the caller does not see it. */
export function refusalOf(error: unknown, event: Rules["event"]): Refusal {
  if (error instanceof Rejected && error.status === 429)
    return refusal("quota_exceeded", "Too many requests; repeat after Retry-After with the same key.", {
      afterMs: error.retryAfterMs ?? 1000,
    });
  if (error instanceof NotCanonical) return refusal("contents_not_canonical", error.message);
  if (error instanceof Rejected) {
    event("rejected", "error", { status: error.status, code: error.code, detail: error.detail });
    if (error.code === "identity_differs")
      return refusal("identity_differs", "The service and its gateway name operations differently. Nothing was done.");
  } else if (!(error instanceof Unavailable)) throw error;
  const detail =
    error instanceof Unavailable && error.mayHaveActed
      ? "Nothing was done, but a gateway may have taken the key. Repeat with the same key: if it was taken, the answer is 409 until " +
        "the claim ends or is settled."
      : "Nothing was done; repeat with the same key.";
  return refusal("store_unavailable", detail, { afterMs: 1000 });
}

/** The time that a caller prefers to wait (RFC 7240). The first one counts; one that cannot be read is none. */
function preferredWait(rawHeaders: readonly string[], longestMs: number): number | undefined {
  const preferences = linesOf(rawHeaders, "prefer").flatMap((line) => line.split(","));
  for (const preference of preferences) {
    const [name, value] = (preference.split(";")[0] ?? "").split("=");
    if (name?.trim().toLowerCase() !== "wait" || value === undefined) continue;
    const seconds = value.trim().replace(/^"|"$/g, "");
    return /^\d{1,9}$/.test(seconds) ? Math.min(Number(seconds) * 1000, longestMs) : undefined;
  }
  return undefined;
}

export function fieldsOf(headers: Readonly<Record<string, unknown>>): FieldLines {
  return Object.entries(headers).flatMap(([name, value]) =>
    value === undefined
      ? []
      : (Array.isArray(value) ? value : [value]).map((line): [string, string] => [name.toLowerCase(), String(line)]),
  );
}
