/** The test application on Nest, on the platform that it is given. Decorators are called as functions: no compiler runs here. */

import "reflect-metadata";

import { createRequire } from "node:module";
import compress from "@fastify/compress";

import multipart from "@fastify/multipart";
import {
  All,
  Catch,
  Controller,
  Get,
  HttpCode,
  HttpException,
  Module,
  Query,
  Req,
  Res,
  UseFilters,
  UseInterceptors,
} from "@nestjs/common";
import { NestFactory } from "@nestjs/core";
import { AnyFilesInterceptor, ExpressAdapter } from "@nestjs/platform-express";
import { FastifyAdapter } from "@nestjs/platform-fastify";
import compression from "compression";
import multer from "multer";

import { ioOf as expressIo } from "./express.mjs";
import { ioOf as fastifyIo } from "./fastify.mjs";
import { allOf, places } from "./places.mjs";
import { handle, runsOf, StockError } from "./steps.mjs";

export async function listen({ load, platform, port }) {
  const { Client } = await load("@oncegate/client");
  const { Idempotent, OncegateModule } = await load("@oncegate/client/nest");
  const isFastify = platform === "fastify";
  // Of Express 4 and Fastify; Express 5 names its wildcards.
  const [major] = createRequire(import.meta.url)("@nestjs/common/package.json").version.split(".");
  const rest = isFastify || Number(major) < 11 ? "*" : "*path";
  const { plain, ...all } = await places(Client, (request) => request.headers["vector-user"]);

  class StockFilter {
    catch(_error, host) {
      const response = host.switchToHttp().getResponse();
      if (isFastify) response.code(409).type("text/plain").send("out of stock");
      else response.status(409).type("text").send("out of stock");
    }
  }
  Catch(StockError)(StockFilter);

  class Runs {
    runs(id) {
      return runsOf(id);
    }
  }
  decorate(Runs, "runs", [Get("/runs")], [Query("case")]);
  const controllers = [Runs];
  for (const [at, options] of Object.entries({ plain, ...all })) {
    const Handler = {
      [at]: class {
        run(request, response) {
          return handle(ioOf(request, response, isFastify));
        }
      },
    }[at];
    const decorators = [All(`/${at}/${rest}`), HttpCode(201), Idempotent(options)];
    if (at === "form" && !isFastify) decorators.push(UseInterceptors(AnyFilesInterceptor()));
    if (at === "harmless") decorators.push(UseFilters(StockFilter));
    decorate(Handler, "run", decorators, [Req(), Res()]);
    controllers.push(Handler);
  }
  class App {}
  Module({ imports: [OncegateModule.forRoot({ client: plain.client, principal: plain.principal })], controllers })(App);

  const adapter = isFastify ? new FastifyAdapter({ forceCloseConnections: true }) : new ExpressAdapter();
  const app = await NestFactory.create(App, adapter, { rawBody: true, logger: false });
  if (isFastify) {
    app
      .getHttpAdapter()
      .getInstance()
      .addHook("onRoute", (route) => {
        if (!route.url.startsWith("/zip/")) route.compress = false;
      });
    await app.register(compress, { threshold: 0, global: true });
    await app.register(multipart);
    app
      .getHttpAdapter()
      .getInstance()
      .addContentTypeParser("*", (_request, payload, done) => done(null, payload));
    app.getHttpAdapter().getInstance().removeContentTypeParser("text/plain");
  } else {
    app.use("/zip", compression({ threshold: 0 }));
    app.use("/behind", multer().any());
  }
  await app.listen(port, "127.0.0.1");
  const lacks = isFastify ? ["behind"] : [];
  return { address: app.getHttpServer().address(), lacks };
}

function decorate(Type, name, decorators, parameters) {
  Controller()(Type);
  for (const [at, parameter] of parameters.entries()) parameter(Type.prototype, name, at);
  const descriptor = Object.getOwnPropertyDescriptor(Type.prototype, name);
  for (const each of decorators.reverse()) each(Type.prototype, name, descriptor);
}

function ioOf(request, response, isFastify) {
  const io = isFastify ? fastifyIo(request, response) : expressIo(request, response);
  const body = isFastify
    ? async () => request.rawBody ?? (request.body ? allOf(request.body) : Buffer.alloc(0))
    : async () => request.rawBody ?? allOf(request);
  return { ...io, body, httpError: () => new HttpException("sold out", 409) };
}
