/** A page that sends orders, as its authors write it. */

import { idempotentFetch, type Operation, operation } from "@oncegate/client/fetch";

export const send: typeof fetch = idempotentFetch({ withinMs: 30_000 });
export const order: Operation = operation("https://shop.example/orders", { method: "POST", body: "{}" });
