/** A function whose calls run once. */

import type { Client } from "./client.js";
import type { Contents } from "./contents.js";
import { type ResultSchema, refuseGenerators } from "./results.js";
import type { OnceTerms } from "./terms.js";
import type { Done, Duplicate, Mismatch } from "./values.js";

export interface OnceOptions<Args extends unknown[], C> extends OnceTerms {
  client: Client;
  operation: string;
  /** Arguments that identify a call: chosen explicitly, never all of them. */
  contents: (...args: Args) => C & Contents<C>;
}

/** Returns a function that runs `work` once for the same contents, and answers repeats with a duplicate. */
export function once<Args extends unknown[], C, Result>(
  work: (...args: Args) => Promise<Result> | Result,
  options: OnceOptions<Args, C> & { result: ResultSchema<Result> },
): (...args: Args) => Promise<Done<Result> | Duplicate<Result> | Mismatch>;
export function once<Args extends unknown[], C, Result>(
  work: (...args: Args) => Promise<Result> | Result,
  options: OnceOptions<Args, C>,
): (...args: Args) => Promise<Done<Result> | Duplicate | Mismatch>;
export function once<Args extends unknown[], C, Result>(
  work: (...args: Args) => Promise<Result> | Result,
  options: OnceOptions<Args, C>,
): (...args: Args) => Promise<Done<Result> | Duplicate | Mismatch> {
  refuseGenerators(work);
  const { client, operation, contents, ...terms } = options;
  return (...args) => client.once(operation, contents(...args), () => work(...args), terms);
}
