package io.oncegate.client.http;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.time.Duration;
import java.util.Set;
import java.util.UUID;
import okhttp3.Interceptor;
import okhttp3.Request;
import okhttp3.Response;

/**
 * Does for OkHttp what {@link KeyedSender} does for the client of the JDK: each call with an effect
 * gets an {@code Idempotency-Key}, and is repeated under it, with the same bytes, until it is
 * answered. A request that has a key keeps it.
 *
 * <pre>{@code new OkHttpClient.Builder().addInterceptor(new KeyedInterceptor()).build()}
 * </pre>
 *
 * <p>A body that can be written only once is sent once. An outcome that is unknown is never
 * repeated.
 */
public final class KeyedInterceptor implements Interceptor {
    private static final Set<String> SAFE = Set.of("GET", "HEAD", "OPTIONS", "TRACE", "CONNECT");

    /** A call can be cancelled while it pauses. */
    private static final long STEP_MS = 50;

    private final Duration within;

    /**
     * An interceptor for {@code addInterceptor} whose tries of one call take at most 60 s, without
     * the last one.
     */
    public KeyedInterceptor() {
        this(Tries.WITHIN);
    }

    /**
     * An interceptor for {@code addInterceptor}, not for {@code addNetworkInterceptor}.
     *
     * @param within the limit of all tries of one call, without the last one
     */
    public KeyedInterceptor(Duration within) {
        this.within = within;
    }

    @Override
    public Response intercept(Chain chain) throws IOException {
        Request request = chain.request();
        if (SAFE.contains(request.method())) {
            return chain.proceed(request);
        }
        if (request.header(IdempotencyKey.NAME) == null) {
            String key = UUID.randomUUID().toString();
            request = request.newBuilder().header(IdempotencyKey.NAME, key).build();
        }
        var body = request.body();
        boolean isSentOnce = body != null && (body.isOneShot() || body.isDuplex());
        return isSentOnce ? chain.proceed(request) : untilAnswered(chain, request);
    }

    private Response untilAnswered(Chain chain, Request request) throws IOException {
        var tries = new Tries(within);
        while (true) {
            long pause;
            try {
                Response response = chain.proceed(request);
                String after = response.header("Retry-After", "");
                pause =
                        tries.after(
                                response.code(),
                                after,
                                () -> response.peekBody(Tries.BODY_MAX + 1).bytes());
                if (pause < 0) {
                    return response;
                }
                response.close();
            } catch (IOException unanswered) {
                pause = chain.call().isCanceled() ? -1 : tries.afterNone();
                if (pause < 0) {
                    throw unanswered;
                }
            }
            pause(chain, pause);
        }
    }

    private static void pause(Chain chain, long millis) throws IOException {
        for (long left = millis; left > 0; left -= STEP_MS) {
            if (chain.call().isCanceled()) {
                throw new IOException("Canceled");
            }
            try {
                Thread.sleep(Math.min(left, STEP_MS));
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
                throw new InterruptedIOException("interrupted between two tries");
            }
        }
    }
}
