/** What canonical JSON is written with, from values and from JSON text: texts, depth, paths and refusals. */

import { NotCanonical, type Reason } from "./errors.js";

const DEPTH_MAX = 32;

export class JsonWriter {
  /** There is a number, a boolean or a text with a character in it: one unset ID must not name every order. */
  hasValue = false;

  text(text: string, path: string): string {
    this.hasValue ||= text !== "";
    return quoted(text, path);
  }

  enter(depth: number, path: string): void {
    if (depth === DEPTH_MAX) refuse("too_deep", path, `nested deeper than ${DEPTH_MAX} levels: send it as text`);
  }
}

export function refuse(reason: Reason, path: string, detail: string): never {
  throw new NotCanonical(reason, path, detail);
}

export function step(name: string): string {
  return /^\w+$/.test(name) ? `.${name}` : `[${JSON.stringify(name)}]`;
}

export function quoted(text: string, path: string): string {
  if (/\p{Surrogate}/u.test(text)) refuse("surrogate", path, "a text holds half of a surrogate pair");
  return JSON.stringify(text);
}
