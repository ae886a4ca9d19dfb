/** The meaning of a response for its claim. */

export type Outcome = "success" | "failure" | "unknown";
/** Of a response with a status 5xx. */
export type On5xx = "unknown" | "store" | "release";
/** A status or a class of them. */
export type StatusRule = number | "2xx" | "3xx" | "4xx" | "5xx";

const STORE: readonly StatusRule[] = ["2xx", 301, 302, 303, "4xx"];
const RELEASE: readonly StatusRule[] = [307, 308, 401, 403, 405, 407, 408, 413, 421, 425, 429];

/** Statuses that mean "done", and statuses that mean "nothing happened". */
export class StatusRules {
  private readonly store: readonly StatusRule[];
  private readonly release: readonly StatusRule[];

  constructor(
    store: readonly StatusRule[] | undefined,
    release: readonly StatusRule[] | undefined,
    private readonly on5xx: On5xx = "unknown",
  ) {
    for (const [name, rules] of Object.entries({ store, release })) {
      if (rules !== undefined && (!Array.isArray(rules) || !rules.every(isRule)))
        throw new TypeError(`${name} is a list of statuses and classes, such as [201, "4xx"]`);
    }
    if (!["unknown", "store", "release"].includes(on5xx)) throw new TypeError('on5xx is "unknown", "store" or "release"');
    const both = (store ?? []).find((rule) => (release ?? []).includes(rule));
    if (both !== undefined) throw new TypeError(`${both} is in store and in release`);
    // An exact status in one list leaves the other's default.
    const without = (rules: readonly StatusRule[], others: readonly StatusRule[] = []) =>
      rules.filter((rule) => !(typeof rule === "number" && others.includes(rule)));
    this.store = store ?? without(STORE, release);
    this.release = release ?? without(RELEASE, store);
  }

  /** An exact status beats a class; at the same precision `release` beats `store`. */
  of(status: number): Outcome {
    const classOf = `${Math.floor(status / 100)}xx` as StatusRule;
    for (const rule of [status, classOf]) {
      if (this.release.includes(rule)) return "failure";
      if (this.store.includes(rule)) return "success";
    }
    if (status < 500) return "unknown";
    return this.on5xx === "store" ? "success" : this.on5xx === "release" ? "failure" : "unknown";
  }
}

function isRule(rule: unknown): boolean {
  if (typeof rule === "string") return /^[2-5]xx$/.test(rule);
  return typeof rule === "number" && Number.isInteger(rule) && rule >= 200 && rule <= 599;
}

/** Outcome that a handler sets itself in `Oncegate-Outcome`. Undefined: none. Null: a value that is no outcome. */
export function saidOutcome(values: readonly string[]): Outcome | null | undefined {
  if (values.length === 0) return undefined;
  const value = values.length === 1 ? values[0]?.trim() : "";
  return value === "success" || value === "failure" || value === "unknown" ? value : null;
}
