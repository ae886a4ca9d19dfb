/** Middleware for Express, and for Nest on the Express platform: a request with an Idempotency-Key runs once. */

import type { IncomingMessage, ServerResponse } from "node:http";

import { NothingHappened } from "./errors.js";
import type { Grant } from "./grant.js";
import {
  answerOf,
  type IdempotencyOptions,
  OUTCOME_HEADER,
  outcomeOf,
  planned,
  type Reply,
  refusalOf,
  STORED_BYTES_MAX,
  stored,
} from "./idempotency.js";

export type { IdempotencyOptions } from "./idempotency.js";

/** What the middleware uses of a request of Express. */
export interface Request extends IncomingMessage {
  body?: unknown;
  originalUrl?: string;
  /** The grant that the handler runs under, for its fence. */
  oncegate?: Grant;
}

/** How long a handler may still run after its caller has gone. */
const GIVE_UP_MS = 60_000;

class NotKnown extends Error {}

/** Middleware, to be used behind the parser of the body: the parsed body is part of the fingerprint. */
export function idempotent<R extends Request = Request>(
  options: IdempotencyOptions<R>,
): (request: R, response: ServerResponse, next: (error?: unknown) => void) => void {
  return (request, response, next) => {
    protect(options, request, response, next).catch(next);
  };
}

async function protect<R extends Request>(
  options: IdempotencyOptions<R>,
  request: R,
  response: ServerResponse,
  next: (error?: unknown) => void,
) {
  const { method = "", url = "", headers, body } = request;
  if (body === undefined && !request.readableEnded && (headers["content-length"] ?? "0") !== "0") {
    throw new TypeError("the body is not parsed yet: use idempotent behind the parser of the body");
  }
  const plan = planned(options, request, { method, url: request.originalUrl ?? url, headers, body });
  if (plan === null) return next();
  if ("status" in plan) return send(response, plan);
  let recorder: Recorder | undefined;
  try {
    const result = await options.client.once(
      options.operation,
      plan.contents,
      async (grant) => {
        request.oncegate = grant;
        recorder = new Recorder(response);
        next();
        return recorder.ended;
      },
      plan.terms,
    );
    if (result.kind !== "done") send(response, answerOf(result));
  } catch (error) {
    if (!recorder) send(response, refusalOf(error));
  } finally {
    // The response is sent even if its report failed.
    recorder?.release();
  }
}

function send(response: ServerResponse, { status, headers, body }: Reply): void {
  response.statusCode = status;
  for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
  response.setHeader("content-length", body.length);
  response.end(body);
}

type Ending = Parameters<ServerResponse["end"]>;

/** Holds the end of a response back until its outcome is reported. */
class Recorder {
  readonly ended: Promise<unknown>;
  private readonly pieces: Buffer[] = [];
  private bytes = 0;
  private ending: Ending | null = null;
  private readonly write: ServerResponse["write"];
  private readonly end: ServerResponse["end"];

  constructor(private readonly response: ServerResponse) {
    this.write = response.write.bind(response);
    this.end = response.end.bind(response);
    this.ended = new Promise((resolve, reject) => {
      response.write = ((piece: unknown, ...rest: unknown[]) => {
        this.keep(piece, rest[0]);
        return (this.write as (...all: unknown[]) => boolean)(piece, ...rest);
      }) as ServerResponse["write"];
      response.end = ((...all: unknown[]) => {
        if (this.ending) return response;
        this.ending = all as Ending;
        if (typeof all[0] !== "function") this.keep(all[0], all[1]);
        this.settle(resolve, reject);
        return response;
      }) as ServerResponse["end"];
      response.once("close", () => {
        setTimeout(() => reject(new NotKnown("the handler has not answered")), GIVE_UP_MS).unref();
      });
    });
    // It may be rejected after the work.
    this.ended.catch(() => undefined);
  }

  release(): void {
    this.response.write = this.write;
    this.response.end = this.end;
    if (this.ending) (this.end as (...all: unknown[]) => unknown)(...this.ending);
  }

  private keep(piece: unknown, encoding: unknown): void {
    if (piece === undefined || piece === null) return;
    const buffer = Buffer.isBuffer(piece)
      ? piece
      : Buffer.from(piece as string, typeof encoding === "string" ? (encoding as BufferEncoding) : "utf8");
    this.bytes += buffer.length;
    if (this.bytes <= STORED_BYTES_MAX) this.pieces.push(buffer);
    else this.pieces.length = 0;
  }

  private settle(resolve: (value: unknown) => void, reject: (error: Error) => void): void {
    const { response } = this;
    const headers = response.getHeaders();
    const outcome = outcomeOf(response.statusCode, headers[OUTCOME_HEADER]);
    if (!response.headersSent) response.removeHeader(OUTCOME_HEADER);
    if (outcome === "failure") reject(new NothingHappened());
    else if (outcome === "unknown") reject(new NotKnown("the response does not say what happened"));
    else resolve(stored(response.statusCode, headers, this.bytes <= STORED_BYTES_MAX ? Buffer.concat(this.pieces) : null));
  }
}
