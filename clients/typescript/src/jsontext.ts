/** JSON text in canonical form, as the gateway reads it: stricter than `JSON.parse`, which folds keys and digits. */

import { type JsonWriter, quoted, refuse, step } from "./jsonwriter.js";
import { isBeyond, parseNumber } from "./numbers.js";

export function writeJsonText(writer: JsonWriter, text: string, depth: number, path: string): string {
  return new Parser(writer, text, path).whole(depth);
}

class Parser {
  private at = 0;

  constructor(
    private readonly writer: JsonWriter,
    private readonly text: string,
    private readonly root: string,
  ) {}

  whole(depth: number): string {
    const written = this.value(depth, this.root);
    this.space();
    if (this.at < this.text.length) this.fail("something follows the value");
    return written;
  }

  private fail(detail: string): never {
    return refuse("not_json", this.root, `not JSON at character ${this.at}: ${detail}`);
  }

  private space(): void {
    while (this.at < this.text.length && " \t\r\n".includes(this.text.charAt(this.at))) this.at++;
  }

  private take(char: string): boolean {
    this.space();
    const there = this.text[this.at] === char;
    if (there) this.at++;
    return there;
  }

  private value(depth: number, path: string): string {
    this.space();
    const first = this.text[this.at];
    if (first === undefined) return this.fail("it ends too early");
    if (first === "{" || first === "[") {
      this.writer.enter(depth, path);
      this.at++;
      return first === "{" ? this.object(depth, path) : this.list(depth, path);
    }
    if (first === '"') return this.writer.text(this.string(), path);
    for (const word of ["null", "true", "false"]) {
      if (this.text.startsWith(word, this.at)) {
        this.at += word.length;
        this.writer.hasValue ||= word !== "null";
        return word;
      }
    }
    return this.number(path);
  }

  private list(depth: number, path: string): string {
    const items: string[] = [];
    if (this.take("]")) return "[]";
    for (;;) {
      items.push(this.value(depth + 1, `${path}[${items.length}]`));
      if (this.take("]")) return `[${items.join()}]`;
      if (!this.take(",")) this.fail("a comma or ] is missing");
    }
  }

  private object(depth: number, path: string): string {
    const members = new Map<string, string>();
    if (this.take("}")) return "{}";
    for (;;) {
      this.space();
      if (this.text[this.at] !== '"') this.fail("a name is missing");
      const name = this.string();
      if (members.has(name)) this.fail("a key occurs twice in its object");
      if (!this.take(":")) this.fail("a colon is missing");
      const at = path + step(name);
      members.set(name, `${quoted(name, at)}:${this.value(depth + 1, at)}`);
      if (this.take("}")) break;
      if (!this.take(",")) this.fail("a comma or } is missing");
    }
    return `{${[...members.keys()]
      .sort()
      .map((name) => members.get(name))
      .join()}}`;
  }

  private string(): string {
    const from = this.at;
    for (this.at++; this.text[this.at] !== '"'; this.at++) {
      if (this.at >= this.text.length) this.fail("a string does not end");
      if (this.text[this.at] === "\\") this.at++;
    }
    this.at++;
    try {
      return JSON.parse(this.text.slice(from, this.at)) as string;
    } catch {
      return this.fail("a string with a control character or an unknown escape");
    }
  }

  private number(path: string): string {
    const literal = /^[-+.0-9eE]*/.exec(this.text.slice(this.at, this.at + 70_000))?.[0] ?? "";
    const number = parseNumber(literal, false);
    if (!number) return this.fail("no value");
    this.at += literal.length;
    this.writer.hasValue = true;
    const double = Number(literal);
    if (!Number.isFinite(double)) return refuse("not_finite", path, "a number larger than any double: send it as text");
    if (number.digits === "") return "0";
    if (double === 0) return refuse("not_finite", path, "a number so small that it would become 0: send it as text");
    const size = Math.abs(double);
    if (isBeyond(number) || (size >= 2 ** 53 && size < 1e21)) {
      return refuse("integer_too_large", path, "a number beyond 2^53 - 1, where digits get lost: send it as text");
    }
    if (number.digits.length > 17)
      return refuse("too_long", path, "a number of more than 17 significant digits: send it as text");
    return JSON.stringify(double);
  }
}
