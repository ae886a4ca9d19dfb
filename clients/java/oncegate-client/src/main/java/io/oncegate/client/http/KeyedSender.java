package io.oncegate.client.http;

import java.io.IOException;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.UUID;

/**
 * Sends requests with an {@code Idempotency-Key} to a service that understands it: one key for each
 * operation, the same key and bytes in each try.
 *
 * <p>It repeats a request without an answer, and those that are answered with 409 and {@code state:
 * in_progress}, 408, 425, 429, 502, 503 or 504, after {@code Retry-After} or a pause that grows. It
 * never repeats a request whose outcome is unknown.
 */
public final class KeyedSender {
    private final HttpClient client;
    private final Duration within;

    /** A sender whose tries of one request take at most 60 s, without the last one. */
    public KeyedSender(HttpClient client) {
        this(client, Tries.WITHIN);
    }

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
     * Sends a request under this key, for example a key that is stored with the operation: a
     * restarted program sends the same.
     *
     * @param request its body must be repeatable
     */
    public HttpResponse<byte[]> send(HttpRequest request, String key)
            throws IOException, InterruptedException {
        HttpRequest keyed =
                HttpRequest.newBuilder(request, (name, value) -> true)
                        .setHeader(IdempotencyKey.NAME, key)
                        .build();
        var tries = new Tries(within);
        while (true) {
            long pause;
            try {
                HttpResponse<byte[]> response =
                        client.send(keyed, HttpResponse.BodyHandlers.ofByteArray());
                String after = response.headers().firstValue("Retry-After").orElse("");
                pause = tries.after(response.statusCode(), after, response::body);
                if (pause < 0) {
                    return response;
                }
            } catch (IOException unanswered) {
                pause = tries.afterNone();
                if (pause < 0) {
                    throw unanswered;
                }
            }
            Thread.sleep(pause);
        }
    }
}
