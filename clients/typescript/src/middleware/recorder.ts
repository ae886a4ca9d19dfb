/** Records a response of Node.js while the handler sends it, with any API, and holds its end back until the report. */

import type { IncomingMessage, OutgoingHttpHeader, OutgoingHttpHeaders, ServerResponse } from "node:http";

import { fieldsOf } from "./engine.js";
import { DEGRADED_FIELD, type Exchange, UNSENT_FIELDS } from "./exchange.js";
import { type Guard, Overrides } from "./guard.js";
import { EMPTY, type FieldLines } from "./stored.js";

/** Fields that a handler does not see: a response is stored once, for every caller. */
const HIDDEN = ["accept-encoding", "range", "if-range"];

type Done = ((error?: Error | null) => void) | undefined;

/** Takes the hidden fields from a request. Returns what gives them back. */
export function hideFields(request: IncomingMessage): () => void {
  const { headers, rawHeaders } = request;
  const hidden = HIDDEN.filter((name) => headers[name] !== undefined).map((name) => [name, headers[name]] as const);
  for (const [name] of hidden) delete headers[name];
  const isHidden = (at: number) => HIDDEN.includes((rawHeaders[at] as string).toLowerCase());
  const kept = rawHeaders.filter((_, at) => !isHidden(at - (at % 2)));
  const whole = [...rawHeaders];
  if (hidden.length > 0) rawHeaders.splice(0, rawHeaders.length, ...kept);
  return () => {
    for (const [name, value] of hidden) headers[name] = value;
    if (hidden.length > 0) rawHeaders.splice(0, rawHeaders.length, ...whole);
  };
}

/** Fields that differ from the values that an outer layer had set before the handler ran. */
export function ownFields(now: FieldLines, outer: FieldLines): FieldLines {
  const text = (fields: FieldLines, name: string) => JSON.stringify(fields.filter(([each]) => each === name));
  return now.filter(([name]) => text(now, name) !== text(outer, name));
}

export class Recorder {
  private readonly overrides = new Overrides();
  private readonly outer: FieldLines;
  private readonly unhide: () => void;
  private isHead = false;
  private declared: number | null = null;
  private written = 0;
  /** Calls that are held back until the report: those that complete the response, in order. */
  private held: (() => void)[] | null = null;
  private isEnded = false;
  /** The end has passed. */
  private isPassed = false;
  private readonly write: (...args: unknown[]) => boolean;
  private readonly end: (...args: unknown[]) => unknown;
  private readonly writeHead: (...args: unknown[]) => unknown;

  constructor(
    request: IncomingMessage,
    private readonly response: ServerResponse,
    private readonly exchange: Exchange,
    private readonly guard: Guard,
  ) {
    this.outer = fieldsOf(response.getHeaders());
    this.unhide = hideFields(request);
    this.write = response.write.bind(response) as never;
    this.end = response.end.bind(response) as never;
    this.writeHead = response.writeHead.bind(response) as never;
    this.install();
  }

  /** Stops recording: what follows is recorded elsewhere. */
  detach(): void {
    this.overrides.restore();
    this.unhide();
  }

  /** The caller has disconnected: code that waits for it continues. */
  gone(): void {
    this.response.emit("drain");
  }

  private install(): void {
    const { response, overrides, exchange } = this;
    const method = (name: string, value: unknown) => overrides.set(response, name, { value, writable: true });
    method("writeHead", (status: number, ...rest: unknown[]) => this.onWriteHead(status, rest));
    method("write", (piece: unknown, ...rest: unknown[]) => this.onWrite(piece, rest));
    method("end", (...args: unknown[]) => this.onEnd(args));
    const flush = response.flushHeaders.bind(response);
    method("flushHeaders", () => {
      this.head();
      if (!this.guard.isGone) flush();
    });
    if (typeof response.addTrailers === "function") {
      const add = response.addTrailers.bind(response);
      method("addTrailers", (trailers: OutgoingHttpHeaders | [string, string][]) => {
        const given = Array.isArray(trailers) ? trailers : fieldsOf(trailers);
        const sent = given.filter(([name]) => !UNSENT_FIELDS.includes(name.toLowerCase()));
        exchange.trailers(sent.map(([name, value]) => [name.toLowerCase(), value]));
        add(sent);
      });
    }
  }

  private onWriteHead(status: number, rest: unknown[]): ServerResponse {
    const { response } = this;
    if (this.isHead) {
      this.writeHead(status, ...rest);
      return response;
    }
    const reason = typeof rest[0] === "string" ? rest[0] : undefined;
    response.statusCode = status;
    for (const [name, values] of givenFields(rest.at(-1))) response.setHeader(name, values);
    this.head();
    if (!this.guard.isGone) this.writeHead(response.statusCode, ...(reason === undefined ? [] : [reason]));
    return response;
  }

  /** The moment at which the head is sent: its fields are those of now, from every API. */
  private head(): void {
    if (this.isHead) return;
    this.isHead = true;
    const { response, exchange } = this;
    const { statusCode } = response;
    const fields = fieldsOf(response.getHeaders());
    const length = fields.find(([name]) => name === "content-length")?.[1];
    this.declared = length !== undefined && /^\d+$/.test(length) ? Number(length) : null;
    exchange.head(statusCode, ownFields(fields, this.outer));
    for (const name of UNSENT_FIELDS) response.removeHeader(name);
    if (exchange.degraded) response.setHeader(DEGRADED_FIELD, exchange.degraded);
    if (EMPTY.includes(statusCode)) {
      this.declared = null;
      if (statusCode !== 205) response.removeHeader("content-length");
      response.removeHeader("transfer-encoding");
    }
    this.unhide();
  }

  private onWrite(piece: unknown, rest: unknown[]): boolean {
    const { guard } = this;
    const done = rest.find((each) => typeof each === "function") as Done;
    if (this.isEnded) return this.onLateWrite(piece, rest);
    const bytes = bytesOf(piece, rest[0]);
    this.head();
    this.exchange.data(bytes);
    this.written += bytes.length;
    const isLast = this.declared !== null && this.written >= this.declared;
    if (this.held || isLast) {
      this.hold(() => this.pass(bytes, done));
      if (isLast) void this.finish();
      return true;
    }
    const isTaken = this.pass(bytes, done);
    if (!isTaken) guard.stalled();
    return isTaken;
  }

  /** A write after the end is an error of the handler. Node.js says so, once the end has passed: it must not come before that. */
  private onLateWrite(piece: unknown, rest: unknown[]): boolean {
    if (this.isPassed) return this.write(piece, ...rest);
    this.hold(() => {
      if (!this.guard.isGone) this.write(piece, ...rest);
    });
    return false;
  }

  /** Errors of sending are kept from the handler. */
  private pass(bytes: Buffer, done: Done): boolean {
    if (!this.guard.isGone) return this.write(bytes, (error?: Error | null) => done?.(this.guard.isGone ? undefined : error));
    if (done) process.nextTick(done);
    return true;
  }

  private onEnd(args: unknown[]): ServerResponse {
    const { response, guard } = this;
    if (this.isEnded) return response;
    const done = args.find((each) => typeof each === "function") as Done;
    const [piece, encoding] = typeof args[0] === "function" ? [undefined, undefined] : args;
    const bytes = piece === undefined || piece === null ? undefined : bytesOf(piece, encoding);
    this.head();
    if (bytes) this.exchange.data(bytes);
    this.written += bytes?.length ?? 0;
    this.isEnded = true;
    this.hold(() => {
      if (!guard.isGone) {
        this.end(...(bytes ? [bytes] : []), ...(done ? [done] : []));
        return;
      }
      // The handler has done its part: it gets the event that all was sent, then the one that the caller has disconnected.
      response.emit("finish");
      done?.();
    });
    guard.isHeld = true;
    this.showEnded();
    void this.finish();
    return response;
  }

  private hold(call: () => void): void {
    this.held ??= [];
    this.held.push(call);
  }

  private async finish(): Promise<void> {
    const { declared, written, exchange, guard, response } = this;
    // A body of another length than declared is no whole response.
    if (declared !== null && written !== declared) await exchange.break();
    else await exchange.complete();
    if (this.isEnded) this.overrides.restore();
    const calls = this.held?.splice(0) ?? [];
    try {
      // Its caller would wait for the rest.
      if (declared !== null && written < declared) throw new Error(`the body has ${written} bytes, and declares ${declared}`);
      this.isPassed = this.isEnded;
      for (const call of calls) call();
    } catch (error) {
      // Also what Node.js refuses to send, such as trailers beside a length. The handler has returned: nothing takes the error.
      guard.release();
      response.destroy(error as Error);
      return;
    }
    if (this.isEnded) guard.release();
  }

  /** A response that is ended looks so, although its end is held back: no error handler may answer again. */
  private showEnded(): void {
    const { response, overrides } = this;
    const status = response.statusCode;
    const fields = response.getHeaders();
    const sent = () => {
      throw Object.assign(new Error("Cannot change the head after the response was ended"), { code: "ERR_HTTP_HEADERS_SENT" });
    };
    for (const name of ["headersSent", "writableEnded"]) overrides.set(response, name, { get: () => true, set: () => {} });
    overrides.set(response, "statusCode", { get: () => status, set: () => {} });
    overrides.set(response, "getHeaders", { value: () => ({ ...fields }) });
    for (const name of ["setHeader", "appendHeader", "removeHeader", "setHeaders"])
      overrides.set(response, name, { value: sent });
  }
}

function bytesOf(piece: unknown, encoding: unknown): Buffer {
  if (typeof piece === "string") return Buffer.from(piece, typeof encoding === "string" ? (encoding as BufferEncoding) : "utf8");
  if (piece instanceof Uint8Array) return Buffer.from(piece.buffer, piece.byteOffset, piece.byteLength);
  throw Object.assign(new TypeError("a piece of a response is text or bytes"), { code: "ERR_INVALID_ARG_TYPE" });
}

/** The fields that `writeHead` takes: an object, a list of names and values, or a list of pairs. */
function givenFields(given: unknown): Map<string, OutgoingHttpHeader> {
  const fields = new Map<string, OutgoingHttpHeader>();
  if (!Array.isArray(given)) {
    if (typeof given === "object" && given !== null)
      for (const [name, value] of Object.entries(given)) if (value !== undefined) fields.set(name, value as OutgoingHttpHeader);
    return fields;
  }
  const flat: unknown[] = Array.isArray(given[0]) ? given.flat() : given;
  const names = new Map<string, string>();
  for (let at = 0; at + 1 < flat.length; at += 2) {
    const name = String(flat[at]);
    const spelt = names.get(name.toLowerCase()) ?? name;
    names.set(name.toLowerCase(), spelt);
    const value = flat[at + 1] as string | string[];
    const before = fields.get(spelt);
    fields.set(spelt, before === undefined ? value : [before, value].flat().map(String));
  }
  return fields;
}
