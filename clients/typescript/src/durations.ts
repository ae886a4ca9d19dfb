/** Durations as the gateway reads them. */

const UNITS: Record<string, number> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** The milliseconds of a duration such as `500ms`, `30s` or `24h`. */
export function milliseconds(text: string): number {
  const parts = /^([1-9]\d{0,8})(ms|s|m|h|d)$/.exec(text);
  if (!parts) throw new TypeError(`not a duration: ${text}; write 500ms, 30s, 5m, 24h or 7d`);
  return Number(parts[1]) * (UNITS[parts[2] as string] as number);
}

/** A duration in the largest unit that keeps it whole. */
export function duration(ms: number): string {
  const whole = Math.max(1, Math.trunc(ms));
  const unit = ["d", "h", "m", "s"].find((unit) => whole % (UNITS[unit] as number) === 0) ?? "ms";
  return `${whole / (UNITS[unit] as number)}${unit}`;
}
