package io.oncegate.client.micrometer;

import io.micrometer.core.instrument.MeterRegistry;
import io.oncegate.client.Event;
import java.util.function.Consumer;

/**
 * Counts events as {@code oncegate.client.events}, with the tags {@code event} and {@code
 * operation}. Set it with {@code Options.alsoOnEvent}. The name of a lock is never a tag: there may
 * be one for each article.
 */
public final class OncegateMetrics implements Consumer<Event> {
    private final MeterRegistry registry;

    /** Counts in this registry. */
    public OncegateMetrics(MeterRegistry registry) {
        this.registry = registry;
    }

    @Override
    public void accept(Event event) {
        boolean ofClaim = event.operation() != null && event.globalId() != null;
        String operation = ofClaim ? event.operation() : "";
        registry.counter("oncegate.client.events", "event", event.name(), "operation", operation)
                .increment();
    }
}
