/** A function whose calls run once. */

import type { Client, Terms } from "./client.js";
import type { Contents } from "./contents.js";
import type { Done, Duplicate, Mismatch } from "./values.js";

export interface OnceOptions<Args extends unknown[]> extends Terms {
  client: Client;
  operation: string;
  /** What makes two calls the same, of their arguments: explicit, never all of them. */
  contents: (...args: Args) => Contents;
}

/** Returns a function that runs `work` once for the same contents, and answers repeats with a duplicate. */
export function once<Args extends unknown[], Result>(
  work: (...args: Args) => Promise<Result> | Result,
  options: OnceOptions<Args>,
): (...args: Args) => Promise<Done<Result> | Duplicate | Mismatch> {
  if (/Generator/.test(Object.prototype.toString.call(work))) {
    throw new TypeError("a generator has not run when it returns: give a function or an async function");
  }
  const { client, operation, contents, ...terms } = options;
  return (...args) => client.once(operation, contents(...args), () => work(...args), terms);
}
