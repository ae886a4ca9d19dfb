/** One call over several gateways, repeated until one has answered. */

import { type Cause, Rejected, Unavailable } from "./errors.js";
import type { Options } from "./options.js";
import { type Answer, type Fields, HttpServer, type Server } from "./server.js";
import { traceparent as activeTraceparent, counted } from "./telemetry.js";
import type { Endpoint, Event } from "./values.js";

export const PAUSE_MS_MIN = 50;
const PAUSE_MS_MAX = 1000;
/** A shorter try says nothing about the gateway. So a first round is completed, even if it ends a little late. */
const TRY_MS_MIN = 100;

export const VERSION = "0.1.0";

export type About = Pick<Event, "operation" | "globalId">;

/** One call and its repeats. All carry the same body, so that the gateway recognises the nonce or the attempt in it. */
export interface Call {
  endpoint: Endpoint;
  method?: "GET";
  path: string;
  body?: string;
  /** Limit of all tries. */
  withinMs: number;
  /** Wait that the call requests from the gateway: added to the timeout of one try. */
  waitMs?: number;
  /** The position of the gateway to begin with. */
  first: number;
  genuine: (fields: Fields) => boolean;
  about: About;
  /** Ends the tries, but not the one in flight. */
  stop?: AbortSignal | undefined;
  /** Ends the one in flight too. */
  abort?: AbortSignal | undefined;
  /** Set when a try may have had an effect although no answer came. */
  uncertain?: boolean;
  /** Nobody waits for it: its pauses do not keep the process alive. */
  idle?: boolean;
}

export class Transport {
  readonly servers: Server[];
  readonly timeoutMs: number;
  /** The gateway that answered the last claim. So a gateway that is down costs one timeout, not one for each call. */
  first = 0;
  /** Monotonic; replaced by tests. */
  now = (): number => performance.now();
  /** Names and values, one after the other. */
  private readonly headers: readonly string[];
  private readonly options: Options;

  constructor(servers: Server[], timeoutMs: number, options: Options) {
    this.servers = servers;
    this.timeoutMs = timeoutMs;
    this.options = options;
    const headers = ["content-type", "application/json", "user-agent", `oncegate-typescript/${VERSION}`];
    this.headers = options.credential ? [...headers, "authorization", `Bearer ${options.credential}`] : headers;
  }

  event(about: About, name: string, level: Event["level"], fields: Event["fields"] = {}): void {
    counted("oncegate.client.events", "event", name);
    (this.options.onEvent ?? log)({ name, ...about, level, fields });
  }

  counted(operation: string, result: string): void {
    counted("oncegate.requests", "result", result, operation);
    this.options.metrics?.protected?.(operation, result);
  }

  close(): void {
    for (const server of this.servers) server.close();
  }

  /** Calls one gateway after the other until one has answered with 2xx, 409, 422 or, on a lookup, 404. */
  async do(call: Call): Promise<Answer> {
    const count = this.servers.length;
    const waitMs = call.waitMs ?? 0;
    const ends = this.now() + call.withinMs + waitMs;
    const causes = new Map<string, Cause>();
    let resend = false;
    let resent = false;
    let shortest = Number.POSITIVE_INFINITY;
    for (let tries = 1; ; tries++) {
      call.stop?.throwIfAborted();
      call.abort?.throwIfAborted();
      const at = (call.first + tries - 1) % count;
      const server = this.servers[at] as Server;
      // The lease counts from here: the answer may take long.
      const sent = this.now();
      const whole = this.timeoutMs + waitMs;
      const timeoutMs = Math.min(whole, Math.max(ends - sent, TRY_MS_MIN));
      const { path, genuine, body = "", abort: signal } = call;
      const headers = this.headersNow();
      const answer = await server.call({
        method: call.method ?? "POST",
        path,
        headers,
        body,
        timeoutMs,
        fresh: resend,
        genuine,
        signal,
      });
      const failed = "kind" in answer;
      this.options.metrics?.request(call.endpoint, failed ? answer.kind : String(answer.status), this.now() - sent);
      if (failed && call.abort?.aborted) {
        call.uncertain = true;
        throw call.abort.reason;
      }
      if (!failed && isFinal(answer.status, call)) return { status: answer.status, fields: answer.fields, sent, at };
      const fields = failed ? {} : answer.fields;
      if (!failed && answer.status < 500 && answer.status !== 429) throw rejected(answer.status, fields);
      const cause = failed ? answer : answered(server.url, answer.status, fields);
      call.uncertain ||= mayHaveActed(cause);
      // A try that was cut short adds no information.
      if (cause.kind !== "timeout" || timeoutMs === whole || !causes.has(server.url)) causes.set(server.url, cause);
      this.event(call.about, "retry", "info", { cause });
      resend = cause.kind === "connection" && !resent;
      if (resend) {
        // Most likely the gateway had closed a kept connection.
        resent = true;
        tries--;
        continue;
      }
      const refused = cause.status === 429;
      let pause = refused ? (fields.retry_after_ms ?? 1000) : 0;
      shortest = Math.min(shortest, fields.retry_after_ms ?? 0);
      if (tries % count === 0) {
        // Full jitter: callers that failed together do not come back together.
        pause = Math.max(pause, shortest, 1 + jitter(tries / count));
        shortest = Number.POSITIVE_INFINITY;
      }
      if (pause > 0 && this.now() + pause > ends) {
        if (refused) throw rejected(429, fields);
        throw new Unavailable([...causes.values()], call.uncertain);
      }
      await sleep(pause, call.stop ?? call.abort, call.idle);
    }
  }

  private headersNow(): readonly string[] {
    const traceparent = this.options.traceparent ? this.options.traceparent() : activeTraceparent();
    // A value that is not one would be refused by every server between.
    const valid = traceparent !== undefined && /^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$/.test(traceparent);
    return valid ? [...this.headers, "traceparent", traceparent] : this.headers;
  }
}

export function jitter(round: number): number {
  return Math.random() * Math.min(PAUSE_MS_MAX, PAUSE_MS_MIN * 2 ** round);
}

export const hasGlobalId = (fields: Fields): boolean => typeof fields.global_id === "string";

export function rejected(status: number, fields: Fields): Rejected {
  const { code = "", detail = "", request_id: requestId = null, retry_after_ms: retryAfterMs = null } = fields;
  return new Rejected(status, code, detail, requestId, retryAfterMs);
}

export function answered(url: string, status: number, fields: Fields): Cause {
  const { code = "", detail = "" } = fields;
  const text = `${status} ${code}: ${detail}`.slice(0, 400);
  return { url, kind: "answer", detail: text, status, code, ...(fields.request_id ? { requestId: fields.request_id } : {}) };
}

/** Ends early, with the signal's reason, when it is aborted. An idle one does not keep the process alive. */
export function sleep(ms: number, signal?: AbortSignal, idle = false): Promise<void> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const abort = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, ms);
    if (idle) timer.unref();
    signal?.addEventListener("abort", abort, { once: true });
  });
}

function isFinal(status: number, call: Call): boolean {
  return status < 300 || status === 409 || status === 422 || (status === 404 && call.endpoint === "lookup");
}

/** A gateway that answers overloaded or draining has not started it. */
function mayHaveActed(cause: Cause): boolean {
  if (cause.kind === "answer") return cause.status === 500 || cause.code === "outcome_unknown";
  return !["dns", "refused", "tls"].includes(cause.kind);
}

/** The gateways of these URLs. */
export function serversOf(urls: readonly string[], tls: Options["tls"]): Server[] {
  if (urls.length === 0) throw new TypeError("no gateway: give at least one URL, such as http://10.0.0.5:8080");
  for (const url of urls) checkUrl(url);
  return urls.map((url) => new HttpServer(url, tls));
}

function checkUrl(text: string): void {
  const url = URL.canParse(text) ? new URL(text) : null;
  if (!url || !/^https?:$/.test(url.protocol) || !/^https?:\/\//.test(text)) {
    throw new TypeError(`not the URL of a gateway: ${text}; expected http://HOST:PORT or https://HOST:PORT`);
  }
  if (url.username || url.password || url.search || url.hash) {
    throw new TypeError(`the URL of a gateway has no user, query or fragment: ${url.host}; use credential`);
  }
}

function log(event: Event): void {
  if (event.level === "debug") return;
  console[event.level](`oncegate: ${event.name}`, { operation: event.operation, globalId: event.globalId, ...event.fields });
}
