package io.oncegate.client;

import java.util.Map;

/**
 * Something that the client did. Never holds contents, attempts or secrets.
 *
 * @param name a name of the table in the README of the clients, such as {@code granted}
 * @param operation the operation, or the name of the lock; null for a lookup
 * @param globalId null before it is known, and for locks
 * @param fields what is particular to the event; values may be null
 */
public record Event(String name, String operation, String globalId, Map<String, Object> fields) {
    /** Returns the level at which it is logged. */
    public System.Logger.Level level() {
        boolean degraded = fields.get("degraded") != null;
        return switch (name) {
            case "outcome_refused", "not_settled" -> System.Logger.Level.ERROR;
            case "unavailable", "proceeded", "lost", "result_omitted", "lock_lost" ->
                    System.Logger.Level.WARNING;
            case "retry", "mismatch" -> System.Logger.Level.INFO;
            case "granted" -> degraded ? System.Logger.Level.WARNING : System.Logger.Level.DEBUG;
            case "reported" ->
                    Boolean.TRUE.equals(fields.get("late"))
                            ? System.Logger.Level.WARNING
                            : System.Logger.Level.DEBUG;
            default -> System.Logger.Level.DEBUG;
        };
    }
}
