package io.oncegate.client;

import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanContext;
import java.util.function.Supplier;

/** The {@code traceparent} of OpenTelemetry's current span. */
final class OpenTelemetryTrace implements Supplier<String> {
    @Override
    public String get() {
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
}
