/** The canonical form of contents, the same in every language, and the global ID. */

import { NotCanonical } from "./errors.js";
import { writeJsonText } from "./jsontext.js";
import { JsonWriter, quoted, refuse, step } from "./jsonwriter.js";
import { md5 } from "./md5.js";
import { parseNumber, plain } from "./numbers.js";

type Value = null | boolean | number | bigint | string | Date | Decimal | Instant | PlainDate | Uuid | JsonText;

/**
 * What contents and fingerprints are made of: values, arrays, maps with text keys, and objects with such members, interfaces too. Numbers
 * are integers: send integer minor units, a `Decimal` or text for others. Refuses functions, symbols and sets.
 */
export type Contents<C> = C extends Value
  ? C
  : C extends ((...args: never[]) => unknown) | symbol | ReadonlySet<unknown> | Uint8Array
    ? never
    : C extends ReadonlyMap<infer Key, infer Member>
      ? ReadonlyMap<Key & string, Contents<Member>>
      : C extends object
        ? { readonly [Name in keyof C]: Contents<C[Name]> }
        : never;

/** The same where it is checked at run time only. */
export type AnyContents = Value | object;

class Text {
  constructor(readonly text: string) {}
  toString(): string {
    return this.text;
  }
}

/** A decimal number, such as `new Decimal("11.10")`. Its canonical form is text in plain notation. */
export class Decimal extends Text {
  declare private readonly brand: "decimal";
}

/** An instant with a zone in RFC 3339, for what a `Date` cannot hold: `new Instant("2026-11-22T10:30:00.000123+01:00")`. */
export class Instant extends Text {
  declare private readonly brand: "instant";
}

/** A date: `new PlainDate("2026-11-22")`. */
export class PlainDate extends Text {
  declare private readonly brand: "date";
}

/** A UUID, in upper or lower case. */
export class Uuid extends Text {
  declare private readonly brand: "uuid";
}

/** Contents that are JSON already: read as the gateway reads them (RFC 8785), numbers included. */
export class JsonText extends Text {
  declare private readonly brand: "json";
}

const DECIMAL_CHARS_MAX = 128;

/** MD5 of app key, operation and canonical contents, in hex: the same operation, the same ID, in every language. */
export function globalId(app: string, operation: string, contents: AnyContents): string {
  return idOf(app, operation, canonical(contents));
}

/** The same, of contents in canonical form. */
export function idOf(app: string, operation: string, text: string): string {
  return md5(new TextEncoder().encode(`${app}\n${operation}\n${text}`));
}

/** The canonical form (RFC 8785). Throws `NotCanonical` where others could read something else, or where nothing has a value. */
export function canonical(contents: AnyContents): string {
  const writer = new Writer();
  const text = writer.value(contents, 0, "$");
  if (!writer.hasValue) {
    throw new NotCanonical(
      "empty",
      "$",
      'contents hold no value, only null, "", {} or []: pass the fields that distinguish this operation',
    );
  }
  return text;
}

/** The same, also for what holds no value, as a fingerprint may. */
export function canonicalOrEmpty(contents: AnyContents): string {
  return new Writer().value(contents, 0, "$");
}

/** Writes one value. */
class Writer extends JsonWriter {
  value(value: unknown, depth: number, path: string): string {
    switch (typeof value) {
      case "string":
        return this.text(value, path);
      case "boolean":
        this.hasValue = true;
        return String(value);
      case "number":
        if (!Number.isInteger(value)) {
          return refuse("float", path, "a binary float: send integer minor units, a Decimal, or text");
        }
        return this.integer(value, path);
      case "bigint":
        return this.integer(value, path);
      case "object":
        return value === null ? "null" : this.object(value, depth, path);
      case "undefined":
        return refuse("unsupported_type", path, "undefined: leave it out, or give null");
      default:
        return refuse("unsupported_type", path, `a ${typeof value} is not JSON: send it as text`);
    }
  }

  private integer(value: number | bigint, path: string): string {
    const size = value < 0 ? -value : value;
    if (size > Number.MAX_SAFE_INTEGER) return refuse("integer_too_large", path, "an integer of 2^53 or more: send it as text");
    this.hasValue = true;
    // -0 is 0.
    return value === 0 ? "0" : String(value);
  }

  private object(value: object, depth: number, path: string): string {
    if (value instanceof Text) return this.typed(value, depth, path);
    if (value instanceof Date) {
      if (Number.isNaN(value.getTime())) return refuse("unsupported_type", path, "an invalid Date");
      return this.text(instant(value.toISOString(), path), path);
    }
    if (Array.isArray(value)) {
      this.enter(depth, path);
      // Not `map`, which passes over holes.
      const items = Array.from(value, (item, at) => this.value(item, depth + 1, `${path}[${at}]`));
      return `[${items.join()}]`;
    }
    if (value instanceof Map) {
      const keys = [...value.keys()];
      if (!keys.every((key) => typeof key === "string")) return refuse("key_not_text", path, "a Map whose keys are not strings");
      return this.members(keys, (key) => value.get(key), depth, path);
    }
    const prototype = Object.getPrototypeOf(value);
    if (prototype !== Object.prototype && prototype !== null) {
      const name = value.constructor?.name ?? "object";
      return refuse("unsupported_type", path, `a ${name} has no written names: give a plain object`);
    }
    return this.members(Object.keys(value), (key) => (value as Record<string, unknown>)[key], depth, path);
  }

  private members(keys: string[], member: (key: string) => unknown, depth: number, path: string): string {
    this.enter(depth, path);
    // The default order is by UTF-16 code units, as the RFC requires.
    const texts = keys.sort().map((key) => {
      const at = path + step(key);
      return `${quoted(key, at)}:${this.value(member(key), depth + 1, at)}`;
    });
    return `{${texts.join()}}`;
  }

  private typed(value: Text, depth: number, path: string): string {
    const text = String(value.text);
    if (value instanceof JsonText) return writeJsonText(this, text, depth, path);
    if (value instanceof Decimal) return this.text(decimal(text, path), path);
    if (value instanceof Instant) return this.text(instant(text, path), path);
    if (value instanceof Uuid) {
      if (!/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(text))
        refuse("unsupported_type", path, "not a UUID in 36 characters");
      return this.text(text.toLowerCase(), path);
    }
    if (!/^\d{4}-\d\d-\d\d$/.test(text) || !isDate(text)) refuse("unsupported_type", path, "not a date: write 2026-11-22");
    return this.text(text, path);
  }
}

function isDate(text: string): boolean {
  const date = new Date(`${text}T00:00:00Z`);
  return !Number.isNaN(date.getTime()) && date.toISOString().startsWith(text);
}

/** In UTC with `Z`, without trailing zeros of the fraction. */
function instant(text: string, path: string): string {
  const parts = /^(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|z|[+-]\d\d:\d\d)?$/.exec(text);
  if (!parts || !isDate(parts[1] as string))
    return refuse("unsupported_type", path, "not an instant: write 2026-11-22T09:30:00Z");
  const [, date, time, fraction = "", zone] = parts;
  if (zone === undefined) return refuse("no_zone", path, "an instant without a zone: add Z or an offset");
  const moment = new Date(`${date}T${time}${zone.toUpperCase()}`);
  if (Number.isNaN(moment.getTime())) return refuse("unsupported_type", path, "not an instant: write 2026-11-22T09:30:00Z");
  return `${moment.toISOString().slice(0, 19)}${fraction.replace(/\.?0+$/, "")}Z`;
}

function decimal(text: string, path: string): string {
  if (/^[+-]?(s?nan|inf(inity)?)$/i.test(text)) refuse("not_finite", path, "a decimal that is not a finite number");
  const number = parseNumber(text.replace(/^\+/, ""), true);
  if (!number) return refuse("unsupported_type", path, "not a decimal: write 11.10 or 1E+3");
  const written = number.digits.length + Math.abs(number.point) > 2 * DECIMAL_CHARS_MAX ? null : plain(number);
  if (written === null || written.length > DECIMAL_CHARS_MAX) {
    return refuse("too_long", path, `a decimal of more than ${DECIMAL_CHARS_MAX} characters: send it as text`);
  }
  return written;
}
