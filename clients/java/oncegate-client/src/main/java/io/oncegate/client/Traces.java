package io.oncegate.client;

import java.util.function.Supplier;

/** Traces, where the API of OpenTelemetry is on the class path. */
final class Traces {
    /** Compiled against the API, and not loaded without it. */
    private static final String OF_OPEN_TELEMETRY = "io.oncegate.client.OpenTelemetryTrace";

    private static final Source SOURCE = source();

    private Traces() {}

    /** Source of traces. */
    interface Source {
        String traceparent();

        Trace begin(String name, String operation, boolean isInternal);
    }

    private static final class None implements Source {
        @Override
        public String traceparent() {
            return null;
        }

        @Override
        public Trace begin(String name, String operation, boolean isInternal) {
            return Trace.NONE;
        }
    }

    /** A call of a gateway, or work. */
    interface Traced<T, E extends Exception> {
        T run(Trace trace) throws E, InterruptedException;
    }

    /** Returns the source of the current {@code traceparent}; it returns null without a trace. */
    static Supplier<String> current() {
        return SOURCE::traceparent;
    }

    /** Begins a span of a run, which no thread is in. */
    static Trace run(String operation) {
        return SOURCE.begin("oncegate run", operation, true);
    }

    /** Makes a call within a span. */
    static <T, E extends Exception> T call(String name, String operation, Traced<T, E> call)
            throws E, InterruptedException {
        return within(SOURCE.begin(name, operation, false), true, call);
    }

    /** Runs something with this span as the current one, which it may end. */
    static <T, E extends Exception> T within(Trace trace, boolean ends, Traced<T, E> call)
            throws E, InterruptedException {
        if (trace == Trace.NONE) {
            return call.run(trace);
        }
        AutoCloseable scope = trace.enter();
        try {
            return call.run(trace);
        } catch (Throwable thrown) {
            trace.failed(thrown);
            throw thrown;
        } finally {
            leave(scope);
            if (ends) {
                trace.close();
            }
        }
    }

    private static void leave(AutoCloseable scope) {
        try {
            scope.close();
        } catch (Exception never) {
            throw new IllegalStateException(never);
        }
    }

    private static Source source() {
        try {
            Class.forName("io.opentelemetry.api.trace.Span", false, Traces.class.getClassLoader());
            return (Source) Class.forName(OF_OPEN_TELEMETRY).getDeclaredConstructor().newInstance();
        } catch (ReflectiveOperationException | LinkageError absent) {
            return new None();
        }
    }
}
