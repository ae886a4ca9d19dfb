/** The stored form of a response, the same in the proxy and in every language, and its replay. */

/** Of the fields of a head, of those of trailers, and of a field of a tombstone. */
const FIELDS_BYTES_MAX = 32 * 1024;
/** The default of the gateway's `limits.result_bytes`. */
const STORED_BYTES_MAX = 64 * 1024;
const TOMBSTONE_FIELDS = ["location", "etag"];
/** Statuses of responses without a body. */
export const EMPTY = [204, 205, 304];

/** Names in lower case and values, in order, each line apart. Each character of a value is one byte. */
export type FieldLines = [name: string, value: string][];

export interface StoredResponse {
  v: 1;
  status: number;
  /** Seconds since the epoch at which it was complete. */
  at: number;
  /** Names of trailers begin with a colon. */
  fields: FieldLines;
  /** In Base64; none in a tombstone. */
  body?: string;
}

/** Response to a caller. */
export interface Reply {
  status: number;
  fields: FieldLines;
  body: Buffer;
  trailers: FieldLines;
}

/** Fields that concern one connection, or one caller. */
const NEVER = new Set([
  ...["connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "content-length", "date"],
  ...["idempotent-replayed", "set-cookie", "set-cookie2", "www-authenticate"],
]);
const PER_CALLER = ["set-cookie", "set-cookie2", "www-authenticate"];

/** The fields that a service stores. */
export class StoredFields {
  private readonly with: readonly string[];
  private readonly without: readonly string[];

  constructor(storeWith: readonly string[] = [], storeWithout: readonly string[] = []) {
    for (const [option, names] of Object.entries({ storeWith, storeWithout })) {
      const wrong =
        !Array.isArray(names) || names.find((name) => typeof name !== "string" || !/^[\w!#$%&'*+.^`|~-]+$/.test(name));
      if (wrong === true || wrong !== undefined) throw new TypeError(`${option} is a list of field names, such as ["X-Session"]`);
    }
    this.with = storeWith.map((name) => name.toLowerCase());
    this.without = storeWithout.map((name) => name.toLowerCase());
    const never = this.with.find((name) => !PER_CALLER.includes(name) && !isDefault(name));
    if (never) throw new TypeError(`storeWith has ${never}, which concerns a single connection or the gateway; leave it out`);
  }

  /** Those of the fields that are stored. `Connection` may name more that are not. */
  of(fields: FieldLines): FieldLines {
    const named = new Set(
      fields
        .filter(([name]) => name === "connection")
        .flatMap(([, value]) => value.split(",").map((each) => each.trim().toLowerCase())),
    );
    return fields.filter(
      ([name]) => (isDefault(name) || this.with.includes(name)) && !this.without.includes(name) && !named.has(name),
    );
  }
}

function isDefault(name: string): boolean {
  return !NEVER.has(name) && !name.startsWith("proxy-") && !/^oncegate[-_]/.test(name);
}

/** The stored form. Without a body, or if it is too long for a result, it is a tombstone. */
export function stored(
  status: number,
  fields: FieldLines,
  trailers: FieldLines,
  body: Buffer | null,
  allowed: StoredFields,
): StoredResponse {
  const at = Math.floor(Date.now() / 1000);
  const kept = allowed.of(fields);
  const tombstone: StoredResponse = {
    v: 1,
    status,
    at,
    fields: kept.filter(([name, value]) => TOMBSTONE_FIELDS.includes(name) && value.length <= FIELDS_BYTES_MAX),
  };
  if (body === null) return tombstone;
  const last = allowed.of(trailers);
  if (bytesOf(kept) > FIELDS_BYTES_MAX || bytesOf(last) > FIELDS_BYTES_MAX) return tombstone;
  const all: FieldLines = [...kept, ...last.map(([name, value]): [string, string] => [`:${name}`, value])];
  const whole: StoredResponse = { v: 1, status, at, fields: all, body: body.toString("base64") };
  return Buffer.byteLength(JSON.stringify(whole)) > STORED_BYTES_MAX ? tombstone : whole;
}

function bytesOf(fields: FieldLines): number {
  return fields.reduce((sum, [name, value]) => sum + name.length + value.length, 0);
}

/** Null if it is no stored response. */
export function readStored(value: unknown): StoredResponse | null {
  const { v, status, at, fields, body } = (value ?? {}) as Partial<StoredResponse>;
  const isFields =
    Array.isArray(fields) &&
    fields.every((field) => Array.isArray(field) && typeof field[0] === "string" && typeof field[1] === "string");
  if (v !== 1 || typeof status !== "number" || typeof at !== "number" || !isFields) return null;
  if (!Number.isInteger(status) || status < 200 || status > 599) return null;
  const valid = fields.filter(([name, value]) => /^:?[\w!#$%&'*+.^`|~-]+$/.test(name) && /^[\t\x20-\x7e\x80-\xff]*$/.test(value));
  const isBody = typeof body === "string" && /^[A-Za-z0-9+/]*={0,2}$/.test(body) && body.length % 4 === 0;
  return { v: 1, status, at, fields: valid, ...(isBody && { body }) };
}

/** The response to a repeat; null if it is a tombstone. The store is not believed more than a handler: fields are filtered again. */
export function replay(response: StoredResponse, allowed: StoredFields): Reply | null {
  if (response.body === undefined) return null;
  const lower = response.fields.map(([name, value]): [string, string] => [name.toLowerCase(), value]);
  const fields = allowed.of(lower.filter(([name]) => !name.startsWith(":")));
  const earlier = Number(fields.find(([name]) => name === "age")?.[1] ?? 0) || 0;
  const age = Math.max(0, Math.floor(Date.now() / 1000) - response.at) + earlier;
  const trailers = lower
    .filter(([name]) => name.startsWith(":"))
    .map(([name, value]): [string, string] => [name.slice(1), value]);
  return {
    status: response.status,
    fields: [...fields.filter(([name]) => name !== "age"), ["idempotent-replayed", "true"], ["age", String(age)]],
    body: EMPTY.includes(response.status) ? Buffer.alloc(0) : Buffer.from(response.body, "base64"),
    trailers: allowed.of(trailers),
  };
}

/** Place of the effect of a response that is not stored. */
export function tombstoneFields(response: StoredResponse, allowed: StoredFields): FieldLines {
  return allowed.of(response.fields).filter(([name]) => TOMBSTONE_FIELDS.includes(name));
}
