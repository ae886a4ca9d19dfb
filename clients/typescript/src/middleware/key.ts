/** The key of a request: 1 to 255 visible ASCII characters, bare or as a string of structured fields (RFC 8941, 3.3.3). */

const LENGTH_MAX = 255;

export type Key = { key: string } | { invalid: string } | null;

/** The key in these raw fields (name, value, name, …). Null if there is none. */
export function keyOf(rawHeaders: readonly string[]): Key {
  const values = linesOf(rawHeaders, "idempotency-key");
  const [value] = values;
  if (value === undefined) return null;
  if (values.length > 1) return { invalid: "Idempotency-Key came twice; send one field with one key." };
  const text = value.replace(/^[\t\n\f\r ]+|[\t\n\f\r ]+$/g, "");
  const key = text.startsWith('"') ? unquoted(text) : { key: text };
  if ("invalid" in key) return key;
  const fresh = "send a fresh random value for each operation, such as a UUID.";
  if (key.key === "" || key.key.length > LENGTH_MAX)
    return { invalid: `Idempotency-Key is empty or longer than ${LENGTH_MAX} characters; ${fresh}` };
  if (!/^[\x21-\x7e]+$/.test(key.key)) return { invalid: `Idempotency-Key may have visible ASCII characters only; ${fresh}` };
  return key;
}

/** The values of a field, one for each line. */
export function linesOf(rawHeaders: readonly string[], name: string): string[] {
  const values: string[] = [];
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    if (rawHeaders[at]?.toLowerCase() === name) values.push(rawHeaders[at + 1] as string);
  }
  return values;
}

function unquoted(text: string): { key: string } | { invalid: string } {
  const closed = /^"((?:[^"\\]|\\["\\])*)"[\t\n\f\r ]*(.*)$/s.exec(text);
  if (closed && closed[2] === "") return { key: (closed[1] as string).replace(/\\(["\\])/g, "$1") };
  if (closed?.[2]?.startsWith(";")) return { invalid: "Idempotency-Key has parameters after the string; send the string alone." };
  return {
    invalid:
      "Idempotency-Key begins with a quote, and is not a string of structured fields: close it, and escape quotes by a backslash.",
  };
}
