/** A gateway in one process: enough for what the adapters do with its answers. */

import http from "node:http";
import type { AddressInfo } from "node:net";

import { Client } from "../src/index.js";
import type { Any } from "./gateway.js";

export interface Stub {
  client: Client;
  outcomes: string[];
  close: () => void;
}

export async function stub(): Promise<Stub> {
  const claims = new Map<string, Any>();
  const outcomes: string[] = [];
  const server = http.createServer(async (request, response) => {
    let text = "";
    for await (const piece of request) text += piece;
    const body = JSON.parse(text);
    const reply = (status: number, fields: Any) => response.writeHead(status).end(JSON.stringify(fields));
    const id = request.url?.split("/")[3] ?? "";
    if (request.url?.endsWith("/outcome")) {
      outcomes.push(body.outcome);
      if (body.outcome === "failure") claims.delete(id);
      else Object.assign(claims.get(id), { state: body.outcome === "success" ? "succeeded" : "unknown", result: body.result });
      return reply(200, { global_id: id, state: "succeeded", late: false });
    }
    const global_id = client.globalId(body.operation, body.contents);
    const fingerprint = JSON.stringify(body.fingerprint);
    const known = claims.get(global_id);
    if (!known) {
      claims.set(global_id, { state: "in_progress", fingerprint });
      return reply(201, { global_id, attempt: `1-${body.attempt_nonce}`, lease_ms: 30_000, fence: 7 });
    }
    if (known.fingerprint !== fingerprint) return reply(422, { code: "fingerprint_mismatch", global_id });
    return reply(409, { code: "duplicate", global_id, state: known.state, result: known.result, retry_after_ms: 50 });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const client = new Client([`http://127.0.0.1:${(server.address() as AddressInfo).port}`], { onEvent: () => {} });
  const close = () => {
    client.close();
    server.close();
  };
  return { client, outcomes, close };
}
