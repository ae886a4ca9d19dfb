package io.oncegate.client;

import java.util.function.Supplier;

/** The current trace, where the API of OpenTelemetry is on the class path. */
final class Traces {
    /** Compiled against the API, and not loaded without it. */
    private static final String OF_OPEN_TELEMETRY = "io.oncegate.client.OpenTelemetryTrace";

    private Traces() {}

    /** Returns the source of the current {@code traceparent}; it returns null without a trace. */
    @SuppressWarnings("unchecked")
    static Supplier<String> current() {
        try {
            Class.forName("io.opentelemetry.api.trace.Span", false, Traces.class.getClassLoader());
            return (Supplier<String>)
                    Class.forName(OF_OPEN_TELEMETRY).getDeclaredConstructor().newInstance();
        } catch (ReflectiveOperationException | LinkageError absent) {
            return () -> null;
        }
    }
}
