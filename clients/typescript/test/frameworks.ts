/** One service on each framework, for rules that hold on all of them. */

import http from "node:http";
import type { AddressInfo } from "node:net";
import { Readable } from "node:stream";

import express from "express";
import fastify from "fastify";
import Koa from "koa";

import type { Client } from "../src/client.js";
import { idempotent as onExpress } from "../src/express.js";
import { oncegate } from "../src/fastify.js";
import { idempotent as onKoa } from "../src/koa.js";
import type { RequestGrant } from "../src/middleware/exchange.js";
import type { IdempotencyOptions } from "../src/middleware/options.js";
import type { Any } from "./gateway.js";

/** Answer of a handler. */
export interface Answer {
  status?: number;
  headers?: Record<string, string | string[]>;
  body?: string | Buffer | Readable | null;
}

export type Handler = (request: { body: Buffer; grant: RequestGrant | undefined; headers: Any }) => Promise<Answer> | Answer;
export type Options = Partial<IdempotencyOptions<Any>> & { client: Client };

export interface Service {
  url: string;
  close: () => Promise<void>;
  drain: (within: string) => Promise<boolean>;
}

let requests = 0;
/** A field that an outer layer gives each response. */
const requestId = () => `r-${++requests}`;

export const frameworks: Record<string, (handler: Handler, options: Options) => Promise<Service>> = {
  express: async (handler, given) => {
    const app = express();
    app.use((_request, response, next) => {
      response.setHeader("X-Request-Id", requestId());
      next();
    });
    const protect = onExpress({ operation: "order.submit", principal: (request: Any) => request.get("x-user"), ...given } as Any);
    app.use("/orders", protect, async (request, response, next) => {
      try {
        const {
          status = 201,
          headers = {},
          body = "",
        } = await handler({
          body: await allOf(request),
          grant: request.oncegate,
          headers: request.headers,
        });
        response.status(status);
        for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
        if (body instanceof Readable) body.pipe(response);
        else response.end(body ?? undefined);
      } catch (error) {
        next(error);
      }
    });
    app.use(onExpress.errors);
    app.use(((error: Any, _request: Any, response: Any, next: Any) =>
      error.answer ? response.status(error.answer).end("handled") : next(error)) as express.ErrorRequestHandler);
    const silent = app.set("env", "test");
    return { ...(await listening(http.createServer(silent))), drain: protect.drain };
  },
  koa: async (handler, given) => {
    const app = new Koa();
    app.silent = true;
    app.use(async (context, next) => {
      context.set("X-Request-Id", requestId());
      try {
        await next();
      } catch (error) {
        if (!(error as Any).answer) throw error;
        context.status = (error as Any).answer;
        context.body = "handled";
      }
    });
    const protect = onKoa({ operation: "order.submit", principal: (context: Any) => context.get("x-user"), ...given } as Any);
    app.use(protect);
    app.use(async (context) => {
      const {
        status = 201,
        headers = {},
        body = "",
      } = await handler({
        body: await allOf(context.req),
        grant: (context as Any).oncegate,
        headers: context.headers,
      });
      context.body = body;
      context.status = status;
      context.remove("Content-Type");
      context.set(headers as Any);
    });
    return { ...(await listening(http.createServer(app.callback()))), drain: (protect as Any).drain };
  },
  fastify: async (handler, given) => {
    const app = fastify({ forceCloseConnections: true });
    app.addHook("onRequest", async (_request, reply) => {
      reply.header("X-Request-Id", requestId());
    });
    app.removeAllContentTypeParsers();
    app.addContentTypeParser("*", { parseAs: "buffer" }, (_request, body, done) => done(null, body));
    app.setErrorHandler((error: Any, _request, reply) => {
      if (!error.answer) throw error;
      return reply.code(error.answer).send("handled");
    });
    await app.register(oncegate, {
      operation: "order.submit",
      principal: (request: Any) => request.headers["x-user"],
      ...given,
    } as Any);
    app.all("/orders", async (request, reply) => {
      const {
        status = 201,
        headers = {},
        body = "",
      } = await handler({
        body: (request.body as Buffer) ?? Buffer.alloc(0),
        grant: request.oncegate ?? undefined,
        headers: request.headers,
      });
      return reply
        .code(status)
        .headers(headers)
        .send(body ?? undefined);
    });
    await app.listen({ port: 0, host: "127.0.0.1" });
    return { url: urlOf(app.server), close: async () => void (await app.close()), drain: async () => true };
  },
};

export async function allOf(stream: AsyncIterable<Buffer>): Promise<Buffer> {
  const pieces: Buffer[] = [];
  for await (const piece of stream) pieces.push(piece);
  return Buffer.concat(pieces);
}

export async function listening(server: http.Server): Promise<{ url: string; close: () => Promise<void> }> {
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const close = () =>
    new Promise<void>((resolve) => {
      server.close(() => resolve());
      server.closeAllConnections();
    });
  return { url: urlOf(server), close };
}

function urlOf(server: http.Server): string {
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}
