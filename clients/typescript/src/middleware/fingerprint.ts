/** The fingerprint of a request: the parts that must be the same on a repeat with the same key. The same as that of the proxy. */

import { createHash } from "node:crypto";

import { canonicalOrEmpty, JsonText } from "../contents.js";
import type { Body } from "./body.js";
import { linesOf } from "./key.js";

export const FINGERPRINT_PARTS = ["method", "path", "query", "content-type", "if-match", "body", "body:json"] as const;
export type FingerprintPart = (typeof FINGERPRINT_PARTS)[number];
export const FINGERPRINT_DEFAULT: readonly FingerprintPart[] = ["method", "path", "query", "content-type", "if-match", "body"];

/** Properties that every request has, in every framework. */
export interface Incoming {
  readonly method: string;
  /** The URL of the request line, with the mount point. */
  readonly url: string;
  /** Names and values, one after the other, each line apart. */
  readonly rawHeaders: readonly string[];
}

const METHOD_OVERRIDES = ["x-http-method-override", "x-http-method", "x-method-override"];

/** The names of the fields that change the method for frameworks that read them. */
export function methodOverrides(rawHeaders: readonly string[]): string[] {
  return [...new Set(namesOf(rawHeaders))].filter((name) => METHOD_OVERRIDES.includes(name.replaceAll("_", "-")));
}

export function fingerprintOf(
  parts: readonly FingerprintPart[],
  { method, url, rawHeaders }: Incoming,
  body: Body,
): Record<string, string | null> {
  const [path, query] = split(url);
  const form = body.kind === "bytes" ? formDigest(rawHeaders, body.bytes) : null;
  const members: Record<string, string | null> = {};
  for (const part of parts) {
    if (part === "method") {
      members.method = method;
      for (const name of methodOverrides(rawHeaders)) members[name] = fieldDigest(rawHeaders, name);
    } else if (part === "path") members.path = normal(path);
    else if (part === "query") members.query = query === null ? null : normal(query);
    // The boundary of a form may differ from try to try.
    else if (part === "content-type") members[part] = form ? "multipart/form-data" : fieldDigest(rawHeaders, part, lower);
    else if (part === "if-match") members[part] = fieldDigest(rawHeaders, part);
    // A parsed value has no bytes. It has another name, so that the two cannot be confused.
    else if (body.kind === "parsed") members.parsed = digest(canonicalValue(body.value));
    else members.body = form ?? (part === "body:json" ? jsonDigest(body.bytes) : digest(body.bytes));
  }
  return members;
}

export function digest(text: string | Uint8Array): string {
  return createHash("sha256").update(text).digest("hex");
}

/** Path and query of a target, which may be in absolute form. */
function split(url: string): [string, string | null] {
  const target = url.replace(/^[a-z][a-z0-9+.-]*:\/\/[^/?#]*/i, "").replace(/#.*$/s, "");
  const at = target.indexOf("?");
  return at < 0 ? [target || "/", null] : [target.slice(0, at) || "/", target.slice(at + 1)];
}

/** One spelling of escapes (RFC 3986, 6.2.2): those of unreserved characters are decoded, the others have capitals. */
function normal(text: string): string {
  return text.replace(/%([0-9a-f]{2})/gi, (sent, digits) => {
    const char = String.fromCharCode(Number.parseInt(digits, 16));
    return /[A-Za-z0-9._~-]/.test(char) ? char : sent.toUpperCase();
  });
}

/** A to Z only: names and most values of a media type are compared without case. */
function lower(text: string): string {
  return text.replace(/[A-Z]+/g, (capitals) => capitals.toLowerCase());
}

function namesOf(rawHeaders: readonly string[]): string[] {
  return rawHeaders.filter((_, at) => at % 2 === 0).map((name) => name.toLowerCase());
}

/** The digest of a field's lines, in order: they may be longer than a fingerprint. */
function fieldDigest(rawHeaders: readonly string[], name: string, spelt = (line: string) => line): string | null {
  const lines = linesOf(rawHeaders, name).map(spelt);
  if (lines.length === 0) return null;
  const hash = createHash("sha256");
  for (const line of lines) hash.update(prefixed(Buffer.from(line, "latin1")));
  return hash.digest("hex");
}

function prefixed(bytes: Buffer): Buffer {
  const length = Buffer.alloc(8);
  length.writeBigUInt64BE(BigInt(bytes.length));
  return Buffer.concat([length, bytes]);
}

/** The digest of a JSON value; that of the bytes if they are not JSON, or JSON that readers understand differently. */
function jsonDigest(bytes: Buffer): string {
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    return digest(canonicalOrEmpty(new JsonText(text)));
  } catch {
    return digest(bytes);
  }
}

/** The value that a parser left. Forms of several parsers nest objects without a prototype. */
function canonicalValue(value: unknown): string {
  if (typeof value === "string" || value instanceof Uint8Array) return digest(value);
  return canonicalOrEmpty(new JsonText(JSON.stringify(value) ?? "null"));
}

/** The digest of a form's parts without the boundary. Null if the body is no form, or one that readers could understand differently. */
function formDigest(rawHeaders: readonly string[], body: Buffer): string | null {
  const types = linesOf(rawHeaders, "content-type");
  const boundary = types.length === 1 ? boundaryOf(types[0] as string) : null;
  if (boundary === null) return null;
  const delimiter = Buffer.from(`\r\n--${boundary}`, "latin1");
  const first = delimiter.subarray(2);
  if (!body.subarray(0, first.length).equals(first)) return null;
  const hash = createHash("sha256");
  let at = first.length;
  for (;;) {
    if (body.toString("latin1", at, at + 2) === "--") {
      const end = body.toString("latin1", at + 2);
      return end === "" || end === "\r\n" ? hash.digest("hex") : null;
    }
    if (body.toString("latin1", at, at + 2) !== "\r\n") return null;
    // No line end is that of two delimiters: some readers see an empty part between them.
    const end = body.indexOf(delimiter, at);
    if (end <= at) return null;
    hash.update(prefixed(body.subarray(at + 2, end)));
    at = end + delimiter.length;
  }
}

function boundaryOf(contentType: string): string | null {
  const [name, ...parameters] = contentType.split(";");
  if (name?.trim().toLowerCase() !== "multipart/form-data") return null;
  const boundaries = parameters.flatMap((parameter) => {
    const at = parameter.indexOf("=");
    const name = parameter.slice(0, Math.max(at, 0)).trim().toLowerCase();
    const value = parameter
      .slice(at + 1)
      .trim()
      .replace(/^"+|"+$/g, "");
    // `boundary*` and `boundary*0` (RFC 2231) are boundaries to some readers.
    return name.startsWith("boundary") ? [{ name, value }] : [];
  });
  const [boundary] = boundaries;
  if (boundaries.length !== 1 || boundary?.name !== "boundary") return null;
  // At most 70 characters (RFC 2046, 5.1.1). Some readers end the type at a comma.
  return /^[^,]{1,70}$/.test(boundary.value) ? boundary.value : null;
}
