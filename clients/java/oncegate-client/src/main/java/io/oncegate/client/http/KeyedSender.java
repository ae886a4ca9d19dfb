package io.oncegate.client.http;

import io.oncegate.client.JsonText;
import java.io.IOException;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.time.format.DateTimeParseException;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ThreadLocalRandom;

/**
 * Sends requests with an {@code Idempotency-Key} to a service that understands it: one key for each
 * operation, the same key and bytes in each try.
 *
 * <p>It repeats a request without an answer, and those that are answered with 409 and {@code state:
 * in_progress}, 425, 429, 502, 503 or 504, after {@code Retry-After} or a pause that grows. It
 * never repeats a request whose outcome is unknown.
 */
public final class KeyedSender {
    private static final int BODY_MAX = 64 * 1024;
    private static final long PAUSE_MS = 100;
    private static final long PAUSE_MAX_MS = 5000;

    private final HttpClient client;
    private final Duration within;

    /**
     * A sender.
     *
     * @param within the limit of all tries of one request, without the last one
     */
    public KeyedSender(HttpClient client, Duration within) {
        this.client = client;
        this.within = within;
    }

    /** Sends a request under a fresh key. */
    public HttpResponse<byte[]> send(HttpRequest request) throws IOException, InterruptedException {
        return send(request, UUID.randomUUID().toString());
    }

    /**
     * Sends a request under this key, such as one that was kept with the operation: a program that
     * was restarted sends the same.
     *
     * @param request its body has to be one that can be sent again
     */
    public HttpResponse<byte[]> send(HttpRequest request, String key)
            throws IOException, InterruptedException {
        HttpRequest keyed =
                HttpRequest.newBuilder(request, (name, value) -> true)
                        .setHeader(IdempotencyKey.NAME, key)
                        .build();
        long ends = System.nanoTime() + within.toNanos();
        for (int tries = 0; ; tries++) {
            long pause = pause(tries);
            try {
                HttpResponse<byte[]> response =
                        client.send(keyed, HttpResponse.BodyHandlers.ofByteArray());
                pause = Math.max(pause, retryAfter(response));
                if (!canHelp(response) || isOver(pause, ends)) {
                    return response;
                }
            } catch (IOException unanswered) {
                if (isOver(pause, ends)) {
                    throw unanswered;
                }
            }
            Thread.sleep(pause);
        }
    }

    private static boolean isOver(long pause, long ends) {
        return pause >= (ends - System.nanoTime()) / 1_000_000;
    }

    /** Full jitter: callers that failed together do not come back together. */
    private static long pause(int tries) {
        long most = Math.min(PAUSE_MAX_MS, PAUSE_MS << Math.min(tries, 10));
        return ThreadLocalRandom.current().nextLong(most + 1);
    }

    private static long retryAfter(HttpResponse<?> response) {
        String value = response.headers().firstValue("Retry-After").orElse("").strip();
        if (value.matches("[0-9]{1,9}")) {
            return Long.parseLong(value) * 1000;
        }
        try {
            var at = ZonedDateTime.parse(value, DateTimeFormatter.RFC_1123_DATE_TIME);
            return Math.max(0, at.toInstant().toEpochMilli() - System.currentTimeMillis());
        } catch (DateTimeParseException none) {
            return 0;
        }
    }

    private static boolean canHelp(HttpResponse<byte[]> response) {
        return switch (response.statusCode()) {
            case 425, 429, 502, 503, 504 -> true;
            case 409 -> "in_progress".equals(state(response.body()));
            default -> false;
        };
    }

    private static String state(byte[] body) {
        if (body.length > BODY_MAX) {
            return null;
        }
        try {
            Object value = new JsonText(new String(body, StandardCharsets.UTF_8)).value();
            return value instanceof Map<?, ?> members
                            && members.get("state") instanceof String state
                    ? state
                    : null;
        } catch (IllegalArgumentException notJson) {
            return null;
        }
    }
}
