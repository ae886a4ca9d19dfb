/** The errors of the client, and why a gateway gave no usable answer. */

/** Why a gateway gave no usable answer: its last failure. */
export interface Cause {
  url: string;
  /**
   * `connection`: closed or broken. `not_a_gateway`: something else answered, so check the URL. `answer`: the gateway answered 429 or
   * 5xx. `too_late`: the grant or hold arrived after its lease had ended, and was released.
   */
  kind: "dns" | "refused" | "timeout" | "tls" | "connection" | "not_a_gateway" | "answer" | "too_late";
  detail: string;
  /** Of an answer. */
  status?: number;
  code?: string;
  requestId?: string;
  /** The error of the network. */
  error?: unknown;
}

/** The base of all errors of this package. */
export class OncegateError extends Error {
  override get name(): string {
    return this.constructor.name;
  }
}

/**
 * No gateway answered in time. The work was not started. `causes` holds the last failure of each gateway that was tried. With
 * `mayHaveActed` a gateway may have done what was asked, and its answer was lost: a claim may hold until it ends.
 */
export class Unavailable extends OncegateError {
  constructor(
    readonly causes: Cause[],
    readonly mayHaveActed = false,
  ) {
    const text = causes.map(({ url, kind, detail }) => `${url}: ${kind}: ${detail}`).join("; ");
    super(`no gateway answered: ${text}`, { cause: causes.find(({ error }) => error !== undefined)?.error });
  }
}

/** A 4xx: a mistake of the caller, or a quota (429) that was still used up when time was over. */
export class Rejected extends OncegateError {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly detail: string,
    readonly requestId: string | null = null,
    readonly retryAfterMs: number | null = null,
  ) {
    super(`${status} ${code}: ${detail}`);
  }
}

/** 409 on the outcome. After a success, `superseded` means perhaps done twice: raise an alarm. `result` is what the work returned. */
export class OutcomeRefused extends OncegateError {
  constructor(
    readonly code: string,
    readonly result: unknown,
  ) {
    super(`the outcome was refused: ${code}`);
  }
}

/**
 * The work is done, and no gateway has accepted its outcome; `cause` says why. `report` is text: keep it, and pass it to
 * `Client.settle` later. `result` is what the work returned.
 */
export class NotSettled extends OncegateError {
  constructor(
    readonly report: string,
    readonly result: unknown,
    override readonly cause: Error,
  ) {
    super(`no gateway has accepted the outcome: ${cause.message}`);
  }
}

export type Reason =
  | "empty"
  | "float"
  | "integer_too_large"
  | "not_finite"
  | "no_zone"
  | "surrogate"
  | "too_deep"
  | "too_long"
  | "key_not_text"
  | "unsupported_type"
  | "not_json";

/** Contents that others could read as something else, or that hold no value. Nothing was sent. */
export class NotCanonical extends OncegateError {
  constructor(
    readonly reason: Reason,
    /** `$`, then `.name` or `[0]` for each step. */
    readonly path: string,
    detail: string,
  ) {
    super(`contents are not canonical at ${path}: ${detail}`);
  }
}

/** Thrown by the work: it had no effect, and the operation is released at once. */
export class NothingHappened extends OncegateError {
  constructor(message = "nothing happened", options?: ErrorOptions) {
    super(message, options);
  }
}

/** The lock was held until the wait was over (`lock_held`), or was refused (`upgrade_refused`, `limit_differs`, `withdrawn`). */
export class LockNotAcquired extends OncegateError {
  constructor(
    readonly lock: string,
    readonly code: string,
    readonly retryAfterMs: number,
    /** The limit in use, with `limit_differs`; else null. */
    readonly limit: number | null = null,
  ) {
    super(`lock ${lock} was not acquired: ${code}${limit === null ? "" : `; its holders have a limit of ${limit}`}`);
  }
}
