package io.oncegate.client;

import io.oncegate.client.Cause.Kind;
import java.net.ConnectException;
import java.net.URI;
import java.net.UnknownHostException;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpTimeoutException;
import java.nio.channels.UnresolvedAddressException;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executor;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import javax.net.ssl.SSLException;

/**
 * Sends one request to one gateway. Connections are kept and used again, since each answer is read
 * to its end.
 */
final class Transport {
    private static final String VERSION = version();

    private final Options options;
    private final HttpClient http;

    /**
     * Common part of all requests. They have no timeout of their own: it would wake the thread of
     * all connections for each call.
     */
    private final HttpRequest.Builder template;

    /** Threads of exchanges. They are daemons, and end when they are idle. */
    private final Executor threads =
            Executors.newCachedThreadPool(Background.named("oncegate-http-"));

    Transport(Options options) {
        this.options = options;
        http =
                HttpClient.newBuilder()
                        .version(HttpClient.Version.HTTP_1_1)
                        .connectTimeout(options.timeout)
                        .build();
        template = HttpRequest.newBuilder().header("User-Agent", "oncegate-java/" + VERSION);
        if (options.credential != null) {
            template.header("Authorization", "Bearer " + options.credential);
        }
    }

    private static String version() {
        String version = Transport.class.getPackage().getImplementationVersion();
        return version == null ? "dev" : version;
    }

    int gateways() {
        return options.urls.size();
    }

    /**
     * Sends a call and waits for its answer.
     *
     * @param interruptible false: an interrupt is remembered, and does not end the wait
     * @param abandoned receives the answer that arrives after the wait was interrupted, or null if
     *     none does
     */
    Response send(
            Call call, int gateway, long nanos, boolean interruptible, Consumer<Response> abandoned)
            throws NoAnswer, InterruptedException {
        String url = options.urls.get(gateway);
        if (options.answerer != null) {
            return answered(call, url, gateway);
        }
        // A lease counts from here: the answer may take long.
        long sent = options.nanoTime.getAsLong();
        long ends = System.nanoTime() + nanos;
        var exchange = new Exchange(http, request(call, url));
        threads.execute(exchange);
        try {
            return read(call, url, gateway, sent, await(exchange, ends, interruptible));
        } catch (InterruptedException interrupted) {
            exchange.abandon(
                    ends,
                    answer -> {
                        Response late;
                        try {
                            late = answer == null ? null : read(call, url, gateway, sent, answer);
                        } catch (NoAnswer none) {
                            late = null;
                        }
                        abandoned.accept(late);
                    });
            throw interrupted;
        } catch (ExecutionException failed) {
            Throwable why = failed.getCause();
            throw new NoAnswer(new Cause(url, kind(why), String.valueOf(why)));
        } catch (TimeoutException late) {
            exchange.cancel(true);
            throw new NoAnswer(
                    new Cause(url, Kind.TIMEOUT, "no answer within " + nanos / 1_000_000 + " ms"));
        }
    }

    private Response answered(Call call, String url, int gateway)
            throws NoAnswer, InterruptedException {
        long sent = options.nanoTime.getAsLong();
        Answerer.Answer answer =
                options.answerer.answer(call.path(), call.body(), options.credential);
        if (answer == null) {
            throw new NoAnswer(new Cause(url, Kind.REFUSED, "the test answers nothing"));
        }
        return read(call, url, gateway, sent, answer.status(), answer.body(), "", null);
    }

    private HttpRequest request(Call call, String url) {
        var request = template.copy().uri(URI.create(url + call.path()));
        if (call.body() != null) {
            request.header("Content-Type", "application/json")
                    .POST(HttpRequest.BodyPublishers.ofString(call.body()));
        }
        String traceparent = options.traceparent.get();
        if (traceparent != null) {
            request.header("traceparent", traceparent);
        }
        return request.build();
    }

    /** Waits for the whole answer, its body too. */
    private static <T> T await(Future<T> future, long ends, boolean interruptible)
            throws ExecutionException, TimeoutException, InterruptedException {
        boolean interrupted = false;
        try {
            while (true) {
                try {
                    return future.get(Math.max(0, ends - System.nanoTime()), TimeUnit.NANOSECONDS);
                } catch (InterruptedException interrupt) {
                    if (interruptible) {
                        throw interrupt;
                    }
                    interrupted = true;
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private static Response read(
            Call call, String url, int gateway, long sent, HttpResponse<String> answer)
            throws NoAnswer {
        var headers = answer.headers();
        String type = headers.firstValue("content-type").orElse("without a content type");
        String id = headers.firstValue("x-request-id").orElse(null);
        return read(call, url, gateway, sent, answer.statusCode(), answer.body(), type, id);
    }

    private static Response read(
            Call call,
            String url,
            int gateway,
            long sent,
            int status,
            String body,
            String type,
            String requestId)
            throws NoAnswer {
        Map<String, Object> named = new LinkedHashMap<>();
        try {
            if (Json.read(body) instanceof Map<?, ?> fields) {
                fields.forEach((name, value) -> named.put((String) name, value));
            }
        } catch (IllegalArgumentException notJson) {
            // Not from a gateway, as below.
        }
        Object member = named.get(status < 300 ? call.member() : "code");
        if (member == null || status < 200 || (status >= 300 && !(member instanceof String))) {
            throw new NoAnswer(
                    new Cause(
                            url,
                            Kind.NOT_A_GATEWAY,
                            "answered " + status + ", " + type + "; check the URL",
                            status,
                            null,
                            null));
        }
        String id = named.get("request_id") instanceof String own ? own : requestId;
        return new Response(status, named, sent, gateway, id);
    }

    private static Kind kind(Throwable failure) {
        for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
            if (cause instanceof UnresolvedAddressException
                    || cause instanceof UnknownHostException) {
                return Kind.DNS;
            }
            if (cause instanceof HttpTimeoutException) {
                return Kind.TIMEOUT;
            }
            if (cause instanceof SSLException) {
                return Kind.TLS;
            }
            if (cause instanceof BoundedBody.TooLong) {
                return Kind.NOT_A_GATEWAY;
            }
        }
        return failure instanceof ConnectException ? Kind.REFUSED : Kind.CONNECTION;
    }

    /** A call without an answer of a gateway: it is not known whether one acted on it. */
    static final class NoAnswer extends Exception {
        final transient Cause why;

        NoAnswer(Cause why) {
            super(why.detail(), null, false, false);
            this.why = why;
        }
    }
}
