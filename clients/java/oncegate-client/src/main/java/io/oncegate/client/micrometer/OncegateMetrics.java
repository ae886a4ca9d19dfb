package io.oncegate.client.micrometer;

import io.micrometer.core.instrument.MeterRegistry;
import io.oncegate.client.Event;
import java.util.function.Consumer;

/**
 * Counts events as {@code oncegate.client.events}, with the tags {@code event} and {@code
 * operation}, and requests of the Idempotency-Key filters as {@code oncegate.requests}, with the
 * tags {@code operation} and {@code result}. Set it with {@code Options.alsoOnEvent}. The name of a
 * lock is never a tag: there may be one for each article.
 */
public final class OncegateMetrics implements Consumer<Event> {
    private final MeterRegistry registry;

    /** Counts in this registry. */
    public OncegateMetrics(MeterRegistry registry) {
        this.registry = registry;
    }

    @Override
    public void accept(Event event) {
        if (event.name().equals("request")) {
            String result = String.valueOf(event.fields().get("result"));
            registry.counter("oncegate.requests", "operation", event.operation(), "result", result)
                    .increment();
            return;
        }
        boolean ofClaim = event.operation() != null && event.globalId() != null;
        String operation = ofClaim ? event.operation() : "";
        registry.counter("oncegate.client.events", "event", event.name(), "operation", operation)
                .increment();
    }
}
