package io.oncegate.client;

import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/**
 * One request and its answer, on a separate thread: a caller that is interrupted leaves, and the
 * exchange continues. {@code HttpClient.send} costs less than {@code sendAsync}, which starts a
 * thread for each answer where there are one or two processors.
 */
final class Exchange extends FutureTask<HttpResponse<String>> {
    private volatile Consumer<HttpResponse<String>> observer;

    Exchange(HttpClient http, HttpRequest request) {
        super(() -> http.send(request, info -> new BoundedBody()));
    }

    /**
     * Leaves the exchange to itself.
     *
     * @param ends the monotonic time at which it is cancelled
     * @param observer receives the answer that comes before that, or null if none does
     */
    void abandon(long ends, Consumer<HttpResponse<String>> observer) {
        this.observer = observer;
        CompletableFuture.delayedExecutor(
                        ends - System.nanoTime(), TimeUnit.NANOSECONDS, Runnable::run)
                .execute(() -> cancel(true));
        if (isDone()) {
            observe();
        }
    }

    @Override
    protected void done() {
        observe();
    }

    private synchronized void observe() {
        if (observer != null) {
            Consumer<HttpResponse<String>> once = observer;
            observer = null;
            once.accept(answer());
        }
    }

    private HttpResponse<String> answer() {
        try {
            return get();
        } catch (CancellationException | ExecutionException | InterruptedException none) {
            return null;
        }
    }
}
