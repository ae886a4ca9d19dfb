/** A service on Koa, as its authors write it. */

import { Client, current } from "@oncegate/client";
import { errors, idempotent } from "@oncegate/client/koa";
import Koa from "koa";

const app = new Koa();
app.use(errors());
app.use(idempotent({ client: new Client(), operation: "order.place", principal: (context) => context.get("authorization") }));
app.use(async (context) => {
  context.status = 201;
  context.body = { fence: current()?.fence };
});

export { app };
