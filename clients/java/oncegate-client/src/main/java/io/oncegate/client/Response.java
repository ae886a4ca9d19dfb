package io.oncegate.client;

import java.time.Duration;
import java.time.Instant;
import java.time.format.DateTimeParseException;
import java.util.Map;

/**
 * An answer of a gateway. Members that are not known are ignored.
 *
 * @param sent the monotonic time at which the request was sent; a lease counts from it
 * @param gateway the position of the gateway that answered
 */
record Response(int status, Map<String, Object> fields, long sent, int gateway, String requestId) {
    private static final Duration RETRY_AFTER = Duration.ofSeconds(1);

    String text(String name) {
        return fields.get(name) instanceof String text ? text : null;
    }

    boolean flag(String name, boolean otherwise) {
        return fields.get(name) instanceof Boolean flag ? flag : otherwise;
    }

    Long number(String name) {
        return fields.get(name) instanceof Number number ? (Long) number.longValue() : null;
    }

    Instant instant(String name) {
        try {
            return text(name) == null ? null : Instant.parse(text(name));
        } catch (DateTimeParseException malformed) {
            return null;
        }
    }

    Duration retryAfter() {
        Long millis = number("retry_after_ms");
        return millis == null ? RETRY_AFTER : Duration.ofMillis(Math.max(0, millis));
    }

    /**
     * Returns the monotonic time at which the lease ends. It counts from when the request was sent,
     * or from the end of the wait at the gateway.
     */
    long leaseEnd() {
        return sent + (millis("waited_ms") + millis("lease_ms")) * 1_000_000;
    }

    /** Returns true if the gateway has waited before it answered. */
    boolean hasWaited() {
        return millis("waited_ms") > 0;
    }

    private long millis(String name) {
        Long millis = number(name);
        return millis == null ? 0 : millis;
    }

    boolean isFinal() {
        return status < 500 && status != 429;
    }

    String problem() {
        return status + " " + text("code") + ": " + text("detail");
    }

    /** Returns this answer as an item of a batch, with its own status. */
    Response item(Map<String, Object> item) {
        int own = item.get("status") instanceof Number number ? number.intValue() : 500;
        return new Response(own, item, sent, gateway, requestId);
    }
}
