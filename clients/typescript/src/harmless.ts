/** Errors that a service declares harmless: the work had no effect, so the claim is released. */

import { NothingHappened } from "./errors.js";

/** Classes of errors, or a predicate. Subclasses count; causes do not. */
export type Harmless = readonly (abstract new (...args: never[]) => unknown)[] | ((error: unknown) => boolean);

const isNothingHappened = (error: unknown) => error instanceof NothingHappened;

/** Returns the test for such errors. `NothingHappened` is always one. */
export function harmlessTest(given: Harmless | undefined): (error: unknown) => boolean {
  if (given === undefined) return isNothingHappened;
  if (typeof given === "function") return (error) => error instanceof NothingHappened || given(error) === true;
  if (!(Array.isArray(given) && given.every((each) => typeof each === "function")))
    throw new TypeError("nothingHappened is a list of classes of errors, or a function of an error");
  return (error) => error instanceof NothingHappened || given.some((each) => error instanceof each);
}
