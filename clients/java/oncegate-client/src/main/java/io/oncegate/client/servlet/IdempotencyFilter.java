package io.oncegate.client.servlet;

import io.oncegate.client.http.Answer;
import io.oncegate.client.http.Engine;
import io.oncegate.client.http.Idempotency;
import jakarta.servlet.DispatcherType;
import jakarta.servlet.Filter;
import jakarta.servlet.FilterChain;
import jakarta.servlet.FilterConfig;
import jakarta.servlet.ServletContext;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.time.Duration;

/**
 * Lets each request with an {@code Idempotency-Key} run once, and answers its repeats with the
 * stored response.
 *
 * <p>Register it behind the authentication, for {@code /*}, and for the dispatches REQUEST, ASYNC
 * and ERROR: answers of error pages are responses too. {@link Idempotency#when} chooses requests.
 */
public final class IdempotencyFilter implements Filter {
    private static final Duration DRAIN = Duration.ofSeconds(30);

    private final Engine<HttpServletRequest> engine;

    /** A filter with these rules. */
    public IdempotencyFilter(Idempotency<HttpServletRequest> rules) {
        engine = new Engine<>(rules);
    }

    /**
     * Lets the filter see answers that are given outside of it, such as by Spring Security. The
     * filter does so itself where the container takes listeners when filters begin. Spring Boot's
     * Jetty does not: there call this from a {@code ServletContextInitializer}, as the starter
     * does.
     */
    public static void listen(ServletContext context) {
        UnansweredErrors.register(context);
    }

    @Override
    public void init(FilterConfig config) {
        UnansweredErrors.register(config.getServletContext());
    }

    /** Waits until no handler runs; returns false if some still ran at the end of the time. */
    public boolean drain(Duration within) throws InterruptedException {
        return engine.drain(within);
    }

    @Override
    public void destroy() {
        try {
            drain(DRAIN);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    @Override
    public void doFilter(ServletRequest request, ServletResponse response, FilterChain chain)
            throws IOException, ServletException {
        if (request instanceof HttpServletRequest http
                && response instanceof HttpServletResponse answer) {
            filter(http, answer, chain);
        } else {
            chain.doFilter(request, response);
        }
    }

    private void filter(HttpServletRequest request, HttpServletResponse response, FilterChain chain)
            throws IOException, ServletException {
        Exchange exchange = Exchange.of(request);
        if (exchange != null && exchange.isForNobody(request.getDispatcherType())) {
            return;
        }
        if (exchange != null && exchange.mayContinue(request.getDispatcherType())) {
            exchange.dispatch(request, response, chain);
        } else if (exchange != null || request.getDispatcherType() != DispatcherType.REQUEST) {
            // An outer filter of the same kind protects it, or nothing does.
            chain.doFilter(request, response);
        } else {
            begin(request, response, chain);
        }
    }

    private void begin(HttpServletRequest request, HttpServletResponse response, FilterChain chain)
            throws IOException, ServletException {
        var head = new ServletHead(request);
        Answer entered = engine.enter(head, request);
        if (!(entered instanceof Answer.Keyed keyed)) {
            settle(entered, request, response, chain);
            return;
        }
        String principal = engine.principal(request);
        Answer without = engine.withoutPrincipal(principal);
        if (without != null) {
            settle(without, request, response, chain);
            return;
        }
        ReadBody body = ReadBody.of(request, engine.bodyBytes());
        if (body.problem() != null) {
            boolean passes = engine.isObserving() && body.canBeRead();
            Answer refused = engine.refuse(body.problem());
            settle(
                    refused,
                    passes ? new BufferedRequest(request, body, null) : request,
                    response,
                    chain);
            return;
        }
        Answer claimed = claim(keyed, principal, head, body);
        if (claimed instanceof Answer.Granted granted) {
            boolean stops = engine.isStoppedWhenGone();
            var exchange = new Exchange(granted.run(), body, response, stops);
            exchange.sayDegraded(response);
            exchange.attach(request);
            exchange.dispatch(request, response, chain);
        } else {
            settle(claimed, new BufferedRequest(request, body, null), response, chain);
        }
    }

    private Answer claim(Answer.Keyed keyed, String principal, ServletHead head, ReadBody body)
            throws ServletException {
        try {
            return engine.claim(keyed, principal, head, body.bytes());
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
            throw new ServletException("The server is stopping: nothing ran", stopped);
        }
    }

    private static void settle(
            Answer answer,
            HttpServletRequest request,
            HttpServletResponse response,
            FilterChain chain)
            throws IOException, ServletException {
        if (answer instanceof Answer.Answered answered) {
            Replies.send(answered.reply(), response, Replies.takesTrailers(request));
        } else {
            chain.doFilter(request, response);
        }
    }
}
