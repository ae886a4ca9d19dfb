/** The test application on Koa. */

import { once } from "node:events";
import { Readable } from "node:stream";

import multer from "@koa/multer";
import Koa from "koa";
import bodyParser from "koa-bodyparser";
import compress from "koa-compress";

import { allOf, places } from "./places.mjs";
import { grouped, handle, runsOf, StockError } from "./steps.mjs";

export async function listen({ load, port }) {
  const { Client } = await load("@oncegate/client");
  const { idempotent } = await load("@oncegate/client/koa");
  const app = new Koa();
  app.silent = true;
  app.use(async (context, next) => {
    if (context.path !== "/runs") return next();
    context.body = runsOf(context.query.case);
  });
  app.use(async (context, next) => {
    try {
      await next();
    } catch (error) {
      if (!(error instanceof StockError)) throw error;
      context.status = 409;
      context.body = "out of stock";
    }
  });
  const all = await places(Client, (context) => context.get("vector-user"));
  const json = bodyParser({ enableTypes: ["json"] });
  const before = { parsed: json, behind: multer().any(), zip: compress({ threshold: 0 }) };
  const after = { form: multer().any() };
  const chains = {};
  for (const [at, options] of Object.entries(all)) {
    chains[at] = [before[at], idempotent(options), after[at], (context) => handle(ioOf(context))].filter(Boolean);
  }
  app.use((context, next) => {
    const chain = chains[context.path.split("/")[1]];
    const step = (at) => (at < chain.length ? chain[at](context, () => step(at + 1)) : next());
    return chain ? step(0) : next();
  });
  const server = app.listen(port, "127.0.0.1");
  await once(server, "listening");
  return { address: server.address(), lacks: [] };
}

function ioOf(context) {
  const set = (status, headers) => {
    context.status = status;
    for (const [name, values] of Object.entries(grouped(headers))) context.set(name, values);
  };
  return {
    sendsLater: true,
    headers: context.headers,
    body: () => allOf(context.req),
    gone: () => context.res.destroyed || context.req.aborted,
    mark: (outcome) => context.oncegate.mark(outcome),
    httpError: () => {
      try {
        return context.throw(409, "sold out");
      } catch (error) {
        return error;
      }
    },
    parsed: () => context.request.body,
    form: () => ({
      fields: { ...context.request.body },
      files: Object.fromEntries(context.files.map(({ fieldname, size }) => [fieldname, size])),
    }),
    respond: ({ status, headers, style, body }) => {
      set(status, headers);
      context.body = body;
      if (body?.length === 0 || style === "head" || headers.length === 0) set(status, headers);
    },
    stream: ({ status, headers, rows, trailers }) => {
      set(status, headers);
      context.body = Readable.from(rows, { objectMode: false });
      set(status, headers);
      if (trailers) {
        context.set("Trailer", Object.keys(trailers).join());
        context.res.addTrailers(trailers);
      }
    },
  };
}
