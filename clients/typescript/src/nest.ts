/** For Nest 10 and later, on Express or Fastify: handlers with `@Idempotent` run once for each Idempotency-Key. */

import type { IncomingMessage, ServerResponse } from "node:http";

import {
  type ArgumentsHost,
  type CallHandler,
  Catch,
  type DynamicModule,
  type ExceptionFilter,
  type ExecutionContext,
  type FactoryProvider,
  Module,
  type ModuleMetadata,
  type NestInterceptor,
  type OnApplicationShutdown,
  type OnModuleInit,
  type Provider,
  RequestMethod,
  SetMetadata,
} from "@nestjs/common";
import { APP_FILTER, APP_INTERCEPTOR, DiscoveryModule, DiscoveryService, HttpAdapterHost } from "@nestjs/core";
import type { FastifyInstance, FastifyReply, FastifyRequest } from "fastify";
import { catchError, Observable, of, type Subscription } from "rxjs";

import { span } from "./durations.js";
import { NotCanonical, Rejected, Unavailable } from "./errors.js";
import { decide, keepBodies, sendProblem } from "./fastify.js";
import type { Left } from "./middleware/body.js";
import { Engine } from "./middleware/engine.js";
import { type RequestGrant, runUnder } from "./middleware/exchange.js";
import { admit, type Run, send } from "./middleware/node.js";
import type { IdempotencyOptions } from "./middleware/options.js";
import { problemOf } from "./middleware/problemof.js";
import { record, runOf } from "./middleware/runs.js";
import { NotRun, ResultNotStored } from "./results.js";

export { current, type RequestGrant } from "./middleware/exchange.js";
export type { IdempotencyOptions } from "./middleware/options.js";
export type { Problem, Rendered } from "./middleware/problems.js";

/** A request of Express or Fastify. */
// biome-ignore lint/suspicious/noExplicitAny: the service knows its platform.
export type NestRequest = any;

/** The options of the module: defaults for all handlers. */
export type OncegateOptions = Omit<IdempotencyOptions<NestRequest>, "operation">;
/** The options of one handler. */
export type IdempotentOptions = Pick<IdempotencyOptions<NestRequest>, "operation"> & Partial<IdempotencyOptions<NestRequest>>;

const IDEMPOTENT = "oncegate:idempotent";
const OPTIONS = Symbol("oncegate options");
/** Names that Nest's decorators use. */
const SSE_METADATA = "__sse__";
const METHOD_METADATA = "method";

/** Protects a handler: `@Idempotent({ operation: "order.submit" })`. */
export function Idempotent(options: IdempotentOptions): MethodDecorator {
  return SetMetadata(IDEMPOTENT, options);
}

/** The engines of all handlers, made when the application starts: a wrong option is found there. */
class Engines implements OnModuleInit, OnApplicationShutdown {
  private readonly engines = new Map<unknown, Engine<NestRequest>>();

  constructor(
    private readonly defaults: OncegateOptions,
    private readonly discovery: DiscoveryService,
    readonly adapter: HttpAdapterHost,
  ) {}

  onModuleInit(): void {
    for (const { instance } of this.discovery.getControllers()) {
      for (
        let type = instance && Object.getPrototypeOf(instance);
        type && type !== Object.prototype;
        type = Object.getPrototypeOf(type)
      ) {
        for (const { value } of Object.values(Object.getOwnPropertyDescriptors(type)))
          if (typeof value === "function") this.of(value);
      }
    }
    if (!this.isFastify) return;
    const limit = Math.max(0, ...[...this.engines.values()].map(({ rules }) => rules.bodyBytes));
    keepBodies(this.adapter.httpAdapter.getInstance() as FastifyInstance, (request) => {
      const isKeyed = request.headers["idempotency-key"] !== undefined;
      return isKeyed && limit > 0 ? limit : null;
    });
  }

  async onApplicationShutdown(): Promise<void> {
    const within = span({ within: "30s" }, "within") as number;
    await Promise.all([...this.engines.values()].map((engine) => engine.drain(within)));
  }

  get isFastify(): boolean {
    return this.adapter.httpAdapter.getType() === "fastify";
  }

  /** Null if the handler is not protected. */
  of(handler: object): Engine<NestRequest> | null {
    const known = this.engines.get(handler);
    if (known) return known;
    const options = Reflect.getMetadata(IDEMPOTENT, handler) as IdempotentOptions | undefined;
    if (!options) return null;
    if (
      Reflect.getMetadata(SSE_METADATA, handler) === true &&
      Reflect.getMetadata(METHOD_METADATA, handler) !== RequestMethod.GET
    )
      throw new TypeError(
        `@Idempotent of ${options.operation} is on a handler with @Sse, whose head Nest sends before any interceptor: leave @Sse out, and write the events to the response of @Res()`,
      );
    const engine = new Engine<NestRequest>({ ...this.defaults, ...options });
    this.engines.set(handler, engine);
    return engine;
  }
}

/** Registered for all handlers by the module: behind the guards, and before interceptors that read files. */
class OncegateInterceptor implements NestInterceptor {
  constructor(private readonly engines: Engines) {}

  async intercept(context: ExecutionContext, next: CallHandler): Promise<Observable<unknown>> {
    const engine = context.getType() === "http" ? this.engines.of(context.getHandler()) : null;
    if (!engine) return next.handle();
    const http = context.switchToHttp();
    const run = this.engines.isFastify
      ? await decide(engine, http.getRequest<FastifyRequest>(), http.getResponse<FastifyReply>())
      : await onExpress(engine, http.getRequest(), http.getResponse());
    if (run === undefined) return next.handle();
    if (run === null) {
      muted(http.getResponse());
      return of(undefined);
    }
    const { exchange } = run;
    const handled = new Observable<unknown>((subscriber) => {
      let handling: Subscription | undefined;
      runUnder(exchange, () => {
        handling = next.handle().subscribe(subscriber);
      });
      return handling;
    });
    return handled.pipe(
      catchError((error) => {
        exchange.threw(error);
        // Nest would end it, and its caller would take a part for the whole.
        const response = http.getResponse<ServerResponse>();
        if (!this.engines.isFastify && response.headersSent && !response.writableEnded) response.destroy();
        throw error;
      }),
    );
  }
}

type ExpressRequest = IncomingMessage & Left & { originalUrl?: string; oncegate?: RequestGrant };

/** Undefined: it passes. Null: it was answered. */
async function onExpress(
  engine: Engine<NestRequest>,
  request: ExpressRequest,
  response: ServerResponse,
): Promise<Run | null | undefined> {
  if (runOf(request)) return undefined;
  const { method = "", originalUrl, url = "", rawHeaders } = request;
  const admission = await admit(engine, request, request, response, { method, url: originalUrl ?? url, rawHeaders }, request);
  if (admission.kind === "pass") return undefined;
  if (admission.kind === "answer") {
    send(request, response, admission.reply);
    return null;
  }
  record(admission, request, response);
  request.oncegate = admission.exchange.request;
  return admission;
}

/** Nest sends what an interceptor returns; this response has its answer. */
function muted(response: Record<string, unknown>): void {
  for (const name of ["send", "json", "status", "code", "redirect", "render", "view"]) response[name] = () => response;
}

/** Answers errors of the client, such as `Unavailable`, with problem documents. */
export class OncegateExceptionFilter implements ExceptionFilter {
  constructor(private readonly adapter: HttpAdapterHost) {}

  catch(error: unknown, host: ArgumentsHost): void {
    const reply = host.getType() === "http" ? problemOf(error) : null;
    if (!reply) throw error;
    const http = host.switchToHttp();
    if (this.adapter.httpAdapter.getType() === "fastify") sendProblem(http.getResponse(), reply);
    else send(http.getRequest(), http.getResponse(), reply);
  }
}
Catch(Unavailable, Rejected, NotCanonical, NotRun, ResultNotStored)(OncegateExceptionFilter);

/** `OncegateModule.forRoot({ client, principal })` in the imports of the root module. */
// biome-ignore lint/complexity/noStaticOnlyClass: Nest knows a module by its class.
export class OncegateModule {
  static forRoot(options: OncegateOptions): DynamicModule {
    return OncegateModule.forRootAsync({ useFactory: () => options });
  }

  /** With options that other providers make. */
  static forRootAsync({
    imports = [],
    inject = [],
    useFactory,
  }: Pick<ModuleMetadata, "imports"> & Pick<FactoryProvider<OncegateOptions>, "inject" | "useFactory">): DynamicModule {
    const providers: Provider[] = [
      { provide: OPTIONS, useFactory, inject },
      {
        provide: Engines,
        useFactory: (...[options, discovery, adapter]: ConstructorParameters<typeof Engines>) =>
          new Engines(options, discovery, adapter),
        inject: [OPTIONS, DiscoveryService, HttpAdapterHost],
      },
      { provide: APP_INTERCEPTOR, useFactory: (engines: Engines) => new OncegateInterceptor(engines), inject: [Engines] },
      {
        provide: APP_FILTER,
        useFactory: (adapter: HttpAdapterHost) => new OncegateExceptionFilter(adapter),
        inject: [HttpAdapterHost],
      },
    ];
    return { module: OncegateModule, global: true, imports: [...imports, DiscoveryModule], providers };
  }
}
Module({})(OncegateModule);
