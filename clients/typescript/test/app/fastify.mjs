/** The test application on Fastify, with the version and plugins that it is given. */

import { Readable } from "node:stream";

import createError from "http-errors";

import { allOf, places } from "./places.mjs";
import { grouped, handle, runsOf, StockError } from "./steps.mjs";

export async function listen({ fastify, multipart, compress, load, port }) {
  const { Client } = await load("@oncegate/client");
  const { oncegate } = await load("@oncegate/client/fastify");
  const app = fastify({ forceCloseConnections: true, bodyLimit: 200_000 });
  app.get("/runs", (request, reply) => reply.send(runsOf(request.query.case)));
  const all = await places(Client, (request) => request.headers["vector-user"]);
  for (const [at, options] of Object.entries(all)) {
    app.register(async (scope) => {
      if (at !== "parsed") scope.removeAllContentTypeParsers();
      if (at === "zip") await scope.register(compress, { threshold: 0 });
      if (at === "form") await scope.register(multipart);
      // Bodies of other types are left to the handler.
      scope.addContentTypeParser("*", (_request, payload, done) => done(null, payload));
      await scope.register(oncegate, options);
      scope.setErrorHandler((error, _request, reply) => {
        if (error instanceof StockError) return reply.code(409).type("text/plain").send("out of stock");
        throw error;
      });
      scope.all(`/${at}/*`, (request, reply) => handle(ioOf(request, reply)));
    });
  }
  await app.listen({ port, host: "127.0.0.1" });
  // The body is kept before any parser, so none can have consumed it.
  return { address: app.server.address(), lacks: ["behind"] };
}

export function ioOf(request, reply) {
  return {
    headers: request.headers,
    body: () => (request.body ? allOf(request.body) : Buffer.alloc(0)),
    gone: () => request.raw.aborted || reply.raw.destroyed,
    mark: (outcome) => request.oncegate.mark(outcome),
    httpError: () => createError(409, "sold out"),
    parsed: () => request.body,
    form: async () => {
      const [fields, files] = [{}, {}];
      for await (const part of request.parts()) {
        if (part.type === "file") files[part.fieldname] = (await part.toBuffer()).length;
        else fields[part.fieldname] = part.value;
      }
      return { fields, files };
    },
    respond: ({ status, headers, body }) => {
      reply.code(status).headers(grouped(headers));
      return reply.send(body ?? undefined);
    },
    stream: ({ status, headers, rows, trailers }) => {
      reply.code(status).headers(grouped(headers));
      for (const [name, value] of Object.entries(trailers ?? {})) reply.trailer(name, async () => value);
      return reply.send(Readable.from(rows, { objectMode: false }));
    },
  };
}
