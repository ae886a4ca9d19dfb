/** Work around `once`, as its authors write it. */

import { Client, type Done, type Duplicate, type Mismatch, once, resultOf } from "@oncegate/client";
import { MemoryGateway } from "@oncegate/client/testing";
import { z } from "zod";

interface Cart {
  readonly id: string;
  readonly lines: readonly { sku: string; count: number }[];
  readonly note?: string;
}

const client = new Client("http://127.0.0.1:8080", { credential: undefined, timeout: "1s" });
const Placed = z.object({ number: z.number(), at: z.coerce.date() });

export async function place(cart: Cart): Promise<Date | undefined> {
  const outcome = await client.once("order.place", cart, async (grant) => ({ number: grant.fence ?? 0, at: new Date() }), {
    result: Placed,
    leaseMs: 30_000,
  });
  return resultOf(outcome)?.at;
}

export const ship: (cart: Cart) => Promise<Done<string> | Duplicate | Mismatch> = once((cart: Cart) => `parcel of ${cart.id}`, {
  client: new MemoryGateway().client(),
  operation: "parcel.ship",
  contents: (cart) => ({ cart_id: cart.id }),
});

export async function narrowed(cart: Cart): Promise<string> {
  const outcome = await ship(cart);
  if (outcome.kind === "mismatch") return outcome.code;
  return outcome.kind === "done" ? outcome.result : outcome.state;
}
