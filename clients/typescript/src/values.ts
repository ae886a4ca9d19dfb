/** Results of the calls, and what the hooks of a client receive. */

export type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };

/** Why a result was not stored. `null` is a result like others. */
export type Omitted = "too_large" | "not_serialisable" | "refused";

/** The work ran here, and its outcome was reported. */
export interface Done<Result> {
  readonly kind: "done";
  readonly globalId: string;
  readonly result: Result;
  /** `succeeded`, `observed`, `spooled` (a gateway delivers it later), or null if nothing was recorded (the caller's own `proceed`). */
  readonly state: string | null;
  /** The outage policy that answered instead of the store, of the claim or else of the outcome; `caller` for the caller's own. */
  readonly degraded: string | null;
  /** True: the claim had ended before the outcome arrived, so another attempt may have run. Null: not known. */
  readonly late: boolean | null;
  /** In observe mode: what enforcing would have answered. */
  readonly wouldBe: string | null;
  /**
   * Why the result was not stored: it has more than 64 KiB, is not JSON, or was refused. The success itself was recorded;
   * duplicates get this reason instead of a result. Null if the result was stored.
   */
  readonly resultOmitted: Omitted | null;
}

/** Another attempt is running or has completed the operation. */
export interface Duplicate<Result = Json> {
  readonly kind: "duplicate";
  readonly globalId: string;
  readonly state: "in_progress" | "succeeded" | "unknown";
  /** The result stored with the success; null if there is none. */
  readonly result: Result | null;
  /** Why the result of a success was not stored. Null if it was. */
  readonly resultOmitted: Omitted | null;
  /** Milliseconds until it is worth asking again, while it is in progress. */
  readonly retryAfterMs: number;
  readonly claimedAt: string | null;
  readonly expiresAt: string | null;
  /** False for a record of a late outcome that came without its contents. */
  readonly contentsVerified: boolean;
  readonly degraded: string | null;
  readonly wouldBe: string | null;
}

/** The operation was claimed with another fingerprint, or with other contents of the same ID. */
export interface Mismatch {
  readonly kind: "mismatch";
  readonly globalId: string;
  readonly code: string;
}

/** The answer to a report. */
export interface Settled {
  readonly globalId: string;
  readonly state: string;
  readonly degraded: string | null;
  readonly late: boolean | null;
  readonly resultOmitted: Omitted | null;
}

/** Stored state of a claim. For people and reports: another attempt may claim right after the lookup. */
export interface ClaimRecord {
  readonly globalId: string;
  readonly operation: string | null;
  readonly state: string;
  readonly timestamp: number;
  readonly attemptHash: string;
  readonly claimedAt: string;
  readonly expiresAt: string | null;
  readonly fence: number | null;
  readonly late: boolean;
  readonly contents?: Json;
  readonly contentsSha256: string | null;
  readonly hasFingerprint: boolean;
  readonly result?: Json;
  readonly retention: string;
  readonly onLeaseEnd: string;
  readonly degraded: string | null;
}

/** Stored state of a lock. For people and reports: it may change right after the lookup. */
export interface LockRecord {
  readonly name: string;
  readonly held: boolean;
  /** Null if the lock is free and requests queue for it. */
  readonly mode: "exclusive" | "shared" | null;
  /** Maximum number of holds at once, or null if the holders have named none. */
  readonly limit: number | null;
  /** Null if the lock is free. */
  readonly fence: number | null;
  readonly holders: readonly LockHolder[];
  /** Number of requests in the queue. */
  readonly waiting: number;
}

/** One hold of a lock, without its attempt. */
export interface LockHolder {
  /** The first 8 hex digits of the SHA-256 of the hold's nonce. */
  readonly hash: string;
  readonly mode: "exclusive" | "shared";
  readonly claimedAt: string;
  /** Rest of the lease. */
  readonly leaseMs: number;
}

/** Event of a call. Never holds contents, attempts or secrets. clients/README.md of the repository lists all. */
export interface Event {
  readonly name: string;
  /** The operation, or the name of the lock. */
  readonly operation: string;
  readonly globalId: string | null;
  readonly level: "debug" | "info" | "warn" | "error";
  readonly fields: Readonly<Record<string, unknown>>;
}

/** Receives measurements, to be passed on to a metrics library. */
export interface Metrics {
  /** After each HTTP call; the result is the status, or the kind of the cause if no gateway answered. */
  request(endpoint: Endpoint, result: string, elapsedMs: number): void;
  /**
   * After each decision of the middleware: `forwarded` (it runs), `unprotected`, `replayed`, `in_progress`, `unknown`, `not_stored`,
   * `mismatch`, `no_key`, `refused` or `unavailable`.
   */
  protected?(operation: string, result: string): void;
}

export type Endpoint = "claim" | "outcome" | "renewal" | "lookup" | "batch" | "lock";
