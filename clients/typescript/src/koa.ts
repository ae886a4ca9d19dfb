/** Middleware for Koa 2 and 3: a request with an Idempotency-Key runs once. */

import { Readable } from "node:stream";

import type { Context, Middleware, Next } from "koa";

import { span } from "./durations.js";
import { Engine, fieldsOf } from "./middleware/engine.js";
import { DEGRADED_FIELD, runUnder, UNSENT_FIELDS } from "./middleware/exchange.js";
import { admit, asksForTrailers, grouped, type Run } from "./middleware/node.js";
import type { IdempotencyOptions } from "./middleware/options.js";
import { isStream, recordPiece, recordStream } from "./middleware/payload.js";
import { problemOf } from "./middleware/problemof.js";
import { ownFields } from "./middleware/recorder.js";
import { record, runOf } from "./middleware/runs.js";
import { EMPTY, type Reply } from "./middleware/stored.js";

export { current, type RequestGrant } from "./middleware/exchange.js";
export type { IdempotencyOptions } from "./middleware/options.js";
export type { Problem, Rendered } from "./middleware/problems.js";

/** Middleware. Install it after the authentication, and before the parsers of the body. */
export type Idempotent = Middleware & {
  /** Waits until no handler runs under a claim, after the server was closed. False if some still did when time was over. */
  drain(within?: string): Promise<boolean>;
};

export function idempotent(options: IdempotencyOptions<Context>): Idempotent {
  const engine = new Engine<Context>(options);
  const handler = async (context: Context, next: Next): Promise<void> => {
    const { req: request, res: response, method, originalUrl: url } = context;
    if (runOf(request)) return next();
    const incoming = { method, url, rawHeaders: request.rawHeaders };
    const { body, rawBody, files } = context.request as { body?: unknown; rawBody?: unknown; files?: unknown };
    const left = { body, rawBody, files: files ?? context.files, file: context.file };
    const admission = await admit(engine, context, request, response, incoming, left);
    if (admission.kind === "pass") return next();
    if (admission.kind === "answer") return answer(context, admission.reply);
    return run(admission, context, next);
  };
  return Object.assign(handler as unknown as Middleware, {
    drain: (within = "30s") => engine.drain(span({ within }, "within") as number),
  });
}

/** Middleware that answers errors of the client, such as `Unavailable`, with problem documents. */
export function errors(): Middleware {
  return async (context, next) => {
    try {
      await next();
    } catch (error) {
      const reply = problemOf(error);
      if (!reply) throw error;
      answer(context as unknown as Context, reply);
    }
  };
}

const handlersStream = new WeakMap<Context, Readable>();

async function run(run: Run, context: Context, next: Next): Promise<void> {
  const { req: request, res: response } = context;
  const { exchange } = run;
  const outer = fieldsOf(response.getHeaders());
  // For answers that the framework gives elsewhere: an error, or a handler that writes to the response itself.
  const recorder = record(run, request, response);
  const giveStreams = ownStreams(context);
  context.oncegate = exchange.request;
  try {
    await new Promise<void>((resolve, reject) => runUnder(exchange, () => void next().then(resolve, reject)));
  } catch (error) {
    exchange.threw(error);
    // Koa does not answer an error after its caller has disconnected; the repeat needs the answer.
    if (run.guard.isGone) Object.defineProperty(context.response, "writable", { configurable: true, value: true });
    throw error;
  } finally {
    giveStreams();
  }
  if (context.respond === false || response.headersSent || response.writableEnded) return;
  recorder.detach();
  run.whenGone = null;
  const { status, body } = context;
  exchange.head(status, ownFields(fieldsOf(response.getHeaders()), outer));
  for (const name of UNSENT_FIELDS) context.remove(name);
  if (exchange.degraded) context.set(DEGRADED_FIELD, exchange.degraded);
  if (EMPTY.includes(status)) return recordPiece(run, Buffer.alloc(0));
  const source = handlersStream.get(context) ?? webStreamOf(body);
  if (!isStream(source)) return recordPiece(run, bytesOf(context));
  const length = context.response.get("Content-Length");
  const type = context.response.get("Content-Type");
  const recorded = recordStream(run, source, { declared: /^\d+$/.test(length) ? Number(length) : null });
  // A compression outside pipes it without its errors: its caller would wait for the rest.
  recorded.once("error", () => response.destroy());
  context.body = recorded;
  if (length) context.set("Content-Length", length);
  if (type) context.set("Content-Type", type);
}

/** The bytes that Koa will send. */
function bytesOf(context: Context): Buffer {
  const { body } = context;
  if (body === null || body === undefined) {
    const isExplicit = (context.response as unknown as { _explicitNullBody?: boolean })._explicitNullBody;
    return Buffer.from(isExplicit ? "" : context.message || String(context.status));
  }
  if (typeof body === "string" || body instanceof Uint8Array) return Buffer.from(body as string);
  return Buffer.from(JSON.stringify(body) ?? "");
}

function webStreamOf(body: unknown): unknown {
  if (body instanceof Blob) return Readable.fromWeb(body.stream() as never);
  if (body instanceof Response) return body.body ? Readable.fromWeb(body.body as never) : Readable.from([]);
  return body;
}

/**
 * Koa destroys its body stream when the connection closes. So Koa gets a substitute while the handler runs. Returns a function
 * that ends this: after it the body is the handler's stream, which is read even if the connection closes.
 */
function ownStreams(context: Context): () => void {
  const { response } = context;
  const body = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(Object.getPrototypeOf(response)), "body");
  if (!body?.get || !body.set) return () => {};
  const { get, set } = body;
  let source: Readable | null = null;
  Object.defineProperty(response, "body", {
    configurable: true,
    get: () => source ?? get.call(response),
    set: (value: unknown) => {
      source = isStream(value) && "pipe" in value ? value : null;
      set.call(response, source ? Readable.from([]) : value);
    },
  });
  return () => {
    delete (response as { body?: unknown }).body;
    if (source) handlersStream.set(context, source);
  };
}

function answer(context: Context, { status, fields, body, trailers }: Reply): void {
  context.status = status;
  if (EMPTY.includes(status)) context.body = null;
  else if (trailers.length > 0 && asksForTrailers(context.req)) {
    context.body = Readable.from([body]);
    context.set("Trailer", trailers.map(([name]) => name).join(", "));
    context.res.addTrailers(trailers);
  } else context.body = body;
  context.remove("Content-Type");
  for (const [name, values] of grouped(fields)) context.set(name, values);
}
