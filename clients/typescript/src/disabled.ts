/** Answers in place of a gateway while the client is switched off: everything runs, and nothing is claimed. */

import { idOf } from "./contents.js";
import type { Fields, Request, Server } from "./server.js";

/** Long enough that nothing is renewed, and short enough for a timer. */
const LEASE_MS = 24 * 3_600_000;

export const DISABLED = "disabled";

export class NoServer implements Server {
  readonly url = "disabled:";

  constructor(private readonly app: string) {}

  call({ path, body }: Request): Promise<{ status: number; fields: Fields }> {
    return Promise.resolve(this.answer(path, body === "" ? {} : JSON.parse(body)));
  }

  close(): void {}

  private answer(path: string, body: Members): { status: number; fields: Fields } {
    if (path.endsWith("/batch")) {
      const one = path.replace("/batch", path.includes("outcomes") ? "/outcome" : "");
      const items = (body.items ?? []).map((item) => {
        const { status, fields } = this.answer(one, item);
        return { status, ...fields };
      });
      return { status: 200, fields: { items } };
    }
    const held = { attempt: "none", lease_ms: LEASE_MS, degraded: DISABLED };
    if (path === "/v1/claims") {
      // It has the canonical form, which JSON keeps.
      const id = idOf(this.app, body.operation ?? "", JSON.stringify(body.contents));
      return { status: 201, fields: { global_id: id, ...held } };
    }
    if (path.endsWith("/holds")) return { status: 201, fields: { ...held, name: path.split("/")[3] ?? "", fence: 0, holds: 1 } };
    if (path.endsWith("/outcome")) {
      const id = body.global_id ?? path.split("/")[3] ?? "";
      return { status: 200, fields: { global_id: id, degraded: DISABLED } };
    }
    if (path.endsWith("/renewal")) return { status: 200, fields: held };
    if (path.endsWith("/release")) return { status: 200, fields: { holds: 0 } };
    return { status: 404, fields: { code: "not_found" } };
  }
}

interface Members {
  operation?: string;
  contents?: unknown;
  global_id?: string;
  items?: Members[];
}
