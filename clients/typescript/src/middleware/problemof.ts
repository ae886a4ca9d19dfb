/** The meaning of the client's errors and results in HTTP, outside of the middleware. */

import { NotCanonical, Rejected, Unavailable } from "../errors.js";
import { NotRun, ResultNotStored } from "../results.js";
import type { Duplicate, Mismatch } from "../values.js";
import { refusalOf } from "./engine.js";
import { type Problem, type Refusal, type Rendered, refusal, replyOf } from "./problems.js";
import type { Reply } from "./stored.js";

/**
 * The problem document for an error of the client, or for a result of `once` that is not done. Null for anything else: also for
 * `NotSettled` and `OutcomeRefused`, which come after the work and do not replace its response.
 */
export function problemOf(thing: unknown, render?: (problem: Problem) => Rendered): Reply | null {
  const refused = refusedBy(thing);
  return refused && replyOf(refused, render);
}

function refusedBy(thing: unknown): Refusal | null {
  if (thing instanceof Unavailable || thing instanceof Rejected || thing instanceof NotCanonical)
    return refusalOf(thing, () => {});
  if (thing instanceof ResultNotStored)
    return refusal("response_not_stored", "The operation is done, but its result was not stored.", { state: "succeeded" });
  const result = (thing instanceof NotRun ? thing.outcome : thing) as Duplicate | Mismatch | null;
  if (result?.kind === "mismatch")
    return refusal("fingerprint_mismatch", "The operation was claimed with other terms; it is another operation.");
  if (result?.kind !== "duplicate") return null;
  const { state, retryAfterMs: afterMs } = result;
  if (state === "in_progress")
    return refusal("duplicate", "The operation is running; repeat after Retry-After.", { state, afterMs });
  if (state === "unknown")
    return refusal(
      "duplicate",
      "The outcome of the operation is not known. It is not run again until its effect was looked up.",
      {
        state,
      },
    );
  return refusal("response_not_stored", "The operation is done, but its result was not stored.", { state: "succeeded" });
}
