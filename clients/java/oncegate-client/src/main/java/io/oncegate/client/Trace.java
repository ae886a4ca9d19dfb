package io.oncegate.client;

/** A span of a call or a run. Outside of a trace, and without OpenTelemetry, it does nothing. */
interface Trace extends AutoCloseable {
    Trace NONE =
            new Trace() {
                @Override
                public AutoCloseable enter() {
                    return () -> {};
                }

                @Override
                public void says(String state, Boolean replayed, String degraded) {}

                @Override
                public void failed(Throwable thrown) {}

                @Override
                public void close() {}
            };

    /** Makes it the current span of this thread, until what is returned is closed. */
    AutoCloseable enter();

    /** Notes what is known of the claim; null is left out. Never keys or contents. */
    void says(String state, Boolean replayed, String degraded);

    /** Notes an error: its class alone, since its text may have contents. */
    void failed(Throwable thrown);

    /** Ends it. What follows changes nothing. */
    @Override
    void close();
}
