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
