/** Options of a client, and checks that hold for JavaScript too, where no compiler has read them. */

import type { Harmless } from "./harmless.js";
import type { Server, TlsOptions } from "./server.js";
import type { Event, Metrics } from "./values.js";

/** @internal */
export const SERVERS: unique symbol = Symbol("servers");

/** Options of a client. */
export interface Options {
  /** False: everything runs, and nothing is claimed (`degraded: "disabled"`). Default: true, unless `ONCEGATE_DISABLED=1`. */
  enabled?: boolean;
  /** `<app_key>.<secret>`, where apps are configured. */
  credential?: string | undefined;
  /** Limit of one HTTP call, without the time that it asks to wait. Default `2s`; longer than the gateways' deadline. */
  timeout?: string;
  timeoutMs?: number;
  /** Limit of all tries of one claim call, in addition to `wait`. Default `5s`. */
  claimWithin?: string;
  claimWithinMs?: number;
  /** Limit of all tries of one report. Default `30s`; `settleWithinMs: Infinity`: none. */
  settleWithin?: string;
  settleWithinMs?: number;
  /** When no gateway answers: throw `Unavailable` (default), or run the work unprotected with `degraded: "caller"`. */
  onUnavailable?: "fail_closed" | "proceed";
  /** Errors of the work that mean that nothing happened: the operation is released, and the error is thrown on. */
  nothingHappened?: Harmless;
  /** Receives each event. The default logs what is `info` or worse with `console`. */
  onEvent?: (event: Event) => void;
  metrics?: Metrics;
  /** The current W3C traceparent, sent with each call. */
  traceparent?: () => string | undefined;
  /** For `https`: certificates. */
  tls?: TlsOptions;
  /** @internal Replaces the gateways: the double of the tests. */
  [SERVERS]?: (app: string) => Server[];
}

/** Refuses members that no option has: a misspelt one would be ignored in silence. */
export function known(what: string, given: object | undefined, names: readonly string[]): void {
  if (given === undefined) return;
  if (typeof given !== "object" || given === null) throw new TypeError(`${what} are an object`);
  let isKnown = true;
  for (const name in given) isKnown &&= names.includes(name);
  if (isKnown) return;
  const unknown = Object.keys(given).filter((name) => !names.includes(name));
  if (unknown.length > 0) throw new TypeError(`${what} have no ${unknown.join(", ")}; there are ${names.join(", ")}`);
}

/** The URLs of `ONCEGATE_URL`, separated by commas, else that of a gateway on this machine. */
export function defaultUrls(): string[] {
  return (process.env.ONCEGATE_URL || "http://127.0.0.1:8080").split(",").map((url) => url.trim());
}

/** False if `enabled` or `ONCEGATE_DISABLED` switches everything off. */
export function isEnabled(enabled: boolean | undefined): boolean {
  if (enabled !== undefined && typeof enabled !== "boolean") throw new TypeError("enabled is true or false");
  return !isDisabled(process.env.ONCEGATE_DISABLED) && enabled !== false;
}

function isDisabled(text = ""): boolean {
  if (/^(1|true|yes|on)$/i.test(text)) return true;
  if (/^(|0|false|no|off)$/i.test(text)) return false;
  const given = JSON.stringify(text.slice(0, 40));
  throw new TypeError(`ONCEGATE_DISABLED is ${given}: write 1, true, yes or on to switch clients off, or 0, false, no or off`);
}
