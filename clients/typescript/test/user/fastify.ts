/** A service on Fastify, as its authors write it. */

import { Client } from "@oncegate/client";
import { errors, oncegate } from "@oncegate/client/fastify";
import fastify from "fastify";

const app = fastify();
app.setErrorHandler(errors());
app.register(oncegate, {
  client: new Client(),
  operation: "order.place",
  principal: (request) => request.headers.authorization,
  onUnavailable: "proceed",
});
app.post("/orders", async (request, reply) => {
  request.oncegate?.mark("success");
  return reply.code(201).send({ fence: request.oncegate?.fence });
});

export { app };
