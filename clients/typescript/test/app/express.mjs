/** The test application on Express, with the version that it is given. */

import { once } from "node:events";

import compression from "compression";
import createError from "http-errors";
import multer from "multer";

import { allOf, places } from "./places.mjs";
import { grouped, handle, runsOf, StockError } from "./steps.mjs";

export async function listen({ express, load, port }) {
  const { Client } = await load("@oncegate/client");
  const { idempotent } = await load("@oncegate/client/express");
  const app = express();
  app.get("/runs", (request, response) => response.json(runsOf(request.query.case)));
  const all = await places(Client, (request) => request.get("vector-user"));
  const before = { parsed: express.json(), behind: multer().any(), zip: compression({ threshold: 0 }) };
  const after = { form: multer().any() };
  for (const [at, options] of Object.entries(all)) {
    const layers = [before[at], idempotent(options), after[at]].filter(Boolean);
    app.use(`/${at}`, ...layers, (request, response, next) => {
      handle(ioOf(request, response)).catch(next);
    });
  }
  app.use(idempotent.errors);
  app.use((error, _request, response, next) => {
    if (response.headersSent) return next(error);
    if (error instanceof StockError) return response.status(409).type("text").send("out of stock");
    if (error.status) return response.status(error.status).type("text").send(error.message);
    next(error);
  });
  const server = app.listen(port, "127.0.0.1");
  await once(server, "listening");
  return { address: server.address(), lacks: [] };
}

export function ioOf(request, response) {
  return {
    headers: request.headers,
    body: () => allOf(request),
    gone: () => response.destroyed || request.aborted,
    mark: (outcome) => request.oncegate.mark(outcome),
    httpError: () => createError(409, "sold out"),
    parsed: () => request.body,
    form: () => ({
      fields: { ...request.body },
      files: Object.fromEntries(request.files.map(({ fieldname, size }) => [fieldname, size])),
    }),
    respond: ({ status, headers, style, body }) => {
      if (style === "head") {
        response.writeHead(status, headers.flat());
        response.end(body ?? undefined);
        return;
      }
      response.status(status);
      for (const [name, values] of Object.entries(grouped(headers))) response.setHeader(name, values);
      if (body === null) response.end();
      else response.send(body);
    },
    stream: async ({ status, headers, rows, trailers }) => {
      response.status(status);
      for (const [name, values] of Object.entries(grouped(headers))) response.setHeader(name, values);
      if (trailers) response.setHeader("Trailer", Object.keys(trailers).join());
      for await (const row of rows) {
        response.write(row);
        response.flush?.();
      }
      if (trailers) response.addTrailers(trailers);
      response.end();
    },
  };
}
