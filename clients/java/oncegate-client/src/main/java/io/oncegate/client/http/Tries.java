package io.oncegate.client.http;

import io.oncegate.client.JsonText;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.time.format.DateTimeParseException;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;

/** The tries of one request with a key: which answers are asked for again, and when. */
final class Tries {
    /** Of a problem document. */
    static final int BODY_MAX = 64 * 1024;

    /** The limit of all tries, as the senders of all languages have it. */
    static final Duration WITHIN = Duration.ofSeconds(60);

    private static final long PAUSE_MS = 100;
    private static final long PAUSE_MAX_MS = 5000;

    private final long ends;
    private int number;

    Tries(Duration within) {
        ends = System.nanoTime() + within.toNanos();
    }

    /** Reads the body of an answer, if it is needed. */
    interface Body {
        byte[] read() throws IOException;
    }

    /**
     * Returns the milliseconds to wait for before the next try; -1 if this is the answer, or time
     * is over.
     */
    long after(int status, String retryAfter, Body body) throws IOException {
        boolean canHelp =
                switch (status) {
                    case 408, 425, 429, 502, 503, 504 -> true;
                    case 409 -> isInProgress(body.read());
                    default -> false;
                };
        return canHelp ? inTime(Math.max(pause(), asked(retryAfter.strip()))) : -1;
    }

    /** Returns the milliseconds to wait for after a try without an answer; -1 if time is over. */
    long afterNone() {
        return inTime(pause());
    }

    private long inTime(long pause) {
        return pause < (ends - System.nanoTime()) / 1_000_000 ? pause : -1;
    }

    /** Full jitter: callers that failed together do not come back together. */
    private long pause() {
        long most = Math.min(PAUSE_MAX_MS, PAUSE_MS << Math.min(number++, 10));
        return ThreadLocalRandom.current().nextLong(most + 1);
    }

    /** Reads {@code Retry-After}: seconds, or a date. */
    private static long asked(String text) {
        if (text.matches("[0-9]{1,9}")) {
            return Long.parseLong(text) * 1000;
        }
        try {
            var at = ZonedDateTime.parse(text, DateTimeFormatter.RFC_1123_DATE_TIME);
            return Math.max(0, at.toInstant().toEpochMilli() - System.currentTimeMillis());
        } catch (DateTimeParseException none) {
            return 0;
        }
    }

    /** Returns true if a response says that the first request is still running. */
    private static boolean isInProgress(byte[] body) {
        if (body.length > BODY_MAX) {
            return false;
        }
        try {
            Object value = new JsonText(new String(body, StandardCharsets.UTF_8)).value();
            if (!(value instanceof Map<?, ?> members)) {
                return false;
            }
            // The second is that of Stripe, and of the proxy's dialect of it.
            return "in_progress".equals(members.get("state"))
                    || members.get("error") instanceof Map<?, ?> error
                            && "idempotency_key_in_use".equals(error.get("code"));
        } catch (IllegalArgumentException notJson) {
            return false;
        }
    }
}
