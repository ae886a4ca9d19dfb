/** Plays the gateways of one behaviour vector. */

import { createHash } from "node:crypto";
import net from "node:net";
import { setTimeout as pause } from "node:timers/promises";

import type { MemoryGateway } from "../src/testing.js";

// biome-ignore lint/suspicious/noExplicitAny: vectors are any JSON.
export type Any = any;

export interface Vector {
  name: string;
  needs?: string[];
  options?: Any;
  exchanges: { at?: number; expect: Any; answer: Any; after_ms?: number }[];
  calls: Any[];
}

/** A promise that others resolve. */
function gate(): { passed: Promise<void>; pass: () => void } {
  let pass = () => {};
  const passed = new Promise<void>((resolve) => {
    pass = resolve;
  });
  return { passed, pass };
}

export class Script {
  readonly urls: string[] = [];
  readonly failures: string[] = [];
  readonly read: ReturnType<typeof gate>[];
  readonly answered: ReturnType<typeof gate>[];
  next = 0;
  private readonly values = new Map<string, unknown>();
  private readonly servers: net.Server[] = [];
  private readonly sockets = new Set<net.Socket>();
  private last = performance.now();

  constructor(
    private readonly common: Any,
    private readonly vector: Vector,
  ) {
    this.read = vector.exchanges.map(gate);
    this.answered = vector.exchanges.map(gate);
  }

  async start(kinds: string[]): Promise<void> {
    for (const [at, kind] of kinds.entries()) this.urls.push(await this.server(at, kind));
  }

  close(): void {
    for (const server of this.servers) server.close();
    for (const socket of this.sockets) socket.destroy();
  }

  /** With the placeholders replaced by their values. */
  filled(value: Any): Any {
    if (typeof value === "string") {
      let text = value;
      for (const [name, known] of this.values) if (typeof known === "string") text = text.replaceAll(name, known);
      for (const [at, url] of this.urls.entries()) text = text.replaceAll(`$url${at}`, url);
      return text;
    }
    if (Array.isArray(value)) return value.map((item) => this.filled(item));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, this.filled(inner)]));
  }

  private async server(at: number, kind: string): Promise<string> {
    if (kind === "unresolvable") return `http://${"a".repeat(64)}.invalid:80`;
    // There is no listener. The port of a server that is closed may be given to another case.
    if (kind === "refused") return "http://127.0.0.1:1";
    const server = net.createServer((socket) => {
      this.sockets.add(socket);
      socket.on("error", () => {});
      socket.on("close", () => this.sockets.delete(socket));
      if (kind === "closing") socket.destroy();
      else if (kind === "silent") socket.resume();
      else this.serve(at, socket);
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const url = `http://127.0.0.1:${(server.address() as net.AddressInfo).port}`;
    this.servers.push(server);
    return url;
  }

  private serve(at: number, socket: net.Socket): void {
    let text = Buffer.alloc(0);
    let busy = Promise.resolve();
    socket.on("data", (piece) => {
      text = Buffer.concat([text, piece]);
      const end = text.indexOf("\r\n\r\n");
      if (end < 0) return;
      const head = text.subarray(0, end).toString();
      const length = Number(/content-length: *(\d+)/i.exec(head)?.[1] ?? 0);
      if (text.length < end + 4 + length) return;
      const body = text.subarray(end + 4, end + 4 + length).toString();
      text = text.subarray(end + 4 + length);
      busy = busy.then(() => this.exchange(at, head, body, socket));
    });
  }

  private async exchange(at: number, head: string, body: string, socket: net.Socket): Promise<void> {
    const number = this.next++;
    const exchange = this.vector.exchanges[number];
    const [line = "", ...lines] = head.split("\r\n");
    const fail = (text: string) => this.failures.push(`request ${number + 1}: ${text}`);
    if (!exchange) {
      fail(`one too many: ${line} ${body}`);
      socket.destroy();
      return;
    }
    const expected = use(this.common.requests, exchange.expect);
    if (at !== (exchange.at ?? 0)) fail(`came to gateway ${at}`);
    if (line !== `${expected.method} ${expected.path} HTTP/1.1`) fail(`${line}, not ${expected.method} ${expected.path}`);
    const headers = new Map(
      lines.map((header) => [header.split(":")[0]?.toLowerCase(), header.slice(header.indexOf(":") + 1).trim()]),
    );
    for (const [name, value] of Object.entries(expected.headers ?? {})) {
      if (headers.get(name) !== this.filled(value)) fail(`${name} is ${headers.get(name)}`);
    }
    const got = body === "" ? undefined : JSON.parse(body);
    if (expected.body !== undefined && !this.matches(expected.body, got)) {
      fail(`the body is ${body}, not ${JSON.stringify(this.filled(expected.body))}`);
    }
    const early = (exchange.after_ms ?? 0) - (performance.now() - this.last);
    if (exchange.after_ms && early > 0) fail(`came ${early} ms too early`);
    const answer = this.filled(use(this.common.answers, exchange.answer));
    this.read[number]?.pass();
    if (answer.delay_ms) await pause(answer.delay_ms);
    // Before it is written: the client may have it before the write returns.
    if (answer !== "silence") this.last = performance.now();
    this.reply(answer, socket);
    this.answered[number]?.pass();
  }

  private reply(answer: Any, socket: net.Socket): void {
    if (answer === "silence") return;
    if (answer === "close") return void socket.end();
    if (answer === "reset") return void socket.resetAndDestroy();
    const { status } = answer;
    const body = "body" in answer ? JSON.stringify(answer.body) : (answer.text ?? "");
    const type = status >= 400 ? "application/problem+json" : "application/json";
    const headers = { "content-type": type, "content-length": Buffer.byteLength(body), ...answer.headers };
    const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
    const text = `HTTP/1.1 ${status} Text\r\n${lines.join("")}\r\n${body}`;
    if (answer.cut_after_bytes !== undefined) socket.end(text.slice(0, answer.cut_after_bytes));
    else socket.write(text);
    if (headers.connection === "close") socket.end();
  }

  /** Compares, and keeps the values of placeholders. */
  private matches(expected: Any, got: Any): boolean {
    if (typeof expected === "string") {
      if (expected === "$rest") return /^\d+(ms|s)$/.test(got);
      if (/^\$(?!url)/.test(expected) && !this.values.has(expected)) {
        if ([...this.values.values()].includes(got)) return false;
        this.values.set(expected, got);
        if (expected === "$nonce") {
          const hash = createHash("sha256").update(`1792488615123456-${got}`).digest("hex");
          this.values.set("$attempt_hash", hash.slice(0, 8));
        }
        return true;
      }
      return this.filled(expected) === got;
    }
    if (expected === null || typeof expected !== "object") return expected === got;
    if (got === null || typeof got !== "object" || Array.isArray(expected) !== Array.isArray(got)) return false;
    if (Array.isArray(expected))
      return expected.length === got.length && expected.every((item, at) => this.matches(item, got[at]));
    const names = new Set([...Object.keys(expected), ...Object.keys(got).filter((name) => got[name] !== null)]);
    return [...names].every((name) => name in expected && this.matches(expected[name], got[name]));
  }
}

/** The named request or answer, with its other members merged into it. */
function use(table: Any, value: Any): Any {
  if (typeof value === "string") return table[value] ?? value;
  if (!value.use) return value;
  const base = table[value.use];
  return { ...base, ...value, body: { ...base.body, ...value.body }, headers: { ...base.headers, ...value.headers } };
}

/** Lets a gateway in memory answer claims by an outage policy, until `policy` is null. */
export function answersBy(gateway: MemoryGateway, policy: () => string | null): void {
  const call = (gateway as Any).call.bind(gateway);
  (gateway as Any).call = async (app: string, request: Any) => {
    const answer = await call(app, request);
    if (request.path === "/v1/claims") answer.fields = { ...answer.fields, degraded: policy() };
    return answer;
  };
}
