/** A plugin for Fastify 4 and 5: a request with an Idempotency-Key runs once. */

import { Readable } from "node:stream";

import type { FastifyInstance, FastifyPluginAsync, FastifyReply, FastifyRequest } from "fastify";

import { span } from "./durations.js";
import { type Body, type Left, type NoBody, readBody } from "./middleware/body.js";
import { Engine, fieldsOf } from "./middleware/engine.js";
import { DEGRADED_FIELD, type RequestGrant, runUnder, UNSENT_FIELDS } from "./middleware/exchange.js";
import { asksForTrailers, claim, grouped, type Run, withoutBody } from "./middleware/node.js";
import type { IdempotencyOptions } from "./middleware/options.js";
import { isStream, recordPiece, recordStream } from "./middleware/payload.js";
import { problemOf } from "./middleware/problemof.js";
import { hideFields, ownFields } from "./middleware/recorder.js";
import { begin, runOf } from "./middleware/runs.js";
import { EMPTY, type FieldLines, type Reply } from "./middleware/stored.js";

export { current, type RequestGrant } from "./middleware/exchange.js";
export type { IdempotencyOptions } from "./middleware/options.js";
export type { Problem, Rendered } from "./middleware/problems.js";

declare module "fastify" {
  interface FastifyRequest {
    /** The grant that the handler runs under. */
    oncegate: RequestGrant | null;
  }
}

type Trailer = (reply: FastifyReply, payload: unknown, done: (error: Error | null, value?: string) => void) => unknown;

/** The run of a request, and what its response needs. */
interface Handled {
  run: Run;
  outer: FieldLines;
  unhide: () => void;
  trailers: Map<string, Said>;
}

/** A function of the handler, called once; the framework gets what it said. */
interface Said {
  call: Trailer;
  say: (value: string | undefined) => void;
}

const bodies = new WeakMap<FastifyRequest, Body | NoBody>();
const handled = new WeakMap<FastifyRequest, Handled>();
const answers = new WeakMap<FastifyRequest, Reply>();
/** Requests whose handler has sent its response, which is on its way through the hooks. */
const sending = new WeakSet<FastifyRequest>();
const PROTECTED = Symbol.for("oncegate.fastify");

/** `app.register(oncegate, options)` in the scope of the routes to protect, behind the authentication. */
export const oncegate: FastifyPluginAsync<IdempotencyOptions<FastifyRequest>> = async (app, options) => {
  const engine = new Engine<FastifyRequest>(options);
  keepBodies(app, (request) => (engine.isKeyed(request, incomingOf(request)) ? engine.rules.bodyBytes : null));
  app.addHook("preHandler", (request, reply, done) => {
    decide(engine, request, reply).then((run) => (run === null ? undefined : run ? runUnder(run.exchange, done) : done()), done);
  });
  app.addHook("onClose", async () => {
    await engine.drain(span({ within: "30s" }, "within") as number);
  });
};
// The hooks are for the routes around the plugin, not for a separate scope.
Object.assign(oncegate, {
  [Symbol.for("skip-override")]: true,
  [Symbol.for("fastify.display-name")]: "@oncegate/client",
});

/** An error handler that answers errors of the client, such as `Unavailable`, with problem documents: `app.setErrorHandler(errors())`. */
export function errors(): (error: unknown, request: FastifyRequest, reply: FastifyReply) => unknown {
  return (error, _request, reply) => {
    const answer = problemOf(error);
    if (!answer) throw error;
    return sendProblem(reply, answer);
  };
}

export function sendProblem(reply: FastifyReply, { status, fields, body }: Reply): FastifyReply {
  reply.code(status);
  for (const [name, values] of grouped(fields)) reply.header(name, values);
  return reply.send(body);
}

/**
 * Adds the hooks that keep bodies and record responses. `limitOf` returns the longest body of a request; null for one that is not
 * protected.
 */
export function keepBodies(app: FastifyInstance, limitOf: (request: FastifyRequest) => number | null): void {
  if (PROTECTED in app) throw new Error("oncegate is registered twice for the same routes: register it once, in the inner scope");
  Object.defineProperty(app, PROTECTED, { value: true });
  if (!app.hasRequestDecorator("oncegate")) app.decorateRequest("oncegate", null);
  app.addHook("preParsing", async (request, _reply, payload) => {
    const limit = limitOf(request);
    if (limit === null || bodies.has(request)) return payload;
    if ((payload as unknown) === request.raw) {
      bodies.set(request, await readBody(request.raw, {}, limit, true));
      return payload;
    }
    // An outer layer has changed the bytes: its bytes count.
    const pieces: Buffer[] = [];
    for await (const piece of payload) pieces.push(Buffer.from(piece as Buffer));
    const bytes = Buffer.concat(pieces);
    bodies.set(request, bytes.length > limit ? { kind: "too_large" } : { kind: "bytes", bytes });
    return Object.assign(Readable.from([bytes]), {
      receivedEncodedLength: Number(request.headers["content-length"] ?? bytes.length),
    });
  });
  // These hooks call back at once where they can: Fastify takes a handler for silent that has sent, while a hook waits.
  app.addHook("onError", (request, _reply, error, done) => {
    runOf(request.raw)?.exchange.threw(error);
    sending.delete(request);
    done();
  });
  app.addHook("onSend", (request, reply, payload, done): Promise<unknown> | undefined => {
    const answer = answers.get(request);
    const found = handled.get(request);
    if (answer || !found) {
      done(null, answer ? (answer.body.length === 0 ? undefined : answer.body) : payload);
      return undefined;
    }
    handled.delete(request);
    return respond(found, reply, payload);
  });
  // A response that was sent past the hooks.
  app.addHook("onResponse", async (request) => {
    handled.get(request)?.run.exchange.break();
  });
}

/** Undefined: it passes. Null: it was answered. */
export async function decide(
  engine: Engine<FastifyRequest>,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<Run | null | undefined> {
  if (runOf(request.raw)) return undefined;
  const incoming = incomingOf(request);
  const keyed = engine.begin(request, incoming);
  if (keyed.kind === "pass") return undefined;
  if (keyed.kind === "answer") return give(request, reply, keyed.reply);
  const principal = await engine.principal(request);
  if (typeof principal !== "string") return principal.kind === "pass" ? undefined : give(request, reply, principal.reply);
  const { bodyBytes: limit, given } = engine.rules;
  let body = bodies.get(request) ?? (await readBody(request.raw, leftOf(request), limit, given.observe === true));
  if (body.kind === "bytes" && body.bytes.length > limit) body = { kind: "too_large" };
  if (body.kind !== "bytes" && body.kind !== "parsed") {
    const refused = withoutBody(engine, body, request.raw);
    return refused.kind === "pass" ? undefined : give(request, reply, refused.reply);
  }
  const admission = await claim(engine, keyed.key, principal, incoming, body, request.raw, reply.raw);
  if (admission.kind === "pass") return undefined;
  if (admission.kind === "answer") return give(request, reply, admission.reply);
  start(admission, request, reply);
  return admission;
}

function start(run: Run, request: FastifyRequest, reply: FastifyReply): void {
  const trailers = new Map<string, Said>();
  handled.set(request, { run, outer: fieldsOf(reply.getHeaders()), unhide: hideFields(request.raw), trailers });
  begin(run, request.raw);
  request.oncegate = run.exchange.request;
  sendOnce(request, reply);
  const { hijack, trailer } = reply;
  reply.hijack = () => {
    void run.exchange.break().then(() => run.guard.release());
    handled.delete(request);
    return hijack.call(reply);
  };
  reply.trailer = ((name: string, value: Trailer) => {
    if (UNSENT_FIELDS.includes(name.toLowerCase())) return reply;
    const said = new Promise((say) => trailers.set(name.toLowerCase(), { call: value, say }));
    return trailer.call(reply, name, (() => said) as never);
  }) as typeof reply.trailer;
}

/**
 * The first response counts, as without the middleware: until the report Fastify would take `reply.send` without `return` in an asynchronous
 * handler for no response, and would send an empty one, or what the handler returns or throws afterwards.
 */
function sendOnce(request: FastifyRequest, reply: FastifyReply): void {
  const send = reply.send as (payload?: unknown) => FastifyReply;
  let isInside = false;
  const wasSent = () => Reflect.get(Object.getPrototypeOf(reply), "sent", reply) === true;
  Object.defineProperty(reply, "sent", { configurable: true, get: () => wasSent() || (sending.has(request) && !isInside) });
  reply.send = ((payload?: unknown) => {
    if (reply.sent && !isInside) {
      reply.log.warn("The handler has sent a second response, which is dropped");
      return reply;
    }
    const before = isInside;
    isInside = true;
    // An error is answered by a handler of errors, which sends again.
    if (!(payload instanceof Error)) sending.add(request);
    try {
      return send.call(reply, payload);
    } catch (error) {
      sending.delete(request);
      throw error;
    } finally {
      isInside = before;
    }
  }) as typeof reply.send;
}

async function respond({ run, outer, unhide, trailers }: Handled, reply: FastifyReply, payload: unknown): Promise<unknown> {
  const { exchange } = run;
  const body = payload instanceof Response ? opened(reply, payload) : payload;
  const fields = fieldsOf(reply.getHeaders());
  const { statusCode } = reply;
  exchange.head(statusCode, ownFields(fields, outer));
  for (const name of UNSENT_FIELDS) reply.removeHeader(name);
  if (exchange.degraded) reply.header(DEGRADED_FIELD, exchange.degraded);
  unhide();
  if (EMPTY.includes(statusCode)) {
    if (statusCode === 205) reply.header("content-length", "0");
    else reply.removeHeader("content-length");
    await recordPiece(run, Buffer.alloc(0));
    return null;
  }
  const evaluated = () => evaluate(reply, trailers, body);
  if (isStream(body)) {
    const length = fields.find(([name]) => name === "content-length")?.[1];
    const declared = length !== undefined && /^\d+$/.test(length) ? Number(length) : null;
    return recordStream(run, body, { declared, trailers: evaluated });
  }
  const bytes = body === undefined || body === null ? Buffer.alloc(0) : Buffer.from(body as string);
  if (trailers.size > 0) exchange.trailers(await evaluated());
  await recordPiece(run, bytes);
  return body;
}

/** The fields after the body. */
async function evaluate(reply: FastifyReply, trailers: Map<string, Said>, payload: unknown): Promise<FieldLines> {
  const fields: FieldLines = [];
  for (const [name, { call, say }] of trailers) {
    const value = await new Promise<unknown>((resolve, reject) => {
      const result = call(reply, payload, (error, text) => (error ? reject(error) : resolve(text)));
      if (result instanceof Promise) result.then(resolve, reject);
    }).catch(() => undefined);
    say(value === undefined ? undefined : String(value));
    if (value !== undefined) fields.push([name, String(value)]);
  }
  // Fastify 4 may end a stream before it has asked for them.
  if (fields.length > 0) reply.raw.addTrailers(fields);
  return fields;
}

/** Same handling of a `Response` as by Fastify after the hooks. */
function opened(reply: FastifyReply, response: Response): unknown {
  reply.code(response.status);
  for (const [name, value] of response.headers) reply.header(name, value);
  return response.body;
}

/** The body is put in by `onSend`: Fastify would give it a content type. */
function give(request: FastifyRequest, reply: FastifyReply, answer: Reply): null {
  answers.set(request, answer);
  reply.code(answer.status);
  for (const [name, values] of grouped(answer.fields)) reply.header(name, values);
  if (asksForTrailers(request.raw))
    for (const [name, value] of answer.trailers) reply.trailer(name, (async () => value) as never);
  reply.send();
  return null;
}

/** The value of a parser, where the hook that keeps the bytes did not see them. */
function leftOf(request: FastifyRequest): Left {
  return { body: request.body, rawBody: (request as { rawBody?: unknown }).rawBody };
}

function incomingOf(request: FastifyRequest) {
  return { method: request.method, url: request.originalUrl ?? request.raw.url ?? "", rawHeaders: request.raw.rawHeaders };
}
