/** The terms of calls, and the names of all options. */

import type { AnyContents } from "./contents.js";
import type { Grant } from "./grant.js";
import type { Harmless } from "./harmless.js";

/** The terms of one claim. */
export interface Terms {
  /** Further values that must be equal on a repeat, without being part of the identity. */
  fingerprint?: AnyContents;
  /** Lease of the claim while in progress, such as `30s`. */
  lease?: string;
  leaseMs?: number;
  /** Retention of a success, such as `30d` or `forever`. */
  retention?: string;
  retentionMs?: number;
  /** Take over a claim that is unknown. Only after its effect was looked up. */
  takeOver?: boolean;
  /** `unknown`: a lease that ends without an outcome makes the claim unknown, also where the operation's own term releases it. */
  onLeaseEnd?: "unknown";
  /** Wait up to this time for an operation that is in progress, such as `10s`. */
  wait?: string;
  waitMs?: number;
  /** Before the claim is answered, a grant that crosses the abort is released. The work and its report are not aborted. */
  signal?: AbortSignal;
}

/** The terms of `once`. */
export interface OnceTerms extends Terms {
  /** Errors of the work that mean that nothing happened, in addition to those of the client. */
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

export const LIMITS = ["claimWithin", "claimWithinMs", "settleWithin", "settleWithinMs", "onUnavailable"];
export const OPTIONS = [
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
export const CLAIM_TERMS = ["fingerprint", "lease", "leaseMs", "retention", "retentionMs", "takeOver"];
export const TERMS = [...CLAIM_TERMS, "onLeaseEnd", "wait", "waitMs", "signal"];
