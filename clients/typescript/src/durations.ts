/** Durations as the gateway reads them. */

const UNITS: Record<string, number> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

const FORM = /^([1-9]\d{0,8})(ms|s|m|h|d)$/;

/** A duration in the largest unit that keeps it whole. */
export function duration(ms: number): string {
  const whole = Math.max(1, Math.trunc(ms));
  const unit = ["d", "h", "m", "s"].find((unit) => whole % (UNITS[unit] as number) === 0) ?? "ms";
  return `${whole / (UNITS[unit] as number)}${unit}`;
}

/**
 * The duration of an option in milliseconds, undefined if it is absent. Each option has two names: `lease` takes text such as `30s`,
 * `leaseMs` a number of milliseconds.
 */
export function span<Name extends string>(
  given: { readonly [Key in Name | `${Name}Ms`]?: string | number | undefined },
  name: Name,
): number | undefined {
  const text = given[name];
  const number = given[`${name}Ms`];
  if (text === undefined && number === undefined) return undefined;
  if (text !== undefined && number !== undefined) throw new TypeError(`${name} and ${name}Ms: give one of them`);
  if (number !== undefined) {
    if (typeof number === "number" && number > 0) return number;
    throw new TypeError(`${name}Ms is a number of milliseconds above 0, such as 30000`);
  }
  if (text === undefined) return undefined;
  const parts = typeof text === "string" ? FORM.exec(text) : null;
  if (!parts) throw new TypeError(`${name} is a duration, such as "500ms", "30s", "5m", "24h" or "7d"`);
  return Number(parts[1]) * (UNITS[parts[2] as string] as number);
}

/** The same duration in the gateway's form; `forever` is unchanged. */
export function spanText<Name extends string>(
  given: { readonly [Key in Name | `${Name}Ms`]?: string | number | undefined },
  name: Name,
): string | undefined {
  if (given[name] === "forever" && given[`${name}Ms`] === undefined) return "forever";
  const ms = span(given, name);
  if (ms === undefined) return undefined;
  const text = given[name];
  return typeof text === "string" ? text : duration(ms);
}
