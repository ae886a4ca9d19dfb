package io.oncegate.client.servlet;

import io.oncegate.client.CurrentGrant;
import io.oncegate.client.http.Field;
import io.oncegate.client.http.Run;
import jakarta.servlet.AsyncContext;
import jakarta.servlet.DispatcherType;
import jakarta.servlet.FilterChain;
import jakarta.servlet.RequestDispatcher;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/** A request whose claim is granted, through all its dispatches. */
final class Exchange {
    private static final System.Logger LOG = System.getLogger("io.oncegate.client");
    private static final String ATTRIBUTE = "io.oncegate.exchange";

    /** Attributes in which frameworks keep an error that one of their handlers has answered. */
    private static final List<String> HANDLED =
            List.of(
                    "org.springframework.web.servlet.DispatcherServlet.EXCEPTION",
                    "org.springframework.boot.web.servlet.error.DefaultErrorAttributes.ERROR",
                    "org.springframework.boot.webmvc.error.DefaultErrorAttributes.ERROR",
                    RequestDispatcher.ERROR_EXCEPTION);

    /** The longest time until the error page that a container asks after the end of a request. */
    private static final Duration ERROR_PAGE_WITHIN = Duration.ofSeconds(5);

    private final Run run;
    private final ReadBody body;
    private final boolean stopsWhenGone;

    /** Fields that outer layers had set before the handler ran: these are not stored. */
    private final Map<String, List<String>> outer;

    /**
     * Names of the fields that the handler has set, in small letters. What else is on the response
     * is of outer layers: Spring Security writes its fields when an asynchronous handler has
     * returned, or sends an error.
     */
    private final Set<String> touched = ConcurrentHashMap.newKeySet();

    private HttpServletRequest request;

    /** The request as the handler sees it. */
    private BufferedRequest handlers;

    private RecordedResponse response;
    private RunAsync async;
    private volatile boolean isDispatching;
    private boolean isErrorSent;

    /** The status of the response when the handler threw; 0 if it did not. */
    private int statusWhenThrown;

    Exchange(Run run, ReadBody body, HttpServletResponse response, boolean stopsWhenGone) {
        this.run = run;
        this.body = body;
        this.stopsWhenGone = stopsWhenGone;
        outer = fields(response);
    }

    static Exchange of(ServletRequest request) {
        return (Exchange) request.getAttribute(ATTRIBUTE);
    }

    void attach(HttpServletRequest request) {
        this.request = request;
        request.setAttribute(ATTRIBUTE, this);
        request.setAttribute(CurrentGrant.ATTRIBUTE, run.grant());
    }

    /** Says by which outage policy the claim was granted. */
    void sayDegraded(HttpServletResponse response) {
        if (run.grant().degraded() != null) {
            response.setHeader("Oncegate-Degraded", run.grant().degraded());
        }
    }

    Run run() {
        return run;
    }

    RecordedResponse response() {
        return response;
    }

    boolean stopsWhenGone() {
        return stopsWhenGone;
    }

    void errorSent() {
        isErrorSent = true;
    }

    boolean isDispatching() {
        return isDispatching;
    }

    /**
     * Returns true for the error page of a disconnected caller while its handler still runs: the
     * page would use the handler's own request.
     */
    boolean isForNobody(DispatcherType type) {
        return type == DispatcherType.ERROR && !stopsWhenGone && async != null && response.isGone();
    }

    /** Returns true for a later dispatch of the same request. */
    boolean mayContinue(DispatcherType type) {
        boolean isLater = type == DispatcherType.ASYNC || type == DispatcherType.ERROR;
        return isLater && !isDispatching && !run.hasEnded();
    }

    /** Lets the handler answer, and reports when its response is complete. */
    void dispatch(HttpServletRequest request, HttpServletResponse to, FilterChain chain)
            throws IOException, ServletException {
        boolean isWrapped =
                to instanceof jakarta.servlet.ServletResponseWrapper wrapper
                        && (wrapper instanceof RecordedResponse
                                || wrapper.isWrapperFor(RecordedResponse.class));
        if (!isWrapped) {
            run.reset();
            isErrorSent = false;
            response = new RecordedResponse(to, this, Replies.takesTrailers(request));
        }
        boolean isBuffered =
                request instanceof jakarta.servlet.ServletRequestWrapper wrapper
                        && (wrapper instanceof BufferedRequest
                                || wrapper.isWrapperFor(BufferedRequest.class));
        if (!isBuffered) {
            handlers = new BufferedRequest(request, body, this);
        }
        isDispatching = true;
        try (var scope = CurrentGrant.open(run.grant())) {
            chain.doFilter(isBuffered ? request : handlers, isWrapped ? to : response);
        } catch (Throwable thrown) {
            isDispatching = false;
            threw(thrown);
            throw thrown;
        }
        isDispatching = false;
        if (!request.isAsyncStarted() && !isErrorSent) {
            response.finish();
        }
    }

    /** Reports the complete response. */
    void complete() {
        noteHandled();
        run.complete();
    }

    private void noteHandled() {
        for (String name : HANDLED) {
            if (request.getAttribute(name) instanceof Throwable handled) {
                run.thrown(cause(handled));
            }
        }
    }

    private void threw(Throwable thrown) {
        run.thrown(cause(thrown));
        statusWhenThrown = response.getStatus();
        if (response.isCommitted()) {
            run.broken();
        }
        // Else a layer outside answers, or the container asks an error page: that is the response.
    }

    /** Spring and containers wrap what a handler throws. */
    private static Throwable cause(Throwable thrown) {
        return thrown instanceof ServletException wrapped && wrapped.getRootCause() != null
                ? wrapped.getRootCause()
                : thrown;
    }

    /**
     * The container has answered without a dispatch that the filter sees, or not at all. On Jetty
     * it may be the end of one dispatch, after which the next one comes.
     */
    void destroyed() {
        if (run.hasEnded() || request.isAsyncStarted() || (async != null && response.isGone())) {
            return;
        }
        if (wasAnsweredOutside()) {
            run.answeredOutside(response.getStatus());
            return;
        }
        if (!isErrorSent) {
            boolean mayHavePage = statusWhenThrown != 0 && !response.isCommitted();
            if (mayHavePage && isOnJetty()) {
                run.later(ERROR_PAGE_WITHIN, this::brokenWithoutPage);
            } else {
                run.broken();
            }
            return;
        }
        noteHandled();
        int status = response.getStatus();
        List<Field> own = ownFields(response);
        if (async == null && !isOnJetty()) {
            answeredByContainer(status, own);
        } else {
            run.later(ERROR_PAGE_WITHIN, () -> answeredByContainer(status, own));
        }
    }

    /** Returns true on Jetty, which says that a request has ended before it asks the error page. */
    private boolean isOnJetty() {
        String server = request.getServletContext().getServerInfo();
        return server != null && server.toLowerCase(Locale.ROOT).startsWith("jetty");
    }

    private void brokenWithoutPage() {
        if (!run.hasEnded() && !isDispatching) {
            run.broken();
        }
    }

    private void answeredByContainer(int status, List<Field> own) {
        if (run.hasEnded() || isDispatching) {
            return;
        }
        LOG.log(
                System.Logger.Level.DEBUG,
                "{0}: the container answered an error itself: the response is not stored",
                run.operation());
        run.head(status, own);
        run.bodyNotRecorded();
        run.complete();
    }

    /** Returns true if the response to an error of the handler comes from elsewhere. */
    boolean isAnsweredElsewhere() {
        return isErrorSent || wasAnsweredOutside();
    }

    /** Returns true if a layer outside has refused the request for what the handler threw. */
    private boolean wasAnsweredOutside() {
        int status = response.getStatus();
        return statusWhenThrown != 0 && status != statusWhenThrown && Run.isRefusal(status);
    }

    AsyncContext started(AsyncContext context) {
        async = new RunAsync(context, this);
        context.addListener(async.end());
        return async;
    }

    AsyncContext async(AsyncContext context) {
        return async == null ? context : async;
    }

    /**
     * Returns true while the handler includes the output of another one. Fields and lengths have no
     * effect then, but Tomcat ignores them behind this layer.
     */
    boolean isIncluding() {
        return handlers != null
                && handlers.getAttribute(RequestDispatcher.INCLUDE_REQUEST_URI) != null;
    }

    /** Notes that the handler sets a field. */
    void touch(String name) {
        touched.add(name.toLowerCase(Locale.ROOT));
    }

    /** Returns the fields that the handler has set or changed. */
    List<Field> ownFields(HttpServletResponse response) {
        List<Field> own = new ArrayList<>();
        fields(response)
                .forEach(
                        (name, values) -> {
                            if (touched.contains(name) && !values.equals(outer.get(name))) {
                                values.forEach(value -> own.add(new Field(name, value)));
                            }
                        });
        return own;
    }

    private static Map<String, List<String>> fields(HttpServletResponse response) {
        Map<String, List<String>> fields = new HashMap<>();
        Collection<String> names = response.getHeaderNames();
        for (String name : names) {
            fields.put(name.toLowerCase(Locale.ROOT), List.copyOf(response.getHeaders(name)));
        }
        if (response.getContentType() != null) {
            fields.put("content-type", List.of(response.getContentType()));
        }
        return fields;
    }
}
