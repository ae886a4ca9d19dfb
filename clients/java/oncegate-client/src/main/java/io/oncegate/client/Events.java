package io.oncegate.client;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.Consumer;

/** Sends events to the caller's hook. A hook that throws is logged, and stops nothing. */
final class Events {
    private static final System.Logger LOG = System.getLogger("io.oncegate.client");

    private final Consumer<Event> hook;

    Events(Consumer<Event> hook) {
        this.hook = hook;
    }

    /** Logs the event at its level. */
    static void log(Event event) {
        LOG.log(
                event.level(),
                () -> "Oncegate: " + event.name() + " " + event.operation() + " " + event.fields());
    }

    /** Sends an event; names and values of its fields alternate. */
    void send(String name, Subject subject, Object... fields) {
        Map<String, Object> named = new LinkedHashMap<>();
        for (int at = 0; at < fields.length; at += 2) {
            named.put((String) fields[at], fields[at + 1]);
        }
        send(new Event(name, subject.operation(), subject.globalId(), named));
    }

    void send(Event event) {
        try {
            hook.accept(event);
        } catch (RuntimeException failed) {
            LOG.log(
                    System.Logger.Level.WARNING,
                    "The event hook failed on " + event.name(),
                    failed);
        }
    }
}
