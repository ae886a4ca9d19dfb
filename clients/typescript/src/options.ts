/** Checks of options that hold for JavaScript too, where no compiler has read them. */

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

/** False if `enabled` or `ONCEGATE_DISABLED=1` switches everything off. */
export function isEnabled(enabled: boolean | undefined): boolean {
  if (enabled !== undefined && typeof enabled !== "boolean") throw new TypeError("enabled is true or false");
  return enabled !== false && process.env.ONCEGATE_DISABLED !== "1";
}
