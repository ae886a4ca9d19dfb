package io.oncegate.client;

import io.opentelemetry.api.GlobalOpenTelemetry;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanContext;
import io.opentelemetry.api.trace.SpanKind;
import io.opentelemetry.api.trace.StatusCode;
import io.opentelemetry.context.Scope;

/** The traces of OpenTelemetry. */
final class OpenTelemetryTrace implements Traces.Source {
    @Override
    public String traceparent() {
        SpanContext context = Span.current().getSpanContext();
        return context.isValid()
                ? "00-"
                        + context.getTraceId()
                        + "-"
                        + context.getSpanId()
                        + "-"
                        + context.getTraceFlags().asHex()
                : null;
    }

    @Override
    public Trace begin(String name, String operation, boolean isInternal) {
        // Only within a trace: to ask for the global instance earlier would keep the application
        // from setting it.
        if (!Span.current().getSpanContext().isValid()) {
            return Trace.NONE;
        }
        var span =
                GlobalOpenTelemetry.getTracer("oncegate")
                        .spanBuilder(name)
                        .setSpanKind(isInternal ? SpanKind.INTERNAL : SpanKind.CLIENT)
                        .setAttribute("oncegate.operation", operation)
                        .startSpan();
        return new Started(span);
    }

    private record Started(Span span) implements Trace {
        @Override
        public AutoCloseable enter() {
            Scope scope = span.makeCurrent();
            return scope::close;
        }

        @Override
        public void says(String state, Boolean replayed, String degraded) {
            if (state != null) {
                span.setAttribute("oncegate.state", state);
            }
            if (replayed != null) {
                span.setAttribute("oncegate.replayed", replayed);
            }
            if (degraded != null) {
                span.setAttribute("oncegate.degraded", degraded);
            }
        }

        @Override
        public void failed(Throwable thrown) {
            span.setStatus(StatusCode.ERROR, thrown.getClass().getName());
        }

        @Override
        public void close() {
            span.end();
        }
    }
}
