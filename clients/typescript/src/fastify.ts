/** A plugin for Fastify: a request with an Idempotency-Key runs once. */

import { Grant } from "./grant.js";
import {
  answerOf,
  type IdempotencyOptions,
  type Incoming,
  OUTCOME_HEADER,
  outcomeOf,
  planned,
  type Reply,
  refusalOf,
  STORED_BYTES_MAX,
  stored,
} from "./idempotency.js";

export type { IdempotencyOptions } from "./idempotency.js";

/** What the plugin uses of Fastify. */
export interface FastifyLike {
  addHook(name: "preHandler", hook: (request: never, reply: never) => Promise<unknown>): unknown;
  addHook(name: "onSend", hook: (request: never, reply: never, payload: unknown) => Promise<unknown>): unknown;
  addHook(name: "onResponse", hook: (request: never, reply: never) => Promise<unknown>): unknown;
}

interface ReplyLike {
  statusCode: number;
  code(status: number): ReplyLike;
  headers(headers: Record<string, string | string[]>): ReplyLike;
  getHeaders(): Record<string, unknown>;
  removeHeader(name: string): unknown;
  send(body: Buffer): ReplyLike;
}

const grants = new WeakMap<object, Grant>();

/** The grant that a handler runs under, for its fence. */
export function grantOf(request: object): Grant | undefined {
  return grants.get(request);
}

/** `app.register(oncegate, options)`, in the context of the routes to protect. */
export async function oncegate<Request extends Incoming>(app: FastifyLike, options: IdempotencyOptions<Request>): Promise<void> {
  app.addHook("preHandler", async (request: Request, reply: ReplyLike) => {
    const plan = planned(options, request, request);
    if (plan === null) return;
    if ("status" in plan) return send(reply, plan);
    try {
      const result = await options.client.claim(options.operation, plan.contents, plan.terms);
      if (!(result instanceof Grant)) return send(reply, answerOf(result));
      grants.set(request, result);
    } catch (error) {
      return send(reply, refusalOf(error));
    }
    return;
  });

  // The response is sent when its outcome is reported. It is sent even if its report failed.
  app.addHook("onSend", async (request: Request, reply: ReplyLike, payload: unknown) => {
    const grant = grants.get(request);
    if (!grant || isStream(payload)) return payload;
    grants.delete(request);
    const bytes = payload === undefined || payload === null ? Buffer.alloc(0) : Buffer.from(payload as string);
    await report(grant, reply, bytes.length <= STORED_BYTES_MAX ? bytes : null);
    return payload;
  });

  // A stream is not stored, and its outcome is known when it has ended.
  app.addHook("onResponse", async (request: Request, reply: ReplyLike) => {
    const grant = grants.get(request);
    if (!grant) return;
    grants.delete(request);
    await report(grant, reply, null);
  });
}

// The hooks are for the routes around the plugin, not for a separate context.
Object.assign(oncegate, { [Symbol.for("skip-override")]: true });

async function report(grant: Grant, reply: ReplyLike, body: Buffer | null): Promise<void> {
  const headers = reply.getHeaders();
  const outcome = outcomeOf(reply.statusCode, headers[OUTCOME_HEADER]);
  reply.removeHeader(OUTCOME_HEADER);
  const reporting =
    outcome === "success"
      ? grant.succeed(stored(reply.statusCode, headers, body))
      : outcome === "failure"
        ? grant.fail()
        : grant.giveUp();
  await reporting.catch(() => undefined);
}

function send(reply: ReplyLike, { status, headers, body }: Reply): ReplyLike {
  return reply.code(status).headers(headers).send(body);
}

function isStream(payload: unknown): boolean {
  return typeof payload === "object" && payload !== null && !Buffer.isBuffer(payload);
}
