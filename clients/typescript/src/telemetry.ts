/** Spans and metrics, where the API of OpenTelemetry is installed. Without it nothing is done, and no setting is needed. */

import type { Counter, MeterProvider, Span, Tracer, TracerProvider } from "@opentelemetry/api";

type Api = typeof import("@opentelemetry/api");
/** Never keys, contents or secrets. */
export type Attributes = Record<string, string | boolean | null | undefined>;

const NAME = "@oncegate/client";

const api: Api | null = (() => {
  try {
    return require("@opentelemetry/api") as Api;
  } catch {
    return null;
  }
})();

/**
 * Runs `work` in a span. A call over the network is a client's. `describe` says what came of it. Costs next to nothing while no tracer
 * is registered.
 */
export function spanned<Result>(
  name: string,
  kind: "client" | "internal",
  attributes: Attributes,
  work: () => Promise<Result> | Result,
  describe?: (result: Result) => Attributes,
): Promise<Result> | Result {
  const tracer = api && tracerOf(api);
  if (!api || !tracer) return work();
  const { SpanKind, SpanStatusCode } = api;
  const options = { kind: kind === "client" ? SpanKind.CLIENT : SpanKind.INTERNAL, attributes: present(attributes) };
  return tracer.startActiveSpan(name, options, async (span: Span) => {
    try {
      const result = await work();
      if (describe) span.setAttributes(present(describe(result)));
      return result;
    } catch (error) {
      span.recordException(error as Error);
      span.setStatus({ code: SpanStatusCode.ERROR });
      throw error;
    } finally {
      span.end();
    }
  });
}

/** Starts a span around what `enter` calls, such as the rest of a request. Returns what ends it. */
export function entered(name: string, attributes: Attributes, enter: () => void): (more: Attributes) => void {
  const tracer = api && tracerOf(api);
  if (!api || !tracer) {
    enter();
    return () => {};
  }
  const span = tracer.startSpan(name, { kind: api.SpanKind.INTERNAL, attributes: present(attributes) });
  api.context.with(api.trace.setSpan(api.context.active(), span), enter);
  return (more) => {
    span.setAttributes(present(more));
    span.end();
  };
}

/** The W3C traceparent of the active span. */
export function traceparent(): string | undefined {
  const context = api?.trace.getActiveSpan()?.spanContext();
  if (!api || !context || !api.isSpanContextValid(context)) return undefined;
  return `00-${context.traceId}-${context.spanId}-${context.traceFlags.toString(16).padStart(2, "0")}`;
}

interface Counters {
  readonly provider: MeterProvider;
  /** Null while no meter provider is registered. */
  readonly named: Map<string, Counter> | null;
}
let counters: Counters | null = null;

/** Counts one. */
export function counted(name: string, label: string, value: string, operation?: string): void {
  if (!api) return;
  // The provider may be registered after the first client was made.
  const provider = api.metrics.getMeterProvider();
  if (counters?.provider !== provider) {
    const isNoop = provider.constructor.name === "NoopMeterProvider";
    counters = { provider, named: isNoop ? null : new Map() };
  }
  const { named } = counters;
  if (!named) return;
  let counter = named.get(name);
  if (!counter) {
    counter = provider.getMeter(NAME).createCounter(name);
    named.set(name, counter);
  }
  counter.add(1, present({ [label]: value, operation }));
}

/** The tracer that is registered now; undefined if there is none. */
function tracerOf({ trace }: Api): Tracer | undefined {
  const provider = trace.getTracerProvider() as { getDelegateTracer?: (name: string) => Tracer | undefined } & TracerProvider;
  return provider.getDelegateTracer ? provider.getDelegateTracer(NAME) : provider.getTracer(NAME);
}

function present(attributes: Attributes): Record<string, string | boolean> {
  const all: Record<string, string | boolean> = {};
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) all[`oncegate.${name}`] = value;
  }
  return all;
}
