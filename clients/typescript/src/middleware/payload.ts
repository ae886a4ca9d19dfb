/** Records a response that a framework sends for its handler, from the payload that the handler gave it. */

import { PassThrough, Readable } from "node:stream";
import type { ReadableStream as WebStream } from "node:stream/web";
import type { Run } from "./node.js";
import type { FieldLines } from "./stored.js";

/** Longest time without a read by a reader. */
const STALLED_MS = 30_000;

/** Functions of a stream in addition to passing its pieces. */
export interface StreamTerms {
  /** `Content-Length`, if it is declared: the piece that fills it completes the response. */
  declared: number | null;
  /** The fields that follow the body. */
  trailers?: () => Promise<FieldLines>;
}

export function isStream(payload: unknown): payload is Readable | WebStream {
  if (typeof payload !== "object" || payload === null) return false;
  const { pipe, getReader } = payload as { pipe?: unknown; getReader?: unknown };
  return typeof pipe === "function" || typeof getReader === "function";
}

/** Records a body in one piece. Resolves when it may be sent. */
export async function recordPiece(run: Run, bytes: Buffer): Promise<void> {
  run.isRecordedBefore = true;
  run.exchange.data(bytes);
  await run.exchange.complete();
  // The framework sends it first. Otherwise the framework would treat a disconnected caller as a reply that was not sent.
  setImmediate(() => run.guard.release());
}

/** Returns a stream with the pieces of `source`. Its end waits for the report. The source is read to its end, with or without a reader. */
export function recordStream(run: Run, source: Readable | WebStream, terms: StreamTerms): Readable {
  run.isRecordedBefore = true;
  const out = new PassThrough();
  // The framework destroys it when the caller has disconnected.
  out.on("error", () => {});
  void pump(run, readable(source), out, terms);
  return out;
}

function readable(source: Readable | WebStream): Readable {
  if ("getReader" in source) return Readable.fromWeb(source);
  return Symbol.asyncIterator in source ? source : new Readable().wrap(source as NodeJS.ReadableStream);
}

async function pump(run: Run, source: Readable, out: PassThrough, { declared, trailers }: StreamTerms): Promise<void> {
  const { exchange, guard } = run;
  run.stop = () => source.destroy();
  let bytes = 0;
  try {
    for await (const piece of source) {
      const data = Buffer.from(piece as Buffer);
      exchange.data(data);
      bytes += data.length;
      if (bytes === declared) await exchange.complete();
      else if (declared !== null && bytes > declared) await exchange.break();
      if (!out.destroyed && !guard.isGone && !out.write(data)) await taken(run, out);
    }
    if (trailers) exchange.trailers(await trailers());
    if (declared !== null && bytes < declared) throw new Error(`the body has ${bytes} bytes, and declares ${declared}`);
    await exchange.complete();
    guard.release();
    out.end();
  } catch (error) {
    await exchange.break();
    guard.release();
    out.destroy(error as Error);
  }
}

/** Waits until the caller accepts more, has disconnected, or has stalled for too long. */
function taken(run: Run, out: PassThrough): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      out.off("drain", done).off("close", done);
      run.whenGone = null;
      resolve();
    };
    const timer = setTimeout(() => {
      out.destroy(new Error("the caller takes no data"));
      done();
    }, STALLED_MS).unref();
    out.on("drain", done).on("close", done);
    run.whenGone = done;
  });
}
