/** The options of the middleware, the same for every framework. */

import { Client } from "../client.js";
import { span } from "../durations.js";
import { type Harmless, harmlessTest } from "../harmless.js";
import { isEnabled, known } from "../options.js";
import type { Event } from "../values.js";
import { FINGERPRINT_DEFAULT, FINGERPRINT_PARTS, type FingerprintPart } from "./fingerprint.js";
import { type On5xx, type StatusRule, StatusRules } from "./outcome.js";
import type { Problem, Rendered } from "./problems.js";
import { StoredFields } from "./stored.js";

export interface IdempotencyOptions<Request> {
  client: Client;
  /** Operation of the handler, such as `order.submit`. A different handler has a different name. */
  operation: string;
  /**
   * Tells callers apart, so that no caller gets the response of another with the same key: the verified account of the request, never
   * an address. Required, unless `sharedKeys`. Nothing or an empty text is refused.
   */
  principal?: (request: Request) => string | null | undefined | Promise<string | null | undefined>;
  /** All callers share their keys: only where they are one party. */
  sharedKeys?: boolean;
  /** Of the unsafe methods those that are protected. Default: all. */
  methods?: readonly string[];
  /** False leaves a request unprotected. */
  when?: (request: Request) => boolean;
  /** Refuses requests without a key. Otherwise they are passed on unprotected. */
  required?: boolean;
  /** Parts that must be the same on a repeat. `body:json` compares JSON by value. */
  fingerprint?: readonly FingerprintPart[];
  /** Statuses that mean that it is done. Default: 2xx, 301 to 303, 4xx. */
  store?: readonly StatusRule[];
  /** Statuses of responses without an effect. Default: 307, 308, 401, 403, 405, 407, 408, 413, 421, 425, 429. */
  release?: readonly StatusRule[];
  /** The meaning of a 5xx. Default: `unknown`. */
  on5xx?: On5xx;
  /** Errors of the handler that had no effect. */
  nothingHappened?: Harmless;
  /** Lease of the claim without renewal, such as `30s`. */
  lease?: string;
  leaseMs?: number;
  /** Time for which the key blocks, such as `24h`. */
  retention?: string;
  retentionMs?: number;
  /** Longest time that a repeat waits for the response of the first, at most `1h`. `Prefer: wait=5` of the caller comes before it. */
  wait?: string;
  waitMs?: number;
  /** The longest body of a request. Default: 1 MiB. */
  bodyBytes?: number;
  /** The longest body of a response that is stored. Default: 45 KiB. */
  responseBytes?: number;
  /** Fields that are stored although they belong to one caller, such as `Set-Cookie`. */
  storeWith?: readonly string[];
  /** Fields that are not stored. */
  storeWithout?: readonly string[];
  /** Stores responses with `Cache-Control: no-store` too. */
  storePrivate?: boolean;
  /** The longest run of a handler: then its claim is no longer renewed, and is unknown until a response comes. Default: `5m`. */
  exchangeMax?: string;
  exchangeMaxMs?: number;
  claimWithin?: string;
  claimWithinMs?: number;
  settleWithin?: string;
  settleWithinMs?: number;
  /** Notifies the handler in the framework's way that its caller has disconnected. An interrupted handler has the outcome unknown. */
  stopWhenGone?: boolean;
  /** Writes refusals in the error format of the service. */
  render?: (problem: Problem) => Rendered;
  /** Default: that of the client. */
  onUnavailable?: "fail_closed" | "proceed";
  /** Refuses and replays nothing, but counts what enforcing would refuse or replay. */
  observe?: boolean;
  /** False: protects nothing. Default: that of the client. */
  enabled?: boolean;
}

/** Of a repeat, whose caller holds a connection for it. */
const WAIT_MS_MAX = 3_600_000;
const SPANS = ["lease", "retention", "wait", "exchangeMax", "claimWithin", "settleWithin"];
const NAMES = [
  ...[
    "client",
    "operation",
    "principal",
    "sharedKeys",
    "methods",
    "when",
    "required",
    "fingerprint",
    "store",
    "release",
    "on5xx",
  ],
  ...["nothingHappened", "bodyBytes", "responseBytes", "storeWith", "storeWithout", "storePrivate", "stopWhenGone", "render"],
  ...["onUnavailable", "observe", "enabled"],
  ...SPANS.flatMap((name) => [name, `${name}Ms`]),
];
const SAFE = ["GET", "HEAD", "OPTIONS", "TRACE", "CONNECT", "QUERY"];
const FLAGS = ["sharedKeys", "required", "storePrivate", "stopWhenGone", "observe"] as const;
const FUNCTIONS = ["principal", "when", "render"] as const;

/** The options, checked, with their defaults. */
export interface Rules<Request = never> {
  readonly client: Client;
  readonly operation: string;
  readonly given: IdempotencyOptions<Request>;
  readonly isEnabled: boolean;
  readonly covers: (method: string) => boolean;
  readonly fingerprint: readonly FingerprintPart[];
  readonly statuses: StatusRules;
  readonly storedFields: StoredFields;
  readonly isHarmless: (error: unknown) => boolean;
  readonly bodyBytes: number;
  readonly responseBytes: number;
  readonly storePrivate: boolean;
  readonly exchangeMaxMs: number;
  readonly waitMs: number;
  readonly terms: { onLeaseEnd: "unknown"; leaseMs?: number; retention?: string; retentionMs?: number };
  readonly event: (name: string, level: Event["level"], fields?: Event["fields"]) => void;
}

/** Checks the options when the middleware is made: a wrong one must not be found by a request. */
export function rulesOf<Request>(options: IdempotencyOptions<Request>): Rules<Request> {
  known("options of the middleware", options, NAMES);
  const given = copyOf(options);
  const { client, operation, principal, sharedKeys, methods, fingerprint = FINGERPRINT_DEFAULT } = given;
  if (!(client instanceof Client)) throw new TypeError("client is a Client");
  if (typeof operation !== "string" || operation === "")
    throw new TypeError('operation is required: what the handler does, such as "order.submit"');
  for (const name of FLAGS)
    if (given[name] !== undefined && typeof given[name] !== "boolean") throw new TypeError(`${name} is true or false`);
  for (const name of FUNCTIONS)
    if (given[name] !== undefined && typeof given[name] !== "function") throw new TypeError(`${name} is a function`);
  if (!principal && !sharedKeys)
    throw new TypeError("principal is required: it tells callers apart. If all callers are one party, set sharedKeys: true");
  if (principal && sharedKeys) throw new TypeError("principal and sharedKeys: give one of them");
  if (!Array.isArray(fingerprint) || fingerprint.length === 0 || !fingerprint.every((part) => FINGERPRINT_PARTS.includes(part)))
    throw new TypeError(`fingerprint is a list of ${FINGERPRINT_PARTS.join(", ")}`);
  if (fingerprint.includes("body") && fingerprint.includes("body:json"))
    throw new TypeError("fingerprint has body and body:json; leave one out");
  const { claimWithin, claimWithinMs, settleWithin, settleWithinMs, onUnavailable } = given;
  const limited = client.with({ claimWithin, claimWithinMs, settleWithin, settleWithinMs, onUnavailable });
  // The client takes them for each claim: a wrong one is found here.
  span(given, "lease");
  if ((span(given, "wait") ?? 0) > WAIT_MS_MAX)
    throw new TypeError(`${given.wait === undefined ? "waitMs" : "wait"} is at most an hour, such as wait: "10s"`);
  if (given.retention !== "forever") span(given, "retention");
  const leaseMs = span(given, "lease");
  return {
    client: limited,
    operation,
    given,
    isEnabled: isEnabled(given.enabled) && client.enabled,
    covers: coverage(methods),
    fingerprint,
    statuses: new StatusRules(given.store, given.release, given.on5xx),
    storedFields: new StoredFields(given.storeWith, given.storeWithout),
    isHarmless: harmlessTest(given.nothingHappened),
    bodyBytes: bytes("bodyBytes", given.bodyBytes, 1024 * 1024),
    responseBytes: bytes("responseBytes", given.responseBytes, 45 * 1024),
    storePrivate: given.storePrivate ?? false,
    exchangeMaxMs: Math.min(span(given, "exchangeMax") ?? 300_000, 2 ** 31 - 1),
    waitMs: span(given, "wait") ?? 0,
    terms: {
      // A run that is killed, or whose outcome no gateway takes in time, may have had its effect.
      onLeaseEnd: "unknown",
      ...(leaseMs !== undefined && { leaseMs }),
      ...(given.retention !== undefined && { retention: given.retention }),
      ...(given.retentionMs !== undefined && { retentionMs: given.retentionMs }),
    },
    event: (name, level, fields = {}) => limited.event({ name, operation, globalId: null, level, fields }),
  };
}

/** A copy: what the service changes later was not checked. */
function copyOf<Request>(options: IdempotencyOptions<Request>): IdempotencyOptions<Request> {
  const value = (name: string) => options[name as keyof typeof options];
  const copy = NAMES.map((name) => [name, Array.isArray(value(name)) ? [...(value(name) as unknown[])] : value(name)]);
  return Object.fromEntries(copy.filter(([, each]) => each !== undefined)) as typeof options;
}

function coverage(methods: readonly string[] | undefined): (method: string) => boolean {
  if (methods === undefined) return (method) => !SAFE.includes(method);
  if (!Array.isArray(methods) || methods.length === 0)
    throw new TypeError('methods is a list of unsafe methods, such as ["POST"]');
  const safe = methods.find((method) => SAFE.includes(String(method).toUpperCase()));
  if (safe) throw new TypeError(`methods has ${safe}, which is safe: a repeat of it does no harm`);
  const lower = methods.find((method) => typeof method !== "string" || !/^[A-Z]+$/.test(method));
  if (lower !== undefined) throw new TypeError(`methods has ${lower}; methods are written in upper case`);
  return (method) => methods.includes(method);
}

function bytes(name: string, given: number | undefined, standard: number): number {
  if (given !== undefined && !(Number.isSafeInteger(given) && given > 0))
    throw new TypeError(`${name} is a number of bytes above 0`);
  return given ?? standard;
}

/** True if an unsafe method reached a middleware that does not cover it. */
export function isUnsafe(method: string): boolean {
  return !SAFE.includes(method);
}
