/** One gateway: single HTTP calls over connections that are kept, and the causes of failures. */

import http from "node:http";
import https from "node:https";

import type { Cause } from "./errors.js";
import type { Json } from "./values.js";

/** Less than the gateway's own limit, 75 seconds by default. */
const IDLE_MS_MAX = 50_000;
const IDLE_CONNECTIONS_MAX = 64;
/** More than any answer of a gateway has by its default limits. */
const ANSWER_BYTES_MAX = 16 * 1024 * 1024;

/** The members of all answers of a gateway; those that are not known are ignored. */
export interface Fields {
  global_id?: string;
  /** Of a lock. */
  name?: string;
  attempt?: string;
  attempt_hash?: string;
  timestamp?: number;
  fence?: number | null;
  state?: string;
  repeated?: boolean;
  taken_over?: boolean;
  would_be?: string;
  claimed_at?: string;
  expires_at?: string | null;
  lease_ms?: number;
  waited_ms?: number;
  degraded?: string | null;
  late?: boolean | null;
  result?: Json;
  contents_verified?: boolean;
  code?: string;
  detail?: string;
  request_id?: string;
  retry_after_ms?: number;
  status?: number;
  items?: Fields[];
  mode?: string;
  limit?: number;
  holds?: number;
  waiting?: number;
}

export interface Answer {
  status: number;
  fields: Fields;
  /** When the request was sent, by the client's clock. */
  sent: number;
  /** The position of the gateway. */
  at: number;
}

export interface Request {
  method: "GET" | "POST";
  path: string;
  /** Names and values, one after the other. */
  headers: readonly string[];
  body: string;
  timeoutMs: number;
  /** On a separate connection. */
  fresh: boolean;
  /** True for a success that only a gateway can have given. */
  genuine: (fields: Fields) => boolean;
  /** Aborts the call itself. */
  signal?: AbortSignal | undefined;
}

/** One gateway, or what stands for one. */
export interface Server {
  readonly url: string;
  /** One call. A cause if no gateway answered: it is not known then if one has acted on the call. */
  call(request: Request): Promise<{ status: number; fields: Fields } | Cause>;
  close(): void;
}

/** Certificates, as `https.AgentOptions` takes them. */
export interface TlsOptions {
  ca?: string | Buffer;
  cert?: string | Buffer;
  key?: string | Buffer;
}

export class HttpServer implements Server {
  readonly url: string;
  // Without the brackets of an IPv6 address.
  private readonly hostname: string;
  private readonly port: string;
  private readonly host: string;
  private readonly prefix: string;
  private readonly agent: http.Agent;
  private readonly tls: object;
  private readonly send: typeof http.request;

  constructor(url: string, tls: TlsOptions | undefined) {
    this.url = url;
    const { protocol, host, hostname, port, pathname } = new URL(url);
    this.hostname = hostname.replace(/^\[|\]$/g, "");
    this.port = port;
    this.host = host;
    this.prefix = pathname.replace(/\/+$/, "");
    const keeping = { keepAlive: true, maxFreeSockets: IDLE_CONNECTIONS_MAX, timeout: IDLE_MS_MAX };
    this.tls = tls ?? {};
    const secure = protocol === "https:";
    this.agent = secure ? new https.Agent({ ...keeping, ...tls }) : new http.Agent(keeping);
    this.send = secure ? https.request : http.request;
  }

  async call(request: Request): Promise<{ status: number; fields: Fields } | Cause> {
    let reply: { status: number; type: string; text: string };
    try {
      reply = await this.exchange(request);
    } catch (error) {
      return this.failure(error as Error & { code?: string });
    }
    const fields = parsed(reply.text);
    if (fields && (reply.status < 300 ? request.genuine(fields) : typeof fields.code === "string")) {
      return { status: reply.status, fields };
    }
    return { url: this.url, kind: "not_a_gateway", detail: `answered ${reply.status}, ${reply.type}` };
  }

  close(): void {
    this.agent.destroy();
  }

  private exchange(call: Request): Promise<{ status: number; type: string; text: string }> {
    return new Promise((resolve, reject) => {
      // As a list they are written as they are, which takes less CPU. Node.js adds no host to a list.
      const length = String(Buffer.byteLength(call.body));
      const headers = [...call.headers, "host", this.host, "content-length", length];
      const request = this.send({
        hostname: this.hostname,
        port: this.port,
        path: this.prefix + call.path,
        ...this.tls,
        method: call.method,
        headers,
        agent: call.fresh ? false : this.agent,
        ...(call.signal ? { signal: call.signal } : {}),
      });
      const timer = setTimeout(() => request.destroy(new TimedOut(call.timeoutMs)), call.timeoutMs);
      const fail = (error: Error) => {
        clearTimeout(timer);
        reject(error);
      };
      request.on("error", fail);
      request.on("response", (response) => {
        const pieces: Buffer[] = [];
        let bytes = 0;
        response.on("data", (piece: Buffer) => {
          pieces.push(piece);
          bytes += piece.length;
          if (bytes > ANSWER_BYTES_MAX) request.destroy(new Error("the answer is too long"));
        });
        response.on("error", fail);
        response.on("end", () => {
          clearTimeout(timer);
          const type = String(response.headers["content-type"] ?? "without a content type").slice(0, 100);
          resolve({ status: response.statusCode ?? 0, type, text: Buffer.concat(pieces).toString("utf8") });
        });
      });
      request.end(call.body);
    });
  }

  private failure(error: Error & { code?: string }): Cause {
    const code = error.code ?? "";
    const detail = `${code} ${error.message}`.trim().slice(0, 300);
    return { url: this.url, kind: error instanceof TimedOut ? "timeout" : kindOf(code), detail, error };
  }
}

class TimedOut extends Error {
  constructor(timeoutMs: number) {
    super(`no answer within ${Math.round(timeoutMs)} ms`);
  }
}

function kindOf(code: string): Cause["kind"] {
  if (code === "ECONNREFUSED") return "refused";
  if (code === "ENOTFOUND" || code.startsWith("EAI_")) return "dns";
  if (code === "ETIMEDOUT") return "timeout";
  if (/^ERR_(SSL|TLS)|CERT|SIGNATURE|ISSUER|^EPROTO$/.test(code)) return "tls";
  return "connection";
}

function parsed(text: string): Fields | null {
  try {
    const fields = JSON.parse(text);
    return typeof fields === "object" && !Array.isArray(fields) ? fields : null;
  } catch {
    return null;
  }
}
