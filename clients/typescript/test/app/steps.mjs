/** The handler of the test application: steps that a request asks for, and the runs that are kept of them. */

import { createHash } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";
import { gzipSync } from "node:zlib";

export class StockError extends Error {
  constructor() {
    super("out of stock");
  }
}

const runs = new Map();

/** The runs of a case, in the order of their start. */
export function runsOf(id) {
  return runs.get(id) ?? [];
}

/**
 * Runs the steps of one request. `io` is what the framework has: `headers`, `body()`, `gone()`, `mark(outcome)`, `httpError()`,
 * `form()`, `parsed()`, `respond({status, headers, style, body})`, `stream({status, headers, rows, trailers})`, `sendsLater` if the
 * framework sends the response when the handler has returned.
 */
export async function handle(io) {
  const id = io.headers["vector-case"];
  const all = runs.get(id) ?? [];
  runs.set(id, all);
  const run = { run: all.length + 1, accept_encoding: io.headers["accept-encoding"] ?? null };
  all.push(run);
  try {
    const steps = JSON.parse(io.headers["vector-do"] ?? "[]");
    const answer = await take(io, run, steps);
    if (!answer.isStream) run.ended = "returned";
    const failing = steps.find((step) => "fails" in step);
    // The response is sent, unless the framework sends what the handler returns.
    const failed = failing && fail(run, failing.fails);
    if (io.sendsLater) failed?.catch(() => {});
    else await failed;
    return answer.value;
  } catch (error) {
    run.ended = "raised";
    throw error;
  }
}

async function take(io, run, steps) {
  const has = (name) => steps.some((step) => name in step);
  const extra = {};
  if (has("form")) Object.assign(extra, await io.form());
  else if (has("parsed")) extra.value = await io.parsed();
  else {
    const body = await io.body();
    run.length = body.length;
    run.sha256 = createHash("sha256").update(body).digest("hex");
  }
  let encodes = false;
  for (const step of steps) {
    if ("sleep" in step) await pause(step.sleep);
    else if ("poll" in step) run.gone = await poll(io, step.poll);
    else if ("mark" in step) io.mark(step.mark);
    else if ("raise" in step) {
      if (step.raise === "http") throw io.httpError();
      if (step.raise === "stock") throw new StockError();
      throw new Error("no idea what happened", step.raise === "caused" ? { cause: new StockError() } : {});
    } else if ("encode" in step) encodes = true;
    else if ("after" in step) {
      run.after = "running";
      setTimeout(() => {
        run.after = "done";
      }, step.after);
    } else if ("respond" in step) return { value: await io.respond(respondOf(step.respond)) };
    else if ("stream" in step) return { isStream: true, value: await io.stream(streamOf(step.stream, run)) };
  }
  const { length, sha256, gone, run: number } = run;
  let body = Buffer.from(JSON.stringify({ run: number, length, sha256, gone: gone ?? false, ...extra }));
  const headers = [["Content-Type", "application/json"]];
  if (encodes && /gzip/.test(io.headers["accept-encoding"] ?? "")) {
    body = gzipSync(body);
    headers.push(["Content-Encoding", "gzip"]);
  }
  return { value: await io.respond({ status: 201, headers, style: "set", body }) };
}

async function fail(run, ms) {
  await pause(ms);
  run.after = "failed";
  throw new Error("the background work fails");
}

async function poll(io, ms) {
  const ends = performance.now() + ms;
  while (performance.now() < ends) {
    if (io.gone()) return true;
    await pause(20);
  }
  return false;
}

function respondOf({ status = 201, headers = [], style = "set", body = "" }) {
  const text = textOf(body);
  return { status, headers: linesOf(headers), style, body: text === null ? null : Buffer.from(text) };
}

/** A text, or one that is repeated. */
function textOf(given) {
  return typeof given === "object" && given !== null ? given.repeat[0].repeat(given.repeat[1]) : given;
}

function linesOf(headers) {
  return headers.map(([name, value]) => [name, textOf(value)]);
}

function streamOf(
  { rows, every, status = 201, headers = [], row = "row {}\n", pad = 0, length, break_after: breaks, trailers },
  run,
) {
  const text = (number) => row.replace("{}", String(number)) + "x".repeat(pad);
  const all = Array.from({ length: rows }, (_, number) => Buffer.from(text(number)));
  const declared = length ? [["Content-Length", String(all.reduce((sum, { length }) => sum + length, 0))]] : [];
  async function* pieces() {
    try {
      for (const [number, piece] of all.entries()) {
        if (breaks !== undefined && number === breaks) throw new Error("the stream breaks off");
        if (number > 0) await pause(every);
        yield piece;
      }
      run.ended = "returned";
    } catch (error) {
      run.ended = "raised";
      throw error;
    } finally {
      run.ended ??= "raised";
    }
  }
  const typed = headers.some(([name]) => name.toLowerCase() === "content-type");
  return {
    status,
    headers: [...(typed ? [] : [["Content-Type", "text/plain"]]), ...linesOf(headers), ...declared],
    rows: pieces(),
    trailers: trailers && Object.fromEntries(linesOf(Object.entries(trailers))),
  };
}

/** Lists of pairs as an object: repeated names have lists. */
export function grouped(headers) {
  const all = {};
  for (const [name, value] of headers) all[name] = name in all ? [all[name], value].flat() : value;
  return all;
}
