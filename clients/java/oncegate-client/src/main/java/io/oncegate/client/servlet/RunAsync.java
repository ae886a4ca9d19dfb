package io.oncegate.client.servlet;

import jakarta.servlet.AsyncContext;
import jakarta.servlet.AsyncEvent;
import jakarta.servlet.AsyncListener;
import jakarta.servlet.ServletContext;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import java.io.IOException;
import java.io.UncheckedIOException;

/**
 * The asynchronous mode of a recorded request: its end reports, and the handler gets no event when
 * its caller disconnects.
 */
final class RunAsync implements AsyncContext {
    private static final System.Logger LOG = System.getLogger("io.oncegate.client");

    private final AsyncContext context;
    private final Exchange exchange;

    RunAsync(AsyncContext context, Exchange exchange) {
        this.context = context;
        this.exchange = exchange;
    }

    @Override
    public void complete() {
        finish();
        unlessGone(context::complete);
    }

    private void finish() {
        try {
            exchange.response().finish();
        } catch (IOException failed) {
            throw new UncheckedIOException(failed);
        }
    }

    @Override
    public void dispatch() {
        unlessGone(context::dispatch);
    }

    @Override
    public void dispatch(String path) {
        unlessGone(() -> context.dispatch(path));
    }

    @Override
    public void dispatch(ServletContext to, String path) {
        unlessGone(() -> context.dispatch(to, path));
    }

    /**
     * Once the caller has disconnected, the container has ended the request; the response is
     * complete.
     */
    private void unlessGone(Runnable action) {
        try {
            action.run();
        } catch (IllegalStateException ended) {
            if (!exchange.response().isGone()) {
                throw ended;
            }
            finish();
        }
    }

    @Override
    public ServletRequest getRequest() {
        return context.getRequest();
    }

    @Override
    public ServletResponse getResponse() {
        return context.getResponse();
    }

    @Override
    public boolean hasOriginalRequestAndResponse() {
        return context.hasOriginalRequestAndResponse();
    }

    @Override
    public void start(Runnable work) {
        context.start(work);
    }

    @Override
    public void addListener(AsyncListener listener) {
        context.addListener(new Guarded(listener));
    }

    @Override
    public void addListener(
            AsyncListener listener, ServletRequest request, ServletResponse response) {
        context.addListener(new Guarded(listener), request, response);
    }

    @Override
    public <T extends AsyncListener> T createListener(Class<T> type) throws ServletException {
        return context.createListener(type);
    }

    @Override
    public void setTimeout(long timeout) {
        context.setTimeout(timeout);
    }

    @Override
    public long getTimeout() {
        return context.getTimeout();
    }

    /** Returns the listener that ends a run whose end no other place has seen. */
    AsyncListener end() {
        return new AsyncListener() {
            @Override
            public void onComplete(AsyncEvent event) {
                boolean isOver = exchange.run().hasEnded() || exchange.response().isGone();
                // What was answered elsewhere is judged when the request is destroyed.
                if (isOver || exchange.isAnsweredElsewhere()) {
                    return;
                }
                LOG.log(
                        System.Logger.Level.ERROR,
                        "{0}: the request ended in a dispatch that the filter did not see, so its"
                                + " outcome is unknown; register the filter for REQUEST, ASYNC and"
                                + " ERROR",
                        exchange.run().operation());
                exchange.run().broken();
            }

            @Override
            public void onTimeout(AsyncEvent event) {}

            /** The first listener: it keeps from the others that the caller has disconnected. */
            @Override
            public void onError(AsyncEvent event) {
                if (event.getThrowable() instanceof IOException) {
                    exchange.response().callerGone();
                }
            }

            @Override
            public void onStartAsync(AsyncEvent event) {}
        };
    }

    /** Hides from a listener that its caller has disconnected. */
    private final class Guarded implements AsyncListener {
        private final AsyncListener listener;

        Guarded(AsyncListener listener) {
            this.listener = listener;
        }

        private boolean isHidden() {
            return exchange.response().isGone() && !exchange.stopsWhenGone();
        }

        @Override
        public void onComplete(AsyncEvent event) throws IOException {
            if (!isHidden()) {
                listener.onComplete(event);
            }
        }

        @Override
        public void onTimeout(AsyncEvent event) throws IOException {
            listener.onTimeout(event);
        }

        @Override
        public void onError(AsyncEvent event) throws IOException {
            if (!isHidden()) {
                listener.onError(event);
            }
        }

        @Override
        public void onStartAsync(AsyncEvent event) throws IOException {
            listener.onStartAsync(event);
        }
    }
}
