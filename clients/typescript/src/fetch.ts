/**
 * Sends requests that must have their effect once, from browsers and Node.js: one Idempotency-Key for each operation, the same key and
 * bytes for all tries. Needs nothing but `fetch`.
 */

export interface SendOptions {
  /** Limit of all tries, in milliseconds. Default: 60000. */
  withinMs?: number;
  /** Limit of one try, in milliseconds. Default: 30000. */
  timeoutMs?: number;
  /** Replaces the global `fetch`. */
  fetch?: typeof fetch;
  /** Called before each new try: why, and after which time. */
  onRetry?: (why: Response | Error, afterMs: number) => void;
}

/** One operation. It may be sent again, also after a failure: the key and the bytes are the same. */
export interface Operation {
  /** Store it with the user's action: an order that is sent again after a restart needs the same key. */
  readonly key: string;
  /**
   * Sends it until there is an answer. Returns the last response if time is over, and throws the last error if there was none. A response
   * 409 with `state: "unknown"` is returned at once: only its effect says if a fresh key does no harm.
   */
  send(signal?: AbortSignal): Promise<Response>;
}

/** @internal As the senders of all languages have it. */
export const WITHIN_MS = 60_000;

const FIELD = "Idempotency-Key";
const SAFE = ["GET", "HEAD", "OPTIONS"];
/** Nothing happened, or the same key finds out what did. */
const RETRIED = [408, 425, 429, 502, 503, 504];
const PAUSE_MS_MIN = 250;
const PAUSE_MS_MAX = 10_000;
const PROBLEM_BYTES_MAX = 65_536;

/** Returns a `fetch` whose unsafe requests are each one operation. A key that the caller has set is kept. */
export function idempotentFetch(options: SendOptions = {}): typeof fetch {
  check(options);
  return async (input, init) => {
    const request = new Request(input, init);
    if (SAFE.includes(request.method)) return (options.fetch ?? fetch)(input, init);
    return holding(input, operation(request, {}, options).send(request.signal));
  };
}

/** Prepares one operation. `init` is that of `fetch`. */
export function operation(input: Parameters<typeof fetch>[0], init: RequestInit = {}, options: SendOptions = {}): Operation {
  check(options);
  const request = new Request(input, init);
  const key = request.headers.get(FIELD) ?? freshKey();
  request.headers.set(FIELD, key);
  let body: Promise<Blob> | undefined;
  const send = async (signal?: AbortSignal) => {
    // Read once: a form has another boundary each time it is written.
    body ??= request.blob();
    return holding([input, request], sendUntilAnswered(request, await body, signal ?? request.signal, options));
  };
  return { key, send };
}

const held = new Set<unknown>();

/** Node.js forgets the signal of a request that only its signal refers to: what is aborted later would go on. So requests are kept here. */
async function holding<Result>(requests: unknown, sending: Promise<Result>): Promise<Result> {
  const entry = { requests };
  held.add(entry);
  try {
    return await sending;
  } finally {
    held.delete(entry);
  }
}

async function sendUntilAnswered(
  request: Request,
  body: Blob,
  signal: AbortSignal | undefined,
  options: SendOptions,
): Promise<Response> {
  const { withinMs = WITHIN_MS, timeoutMs = 30_000, fetch: send = fetch, onRetry } = options;
  const ends = now() + withinMs;
  for (let tries = 1; ; tries++) {
    signal?.throwIfAborted();
    const result = await sendOnce(send, request, body, signal, Math.min(timeoutMs, Math.max(1, ends - now())));
    signal?.throwIfAborted();
    const pause = await pauseAfter(result, tries);
    if (pause === null || now() + pause >= ends) {
      if (result instanceof Error) throw result;
      return result;
    }
    onRetry?.(result, pause);
    // An unread body would keep its connection busy.
    if (!(result instanceof Error)) await result.body?.cancel().catch(() => undefined);
    await sleep(pause, signal);
  }
}

/** The response, or the error of the network or of the time limit. */
async function sendOnce(
  send: typeof fetch,
  request: Request,
  body: Blob,
  signal: AbortSignal | undefined,
  timeoutMs: number,
): Promise<Response | Error> {
  const abort = new AbortController();
  const stop = () => abort.abort(signal?.reason);
  signal?.addEventListener("abort", stop, { once: true });
  const timer = setTimeout(() => abort.abort(new Error(`no answer within ${Math.round(timeoutMs)} ms`)), timeoutMs);
  try {
    const init: RequestInit = { signal: abort.signal };
    // A body without bytes is one, too. A blob can be read again, also by `fetch` itself for a redirect.
    if (request.bodyUsed) init.body = body;
    const sent = new Request(request, init);
    return await holding(sent, send(sent));
  } catch (error) {
    return error instanceof Error ? error : new Error(String(error));
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", stop);
  }
}

/** Milliseconds until the next try; null if this is the answer. */
async function pauseAfter(result: Response | Error, tries: number): Promise<number | null> {
  const jitter = Math.random() * Math.min(PAUSE_MS_MAX, PAUSE_MS_MIN * 2 ** tries);
  if (result instanceof Error) return jitter;
  const isRunning = result.status === 409 && (await isInProgress(result));
  if (!isRunning && !RETRIED.includes(result.status)) return null;
  return Math.max(jitter, retryAfter(result.headers.get("Retry-After")));
}

/** True if a response says that the first request is still running. Its body can be read as before. */
async function isInProgress(response: Response): Promise<boolean> {
  if (Number(response.headers.get("Content-Length") ?? 0) > PROBLEM_BYTES_MAX) return false;
  try {
    const said = (await response.clone().json()) as { state?: unknown; error?: { code?: unknown } } | null;
    // The second is that of Stripe, and of the proxy's dialect of it.
    return said?.state === "in_progress" || said?.error?.code === "idempotency_key_in_use";
  } catch {
    return false;
  }
}

/** Seconds, or a date. */
function retryAfter(value: string | null): number {
  if (value === null) return 0;
  if (/^\d{1,9}$/.test(value.trim())) return Number(value) * 1000;
  const date = Date.parse(value);
  return Number.isNaN(date) ? 0 : Math.max(0, date - Date.now());
}

function freshKey(): string {
  if (typeof crypto.randomUUID === "function") return crypto.randomUUID();
  // Browsers have no randomUUID on pages without TLS.
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function now(): number {
  return performance.now();
}

function sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

function check(options: SendOptions): void {
  const names = ["withinMs", "timeoutMs", "fetch", "onRetry"];
  const unknown = Object.keys(options).filter((name) => !names.includes(name));
  if (unknown.length > 0) throw new TypeError(`options of a sender have no ${unknown.join(", ")}; there are ${names.join(", ")}`);
  for (const name of ["withinMs", "timeoutMs"] as const) {
    const ms = options[name];
    if (ms !== undefined && !(typeof ms === "number" && ms > 0))
      throw new TypeError(`${name} is a number of milliseconds above 0`);
  }
}
