/** Common part of the adapters on `node:http`: the steps from a request to a run or an answer. */

import type { IncomingMessage, ServerResponse } from "node:http";

import { type Left, type NoBody, readBody } from "./body.js";
import type { Engine } from "./engine.js";
import type { Exchange } from "./exchange.js";
import type { Incoming } from "./fingerprint.js";
import { Guard } from "./guard.js";
import type { FieldLines, Reply } from "./stored.js";

/** A handler that runs under a claim. */
export interface Run {
  kind: "run";
  exchange: Exchange;
  guard: Guard;
  /** Called when the caller disconnects, for code that waits for it. */
  whenGone: (() => void) | null;
  /** The response is recorded before the framework has it: its breaking off says nothing about the handler. */
  isRecordedBefore: boolean;
  /** Ends the source of a recorded stream. Called when the caller disconnects, with `stopWhenGone`. */
  stop: (() => void) | null;
}

export type Admission = Run | { kind: "answer"; reply: Reply } | { kind: "pass" };

/** Decides about a request whose body has not been read, or was parsed. */
export async function admit<Request>(
  engine: Engine<Request>,
  request: Request,
  raw: IncomingMessage,
  response: ServerResponse,
  incoming: Incoming,
  left: Left,
): Promise<Admission> {
  const keyed = engine.begin(request, incoming);
  if (keyed.kind !== "keyed") return keyed;
  const principal = await engine.principal(request);
  if (typeof principal !== "string") return principal;
  const { given, bodyBytes } = engine.rules;
  const body = await readBody(raw, left, bodyBytes, given.observe === true);
  if (body.kind !== "bytes" && body.kind !== "parsed") return withoutBody(engine, body, raw);
  return claim(engine, keyed.key, principal, incoming, body, raw, response);
}

/** Refuses a request whose body is not known, and drops the rest of it: unread, it would stop the next request of the connection. */
export function withoutBody<Request>(engine: Engine<Request>, body: NoBody, raw: IncomingMessage): Exclude<Admission, Run> {
  const refused = engine.withoutBody(body);
  if (refused.kind === "answer") raw.resume();
  return refused;
}

/** Claims a request whose body is known. The caller may go at any time from here on. */
export async function claim<Request>(
  engine: Engine<Request>,
  key: string,
  principal: string,
  incoming: Incoming,
  body: Parameters<Engine<Request>["claim"]>[3],
  raw: IncomingMessage,
  response: ServerResponse,
): Promise<Admission> {
  let run: Run | null = null;
  const stopsWhenGone = engine.rules.given.stopWhenGone === true;
  const watcher = {
    gone: () => {
      run?.exchange.request.callerLeft();
      run?.whenGone?.();
    },
    broken: () => {
      if (run?.isRecordedBefore && !stopsWhenGone) return false;
      void run?.exchange.break();
      run?.stop?.();
      return true;
    },
  };
  const guard = new Guard(raw, response, watcher, stopsWhenGone);
  try {
    const claimed = await engine.claim(key, principal, incoming, body);
    if (claimed.kind !== "run") {
      guard.release();
      return claimed;
    }
    run = { kind: "run", exchange: claimed.exchange, guard, whenGone: null, isRecordedBefore: false, stop: null };
    if (guard.isGone) claimed.exchange.request.callerLeft();
    return run;
  } catch (error) {
    guard.release();
    throw error;
  }
}

/** Sends an answer on a response of Node.js. */
export function send(raw: IncomingMessage, response: ServerResponse, reply: Reply): void {
  if (response.headersSent || response.writableEnded) return;
  response.statusCode = reply.status;
  for (const [name, values] of grouped(reply.fields)) response.setHeader(name, values);
  const trailers = asksForTrailers(raw) ? reply.trailers : [];
  if (raw.method !== "HEAD" && reply.status !== 204 && reply.status !== 304 && trailers.length === 0)
    response.setHeader("content-length", reply.body.length);
  if (trailers.length === 0) {
    response.end(reply.body);
    return;
  }
  response.setHeader("trailer", trailers.map(([name]) => name).join(", "));
  response.write(reply.body);
  response.addTrailers(trailers);
  response.end();
}

export function asksForTrailers(raw: IncomingMessage): boolean {
  return /(^|,)\s*trailers\b/i.test(String(raw.headers.te ?? ""));
}

/** Repeated lines as one list for each name. */
export function grouped(fields: FieldLines): Map<string, string | string[]> {
  const all = new Map<string, string | string[]>();
  for (const [name, value] of fields) {
    const before = all.get(name);
    all.set(name, before === undefined ? value : [before, value].flat());
  }
  return all;
}
