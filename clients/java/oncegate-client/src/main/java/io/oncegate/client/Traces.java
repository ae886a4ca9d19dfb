package io.oncegate.client;

import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanContext;
import java.util.function.Supplier;

/** The current trace, where the API of OpenTelemetry is on the class path. */
final class Traces {
    private static final boolean PRESENT = isPresent("io.opentelemetry.api.trace.Span");

    private Traces() {}

    /** Returns the source of the current {@code traceparent}; it returns null without a trace. */
    static Supplier<String> current() {
        return PRESENT ? Traces::traceparent : () -> null;
    }

    private static String traceparent() {
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

    private static boolean isPresent(String name) {
        try {
            Class.forName(name, false, Traces.class.getClassLoader());
            return true;
        } catch (ClassNotFoundException | LinkageError absent) {
            return false;
        }
    }
}
