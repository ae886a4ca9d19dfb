/** Results of work: their stored form for duplicates, and the substitute for a result that was not stored. */

import { OncegateError } from "./errors.js";
import type { Done, Duplicate, Json, Mismatch, Omitted } from "./values.js";

/** The default of the gateway's `limits.result_bytes`: a longer result is not sent. */
const RESULT_BYTES_MAX = 64 * 1024;
const DEPTH_MAX = 100;

/** Reads stored results back: a schema of zod, or anything else with its `parse`. It throws if the value is no such result. */
export interface ResultSchema<Result> {
  parse(value: unknown): Result;
}

/** The operation was done before, and its result was not stored, so there is none to give. 409 in HTTP. */
export class ResultNotStored extends OncegateError {
  constructor(
    readonly globalId: string,
    readonly omitted: Omitted,
  ) {
    super(`the operation was done before, and its result was not stored: ${omitted}`);
  }
}

/** Thrown by `resultOf`: the operation was not run, since another attempt has claimed it. `outcome` says how far that has come. */
export class NotRun extends OncegateError {
  constructor(readonly outcome: Duplicate<unknown> | Mismatch) {
    super(`the operation was not run: ${outcome.kind === "mismatch" ? outcome.code : outcome.state}`);
  }
}

/**
 * The result of an operation that is done, here or before. Throws `NotRun` for one that is running, unknown or another, and
 * `ResultNotStored`.
 */
export function resultOf<Result, Stored>(outcome: Done<Result> | Duplicate<Stored> | Mismatch): Result | Stored | null {
  if (outcome.kind === "done") return outcome.result;
  if (outcome.kind === "mismatch" || outcome.state !== "succeeded") throw new NotRun(outcome);
  if (outcome.resultOmitted) throw new ResultNotStored(outcome.globalId, outcome.resultOmitted);
  return outcome.result;
}

/** The JSON that is stored in place of a result. */
export function marker(omitted: Omitted): string {
  return `{"$oncegate":{"omitted":"${omitted}"}}`;
}

/** Reason why a result was not stored, as its substitute records it; null for an ordinary result. */
export function omittedOf(result: Json | undefined): Omitted | null {
  if (typeof result !== "object" || result === null || Array.isArray(result)) return null;
  const said = (result as { $oncegate?: { omitted?: unknown } }).$oncegate?.omitted;
  return said === undefined ? null : (String(said) as Omitted);
}

export interface Encoded {
  /** JSON; undefined for no result. */
  text?: string;
  omitted: { code: Omitted; detail: string } | null;
}

/**
 * The result as JSON, or the reason why it cannot be stored. Without a reader it must be plain JSON: otherwise a duplicate would
 * get something else. The work is done, even if a method of its result fails.
 */
export function encode(result: unknown, hasReader = false): Encoded {
  if (result === undefined || result === null) return { omitted: null };
  const omit = (code: Omitted, detail: string): Encoded => ({ text: marker(code), omitted: { code, detail } });
  try {
    const foreign = hasReader ? null : notPlain(result, "$", 0);
    if (foreign) return omit("not_serialisable", `${foreign}; return plain JSON, or give a schema that reads it back`);
    const text: string | undefined = JSON.stringify(result, hasReader ? withBigints : undefined);
    if (text === undefined) return omit("not_serialisable", `the result is not JSON: ${typeof result}`);
    const bytes = Buffer.byteLength(text);
    if (bytes > RESULT_BYTES_MAX) return omit("too_large", `the result has ${bytes} bytes, more than ${RESULT_BYTES_MAX}`);
    return { text, omitted: null };
  } catch (error) {
    return omit("not_serialisable", `the result is not JSON: ${error}`);
  }
}

function withBigints(_name: string, value: unknown): unknown {
  return typeof value === "bigint" ? String(value) : value;
}

/** Place where a value differs from its JSON. */
function notPlain(value: unknown, path: string, depth: number): string | null {
  if (depth > DEPTH_MAX) return `${path.slice(0, 60)} is nested too deep`;
  if (value === null || typeof value === "string" || typeof value === "boolean") return null;
  if (typeof value === "number") return Number.isFinite(value) ? null : `${path} is ${value}`;
  if (typeof value !== "object") return `${path} is a ${typeof value}`;
  if (Array.isArray(value)) {
    for (const [at, item] of value.entries()) {
      const found = notPlain(item, `${path}[${at}]`, depth + 1);
      if (found) return found;
    }
    return null;
  }
  const prototype = Object.getPrototypeOf(value);
  if ((prototype !== Object.prototype && prototype !== null) || "toJSON" in value)
    return `${path} is a ${value.constructor?.name ?? "foreign object"}`;
  for (const [name, member] of Object.entries(value)) {
    // A member that is undefined is left out, as it would be read.
    const found = member === undefined ? null : notPlain(member, `${path}.${name}`, depth + 1);
    if (found) return found;
  }
  return null;
}

/** Refuses a function that returns before its work is done. */
export function refuseGenerators(work: unknown): void {
  if (typeof work !== "function") throw new TypeError("the work is a function");
  if (/Generator/.test(Object.prototype.toString.call(work)))
    throw new TypeError("a generator has not run when it returns: give a function or an async function");
}

/** Kind of a result that has not ended when the work returns it. */
export function endsLater(result: unknown): string | null {
  if (typeof result !== "object" || result === null) return null;
  const { pipe, getReader, subscribe, next } = result as Record<string, unknown>;
  if (typeof pipe === "function" || typeof getReader === "function") return "a stream";
  if (typeof subscribe === "function") return "an observable";
  if (Symbol.asyncIterator in result) return "an asynchronous iterator";
  if (typeof next === "function" && Symbol.iterator in result) return "an iterator";
  return null;
}
