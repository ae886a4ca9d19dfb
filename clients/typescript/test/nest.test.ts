/** Nest on both platforms: guards, filters, interceptors around the middleware, and its start and end. */

import "reflect-metadata";

import assert from "node:assert/strict";
import { Readable } from "node:stream";

import {
  Catch,
  Controller,
  Get,
  HttpException,
  Module,
  Post,
  Redirect,
  Req,
  Sse,
  StreamableFile,
  UseFilters,
  UseGuards,
} from "@nestjs/common";
import { NestFactory } from "@nestjs/core";
import { ExpressAdapter } from "@nestjs/platform-express";
import { FastifyAdapter } from "@nestjs/platform-fastify";
import { map, of } from "rxjs";
import { afterEach, describe, test } from "vitest";

import { current, Unavailable } from "../src/index.js";
import { Idempotent, OncegateModule } from "../src/nest.js";
import { MemoryGateway } from "../src/testing.js";
import { type Any, answersBy } from "./gateway.js";

class StockError extends Error {}
class StockFilter {
  catch(_error: unknown, host: Any) {
    const response = host.switchToHttp().getResponse();
    (response.code ?? response.status).call(response, 410).send("out of stock");
  }
}
Catch(StockError)(StockFilter);
const guard = { canActivate: (context: Any) => context.switchToHttp().getRequest().headers["x-user"] !== "eve" };

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0)) await close();
});

for (const [platform, adapter] of Object.entries({
  express: () => new ExpressAdapter(),
  fastify: () => new FastifyAdapter({ forceCloseConnections: true }),
})) {
  describe(platform, () => {
    /** An application with one handler. */
    const start = async (handler: (request: Any) => Any, options: Any = {}, decorators: Any[] = [Post("/orders")]) => {
      const errors: unknown[] = [];
      const logger = { log() {}, warn() {}, error: (...said: unknown[]) => void errors.push(...said) };
      const gateway = new MemoryGateway();
      class Orders {
        place(request: Any) {
          return handler(request);
        }
      }
      Controller()(Orders);
      Req()(Orders.prototype, "place", 0);
      const descriptor = Object.getOwnPropertyDescriptor(Orders.prototype, "place") as Any;
      for (const decorate of [
        Idempotent({ operation: "order.place", ...options }),
        UseFilters(StockFilter),
        UseGuards(guard),
        ...decorators,
      ] as Any[])
        decorate(Orders.prototype, "place", descriptor);
      class App {}
      const principal = (request: Any) => request.headers["x-user"];
      Module({ imports: [OncegateModule.forRoot({ client: gateway.client(), principal })], controllers: [Orders] })(App);
      const app = await NestFactory.create(App, adapter() as Any, { logger, rawBody: true, abortOnError: false });
      // An outer layer that changes its input.
      app.useGlobalInterceptors({
        intercept: (_context: Any, next: Any) => next.handle().pipe(map((data: Any) => data ?? null)),
      } as Any);
      await app.listen(0, "127.0.0.1");
      closing.push(() => app.close());
      const post = (key: string, user = "alice") =>
        fetch(`${urlOf(app)}/orders`, {
          method: "POST",
          body: '{"a":1}',
          redirect: "manual",
          headers: { "content-type": "application/json", "idempotency-key": key, "x-user": user },
        });
      return { gateway, post, app, errors };
    };

    test("a handler runs once, behind its guards", async () => {
      let runs = 0;
      const { post, gateway } = await start((request) => ({ run: ++runs, fence: current()?.fence, body: request.body }));
      assert.equal((await post("k-1", "eve")).status, 403);
      assert.equal(gateway.claims.length, 0);
      for (const replayed of [null, "true"]) {
        const answer = await post("k-1");
        assert.deepEqual([answer.status, answer.headers.get("idempotent-replayed")], [201, replayed]);
        assert.deepEqual(await answer.json(), { run: 1, fence: 1, body: { a: 1 } });
      }
    });

    test("what filters answer is the response; a declared error releases the key", async () => {
      let runs = 0;
      const { post, gateway } = await start(
        () => {
          if (++runs === 1) throw new StockError();
          throw new HttpException("sold out", 409);
        },
        { nothingHappened: [StockError] },
      );
      const first = await post("k-1");
      assert.deepEqual([first.status, await first.text(), gateway.claims.length], [410, "out of stock", 0]);
      const texts = [await post("k-1"), await post("k-1")].map(async (answer) => [answer.status, await answer.text()]);
      const [second, third] = await Promise.all(texts);
      assert.deepEqual([second?.[0], second, runs], [409, third, 2]);
    });

    test("errors of the client have their problem documents", async () => {
      const { post } = await start(() => {
        throw new Unavailable([]);
      });
      const answer = await post("k-1");
      assert.deepEqual([answer.status, answer.headers.get("content-type")], [503, "application/problem+json"]);
      assert.equal(((await answer.json()) as Any).code, "store_unavailable");
    });

    test("files are stored as they are sent", async () => {
      const { post } = await start(
        () => new StreamableFile(Readable.from([Buffer.from("a,"), Buffer.from("1")]), { type: "text/csv" }),
      );
      for (let time = 0; time < 2; time++) {
        const answer = await post("k-1");
        assert.deepEqual([answer.headers.get("content-type"), await answer.text()], ["text/csv", "a,1"]);
      }
    });

    test("a degraded grant is named in the response", async () => {
      for (const policy of ["local", "fail_open"]) {
        for (const body of [() => ({ done: true }), () => new StreamableFile(Readable.from([Buffer.from("a,")]))]) {
          const { post, gateway } = await start(body);
          answersBy(gateway, () => policy);
          for (const replayed of [null, "true"]) {
            const { headers } = await post("k-1");
            assert.deepEqual([headers.get("oncegate-degraded"), headers.get("idempotent-replayed")], [policy, replayed]);
          }
        }
      }
    });

    test("a redirect of a decorator is replayed, and not added to a refusal", async () => {
      const { post, gateway, errors } = await start(() => undefined, {}, [Redirect("/orders/1", 303), Post("/orders")]);
      for (const replayed of [null, "true"]) {
        const answer = await post("k-1");
        const seen = [answer.status, answer.headers.get("location"), answer.headers.get("idempotent-replayed")];
        assert.deepEqual(seen, [303, "/orders/1", replayed]);
      }
      gateway.unavailable();
      const refused = await post("k-2");
      assert.deepEqual([refused.status, refused.headers.get("location")], [503, null]);
      assert.deepEqual(errors, []);
    });

    test("a handler with events of Nest stops the start, but not one that is read", async () => {
      await assert.rejects(
        start(() => of({ data: 1 }), {}, [Sse(), Post("/orders")]),
        /leave @Sse out/,
      );
      await start(() => of({ data: 1 }), {}, [Sse(), Get("/orders")]);
    });

    test("a wrong option stops the start", async () => {
      await assert.rejects(
        start(() => 1, { leese: "1s" }),
        /have no leese/,
      );
    });

    test("the end of the application waits for its handlers", async () => {
      let go: Any;
      const { post, app, gateway } = await start(
        () =>
          new Promise((resolve) => {
            go = () => resolve({ done: true });
          }),
      );
      const posting = post("k-1").catch(() => null);
      while (!go) await new Promise((resolve) => setTimeout(resolve, 5));
      const closed = app.close();
      setTimeout(go, 50);
      await closed;
      await posting;
      assert.equal(gateway.claims[0]?.state, "succeeded");
    });
  });
}

/** The address of an application. */
function urlOf(app: Any): string {
  return `http://127.0.0.1:${app.getHttpServer().address().port}`;
}
