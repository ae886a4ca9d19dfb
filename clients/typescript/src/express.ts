/** Middleware for Express 4 and 5: a request with an Idempotency-Key runs once. */

import type { ErrorRequestHandler, Request, RequestHandler, Response } from "express";

import { span } from "./durations.js";
import { Engine } from "./middleware/engine.js";
import { type RequestGrant, runUnder } from "./middleware/exchange.js";
import { admit, send } from "./middleware/node.js";
import type { IdempotencyOptions } from "./middleware/options.js";
import { problemOf } from "./middleware/problemof.js";
import { record, runOf } from "./middleware/runs.js";

export { current, type RequestGrant } from "./middleware/exchange.js";
export type { IdempotencyOptions } from "./middleware/options.js";
export type { Problem, Rendered } from "./middleware/problems.js";

declare global {
  namespace Express {
    interface Request {
      /** The grant that the handler runs under. */
      oncegate?: RequestGrant;
    }
  }
}

/** Middleware. Install it after the authentication, and before the parsers of the body. */
export interface Idempotent extends RequestHandler {
  /** Waits until no handler runs under a claim, after the server was closed. False if some still did when time was over. */
  drain(within?: string): Promise<boolean>;
}

export function idempotent<R extends Request = Request>(options: IdempotencyOptions<R>): Idempotent {
  const engine = new Engine<R>(options);
  const handler = (request: Request, response: Response, next: (error?: unknown) => void) => {
    protect(engine, request as R, response, next).catch(next);
  };
  const drain = (within = "30s") => engine.drain(span({ within }, "within") as number);
  return Object.assign(handler as RequestHandler, { drain });
}

async function protect<R extends Request>(engine: Engine<R>, request: R, response: Response, next: (error?: unknown) => void) {
  if (runOf(request)) return next();
  const { method, originalUrl: url, rawHeaders } = request;
  const admission = await admit(engine, request, request, response, { method, url, rawHeaders }, request);
  if (admission.kind === "pass") return next();
  if (admission.kind === "answer") return send(request, response, admission.reply);
  record(admission, request, response);
  request.oncegate = admission.exchange.request;
  runUnder(admission.exchange, next);
}

/**
 * An error handler that tells the middleware which errors `nothingHappened` declares, and passes all of them on:
 * `app.use(idempotent.errors)`, before the error handler of the app.
 */
const seeErrors: ErrorRequestHandler = (error, request, _response, next) => {
  runOf(request)?.exchange.threw(error);
  next(error);
};

/** An error handler that answers errors of the client, such as `Unavailable`, with problem documents. */
export function errors(): ErrorRequestHandler {
  return (error, request, response, next) => {
    const reply = problemOf(error);
    if (!reply || response.headersSent) return next(error);
    send(request, response, reply);
  };
}

idempotent.errors = seeErrors;
