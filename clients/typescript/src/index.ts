/** A client of the idempotency gateway Oncegate. */

export { Client } from "./client.js";
export { type Action, Consumer, type ConsumerOptions, type Decision } from "./consume.js";
export { type AnyContents, type Contents, canonical, Decimal, globalId, Instant, JsonText, PlainDate, Uuid } from "./contents.js";
export * from "./errors.js";
export { Grant } from "./grant.js";
export type { Harmless } from "./harmless.js";
export type { AcquireTerms, Hold, Lock, LockTerms } from "./lock.js";
export { current, type RequestGrant } from "./middleware/exchange.js";
export { problemOf } from "./middleware/problemof.js";
export { once } from "./once.js";
export type { Options } from "./options.js";
export { NotRun, ResultNotStored, type ResultSchema, resultOf } from "./results.js";
export type { ClaimItem, Limits, OnceTerms, OutcomeItem, Terms } from "./terms.js";
export type {
  ClaimRecord,
  Done,
  Duplicate,
  Endpoint,
  Event,
  Json,
  LockHolder,
  LockRecord,
  Metrics,
  Mismatch,
  Omitted,
  Settled,
} from "./values.js";
