/** What the middleware of all frameworks share: which requests are the same, and what their responses mean. */

import { createHash } from "node:crypto";

import type { Client, Terms } from "./client.js";
import { Rejected } from "./errors.js";
import type { Duplicate, Json, Mismatch } from "./values.js";

/** Set by a handler to decide itself: success, failure (nothing happened) or unknown. It is not sent on. */
export const OUTCOME_HEADER = "oncegate-outcome";

/** The longest body that is stored: with its base64 it fits into a result. */
export const STORED_BYTES_MAX = 45 * 1024;

export interface IdempotencyOptions<Request> {
  client: Client;
  /** What the handler does, such as `order.submit`. A different handler has a different name. */
  operation: string;
  /**
   * Tells callers apart, so that no caller gets the response of another with the same key: the verified account of the request, never
   * an address.
   */
  principal: (request: Request) => string | undefined;
  /** Answer 400 to a request without a key. Otherwise it is passed on unprotected. */
  required?: boolean;
  terms?: Omit<Terms, "fingerprint" | "signal" | "takeOver">;
}

/** What every request has. */
export interface Incoming {
  method: string;
  url: string;
  headers: Readonly<Record<string, string | string[] | undefined>>;
  /** As parsed. */
  body: unknown;
}

/** What repeats get. */
export interface Stored {
  status: number;
  headers: Record<string, string | string[]>;
  body: string;
}

export interface Reply {
  status: number;
  headers: Record<string, string | string[]>;
  body: Buffer;
}

/** They belong to one connection or one caller. */
const NEVER_STORED = new Set([
  ...["connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "set-cookie", "te", "trailer"],
  ...["transfer-encoding", "upgrade", "www-authenticate", OUTCOME_HEADER],
]);

/** Null: pass it on unprotected. A reply: it is refused. */
export function planned<Request>(
  options: IdempotencyOptions<Request>,
  request: Request,
  { method, url, headers, body }: Incoming,
): null | Reply | { contents: { key: string; principal: string }; terms: Terms } {
  if (["GET", "HEAD", "OPTIONS", "TRACE"].includes(method)) return null;
  const given = headers["idempotency-key"];
  if (given === undefined && !options.required) return null;
  const key = keyOf(given);
  if (key === null)
    return problem(400, "idempotency_key_invalid", "Send one Idempotency-Key of 1 to 255 visible ASCII characters.");
  const principal = options.principal(request);
  if (!principal) return problem(400, "principal_missing", "The caller is not known.");
  const path = url.split("?")[0] ?? "";
  const fingerprint = { method, path, query: url.slice(path.length), body: digest(textOf(body)) };
  return { contents: { key, principal: digest(principal) }, terms: { ...options.terms, fingerprint } };
}

/** A structured-field string and the same bare text are the same key. Node.js joins repeated fields with a comma and a space. */
function keyOf(value: string | string[] | undefined): string | null {
  if (typeof value !== "string") return null;
  const bare = /^"(.*)"$/.exec(value.trim())?.[1]?.replace(/\\(["\\])/g, "$1") ?? value.trim();
  return /^[\x21-\x7e]{1,255}$/.test(bare) ? bare : null;
}

function textOf(body: unknown): string | Buffer {
  if (body === undefined || body === null) return "";
  return typeof body === "string" || Buffer.isBuffer(body) ? body : JSON.stringify(body);
}

function digest(text: string | Buffer): string {
  return createHash("sha256").update(text).digest("hex");
}

export type Outcome = "success" | "failure" | "unknown";

/** 2xx, 301 to 303 and 4xx are final; some say that nothing happened; after others it is not known. */
export function outcomeOf(status: number, said: unknown): Outcome {
  if (said === "success" || said === "failure" || said === "unknown") return said;
  if (said !== undefined) return "unknown";
  if ([307, 308, 401, 407, 408, 421, 425, 429].includes(status)) return "failure";
  return (status >= 200 && status < 300) || (status >= 301 && status <= 303) || (status >= 400 && status < 500)
    ? "success"
    : "unknown";
}

export function stored(status: number, headers: Readonly<Record<string, unknown>>, body: Buffer | null): Stored | undefined {
  if (body === null) return undefined;
  const kept = Object.entries(headers).flatMap(([name, value]): [string, string | string[]][] =>
    value === undefined || NEVER_STORED.has(name.toLowerCase())
      ? []
      : [[name, Array.isArray(value) ? value.map(String) : String(value)]],
  );
  return { status, headers: Object.fromEntries(kept), body: body.toString("base64") };
}

/** The answer to a request whose handler did not run. */
export function answerOf(result: Duplicate | Mismatch): Reply {
  if (result.kind === "mismatch")
    return problem(422, "idempotency_key_reused", "The key was used for another request: use a new one.");
  if (result.state === "in_progress") {
    return problem(409, "in_progress", "The request is being handled: repeat after Retry-After.", result.retryAfterMs);
  }
  if (result.state !== "succeeded") return problem(409, "unknown", "The outcome of the request is being checked.");
  const kept = result.result as Partial<Stored> | null;
  if (!kept || typeof kept.status !== "number" || typeof kept.body !== "string") {
    return problem(409, "response_not_stored", "The request has succeeded, but its response was not stored.");
  }
  return {
    status: kept.status,
    headers: { ...kept.headers, "idempotent-replayed": "true" },
    body: Buffer.from(kept.body, "base64"),
  };
}

/** The answer when the claim failed. */
export function refusalOf(error: unknown): Reply {
  if (error instanceof Rejected && error.status === 429) {
    return problem(
      429,
      "quota_exceeded",
      "Too many requests: repeat after Retry-After with the same key.",
      error.retryAfterMs ?? 1000,
    );
  }
  return problem(503, "unavailable", "Nothing was done: repeat later with the same key.", 1000);
}

function problem(status: number, code: string, detail: string, afterMs?: number): Reply {
  const fields: Json = { type: "about:blank", status, code, detail };
  const headers: Record<string, string> = { "content-type": "application/problem+json" };
  if (afterMs !== undefined) headers["retry-after"] = String(Math.max(1, Math.ceil(afterMs / 1000)));
  return { status, headers, body: Buffer.from(JSON.stringify(fields)) };
}
