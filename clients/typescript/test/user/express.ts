/** A service on Express, as its authors write it. */

import { Client } from "@oncegate/client";
import { errors, idempotent } from "@oncegate/client/express";
import express, { type Request } from "express";

class StockError extends Error {}

interface Shop extends Request {
  user: { id: string };
}

const client = new Client();
const app = express();
const protect = idempotent<Shop>({
  client,
  operation: "order.place",
  principal: (request) => request.user.id,
  nothingHappened: [StockError],
  store: ["2xx", 409],
  lease: "30s",
});
app.post("/orders", protect, express.json(), (request, response) => {
  request.oncegate?.callerGone.addEventListener("abort", () => {});
  request.oncegate?.mark("success");
  response.status(201).json({ fence: request.oncegate?.fence });
});
app.use(idempotent.errors);
app.use(errors());
export const stop: Promise<boolean> = protect.drain("10s");
