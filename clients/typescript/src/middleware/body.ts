/** The body of a request: read whole before the claim, and put back as if it had just come. */

import type { IncomingMessage } from "node:http";

/** The bytes as they were sent, or the value that a parser left of them. */
export type Body = { kind: "bytes"; bytes: Buffer } | { kind: "parsed"; value: unknown };

/** `too_large`: more than the limit. `cut`: the upload ended early. `not_seen`: another layer consumed it and left nothing. */
export type NoBody = { kind: "too_large" } | { kind: "cut" } | { kind: "not_seen"; why: string };

const EMPTY: Body = { kind: "bytes", bytes: Buffer.alloc(0) };

/** Body in the form that earlier layers may have left it. */
export interface Left {
  body?: unknown;
  rawBody?: unknown;
  file?: unknown;
  files?: unknown;
}

/**
 * Reads the body. With `keepsLong`, a body beyond the limit is put back too.
 */
export async function readBody(request: IncomingMessage, left: Left, limit: number, keepsLong: boolean): Promise<Body | NoBody> {
  const { headers } = request;
  const { rawBody } = left;
  const declared = headers["content-length"];
  const isFramed = headers["transfer-encoding"] !== undefined || request.httpVersionMajor >= 2;
  if (!isFramed && (declared === undefined || Number(declared) === 0)) return EMPTY;
  if (typeof rawBody === "string" || rawBody instanceof Uint8Array) return bytesOf(Buffer.from(rawBody as string), limit);
  if (request.readableDidRead || request.readableEnded) return parsedBody(request, left);
  if (request.destroyed) return { kind: "cut" };
  if (declared !== undefined && Number(declared) > limit && !keepsLong) return { kind: "too_large" };
  return new Promise((resolve) => collect(request, limit, keepsLong, resolve));
}

function bytesOf(bytes: Buffer, limit: number): Body | NoBody {
  return bytes.length > limit ? { kind: "too_large" } : { kind: "bytes", bytes };
}

/** Parsers of JSON, text, bytes and simple forms leave a value that says all; those of forms with files do not. */
function parsedBody(request: IncomingMessage, { body, file, files }: Left): Body | NoBody {
  const isForm = /^multipart\//i.test(request.headers["content-type"] ?? "");
  if (isForm || file !== undefined || files !== undefined) {
    return { kind: "not_seen", why: "a parser of forms has consumed the body" };
  }
  if (body !== undefined) return { kind: "parsed", value: body };
  if (request.httpVersionMajor >= 2 && request.readableEnded && request.readableLength === 0) return EMPTY;
  return { kind: "not_seen", why: "another layer has consumed the body, and left neither rawBody nor a parsed body" };
}

type Push = (piece: unknown, encoding?: BufferEncoding) => boolean;

/**
 * Takes the bytes from the HTTP parser instead of the stream. So the stream does not end, and does not count as read, before the
 * handler reads it.
 */
function collect(request: IncomingMessage, limit: number, keepsLong: boolean, resolve: (body: Body | NoBody) => void): void {
  const pieces: Buffer[] = [];
  let bytes = 0;
  const isOwn = Object.hasOwn(request, "push");
  const push = request.push as Push;
  let isDone = false;
  const done = (body: Body | NoBody) => {
    if (isDone) return;
    isDone = true;
    request.off("close", cut).off("aborted", cut).off("error", cut);
    if (isOwn) request.push = push;
    else delete (request as { push?: Push }).push;
    resolve(body);
  };
  const cut = () => done({ kind: "cut" });
  request.on("close", cut).on("aborted", cut).on("error", cut);
  const whole = () => {
    const all = pieces.length === 1 ? (pieces[0] as Buffer) : Buffer.concat(pieces);
    done({ kind: "bytes", bytes: all });
    return all;
  };
  const take = (piece: Buffer): boolean => {
    bytes += piece.length;
    pieces.push(piece);
    if (bytes <= limit) return true;
    done({ kind: "too_large" });
    // The rest is read and dropped by Node.js when the response has been sent.
    return keepsLong ? push.call(request, Buffer.concat(pieces)) : true;
  };
  const isComplete = request.complete || hasEnded(request);
  const buffered = request.readableLength > 0 || !isComplete ? (request.read() as Buffer | null) : null;
  if (isComplete) {
    // Its end is not emitted while there is something to read.
    if (buffered !== null) request.unshift(buffered);
    if (buffered !== null && buffered.length > limit) done({ kind: "too_large" });
    else done({ kind: "bytes", bytes: buffered ?? Buffer.alloc(0) });
    restoreRead(request);
    return;
  }
  request.push = ((piece: unknown, encoding?: BufferEncoding) => {
    if (piece !== null) return take(Buffer.isBuffer(piece) ? piece : Buffer.from(piece as string, encoding));
    const all = whole();
    restoreRead(request);
    if (all.length > 0) push.call(request, all);
    return push.call(request, null);
  }) as typeof request.push;
  if (buffered !== null) take(buffered);
}

/** The stream's own flag that its last piece has been pushed. HTTP/2 has no public one. */
function hasEnded(request: IncomingMessage): boolean {
  return (request as unknown as { _readableState?: { ended?: boolean } })._readableState?.ended === true;
}

/** Lets the stream look unread again, for layers that ask if another has read it. */
function restoreRead(request: IncomingMessage): void {
  const state = (request as unknown as { _readableState?: { dataEmitted?: boolean } })._readableState;
  if (state) state.dataEmitted = false;
}
