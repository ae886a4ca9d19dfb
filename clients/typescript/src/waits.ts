/** Common state of the repeats of one claim or acquisition: its nonce, and the parts of a long wait. */

import { randomBytes } from "node:crypto";

import { duration } from "./durations.js";
import type { Fields } from "./server.js";
import { PAUSE_MS_MIN } from "./transport.js";

/** The longest wait of one call: proxies on the way may cut off a longer one. */
export const WAIT_MS_MAX = 20_000;

const NONCE_BYTES = 16;
let random = Buffer.alloc(0);
let randomAt = 0;

/** 32 random hex digits: fresh for each try at an operation, and kept for all repeats of its call. Drawn 64 at a time, which costs less. */
export function newNonce(): string {
  if (randomAt === random.length) {
    random = randomBytes(64 * NONCE_BYTES);
    randomAt = 0;
  }
  randomAt += NONCE_BYTES;
  return random.toString("hex", randomAt - NONCE_BYTES, randomAt);
}

/** Answers to claims that have waited for another attempt. */
const waited = new WeakSet<object>();

export function noteWaited(result: object): void {
  waited.add(result);
}

/** True if the gateway waited for another attempt before it answered. */
export function hasWaited(result: object): boolean {
  return waited.has(result);
}

export function withWait(body: string, waitMs: number): string {
  return waitMs < 1 ? body : `${body.slice(0, -1)},"wait":"${duration(waitMs)}"}`;
}

/** Short if the gateway shortened the wait. If it did not wait at all, the pause that the gateway asks for. */
export function pauseBetweenWaits(waitMs: number, fields: Fields): number {
  const after = fields.retry_after_ms ?? 1000;
  return waitMs > 0 && (fields.waited_ms ?? 0) > 0 ? Math.min(after, PAUSE_MS_MIN) : after;
}
