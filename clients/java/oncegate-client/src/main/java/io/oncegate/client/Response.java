package io.oncegate.client;

import java.time.Duration;
import java.time.Instant;
import java.time.format.DateTimeParseException;
import java.util.Map;

/**
 * An answer of a gateway. Members that are not known are ignored.
 *
 * @param sent the monotonic time at which the request was sent, from which a lease counts
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

    /** Returns the monotonic time at which the lease ends. */
    long leaseEnd() {
        Long millis = number("lease_ms");
        return sent + (millis == null ? 0 : millis * 1_000_000);
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
