package io.oncegate.spring;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.oncegate.client.http.Idempotency;
import io.oncegate.client.servlet.IdempotencyFilter;
import io.oncegate.client.testing.MemoryGateway;
import io.oncegate.client.testing.StoredClaim;
import io.oncegate.spring.webflux.IdempotencyWebFilter;
import jakarta.servlet.DispatcherType;
import jakarta.servlet.Filter;
import jakarta.servlet.ServletContext;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletRequestEvent;
import jakarta.servlet.ServletRequestListener;
import jakarta.servlet.http.HttpServletResponse;
import java.util.ArrayList;
import java.util.EventListener;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.springframework.http.HttpStatusCode;
import org.springframework.mock.http.server.reactive.MockServerHttpRequest;
import org.springframework.mock.web.MockFilterChain;
import org.springframework.mock.web.MockFilterConfig;
import org.springframework.mock.web.MockHttpServletRequest;
import org.springframework.mock.web.MockHttpServletResponse;
import org.springframework.mock.web.MockServletContext;
import org.springframework.mock.web.server.MockServerWebExchange;
import org.springframework.security.Denied;
import org.springframework.web.server.ServerWebExchange;
import org.springframework.web.server.WebExceptionHandler;
import reactor.core.publisher.Mono;

/** Errors of a handler that a layer outside of the filter answers, as Spring Security does. */
class AnsweredOutsideTest {
    private final MemoryGateway gateway = new MemoryGateway();

    private List<String> states() {
        return gateway.claims().stream().map(StoredClaim::state).toList();
    }

    private static <R> Idempotency<R> rules(MemoryGateway gateway) {
        return new Idempotency<R>(gateway.client(), "shop.http").sharedKeys();
    }

    @ParameterizedTest
    @CsvSource({"403,", "422,succeeded", "500,unknown", "302,unknown"})
    void servletsAreJudgedByTheStatusOfTheAnswer(int status, String state) throws Exception {
        var container = new Container("Apache Tomcat/10.1.49");
        IdempotencyFilter filter = container.filter(gateway);
        MockHttpServletRequest request = container.request();
        var response = new MockHttpServletResponse();
        Filter denies =
                (its, answer, chain) -> {
                    throw new ServletException(new Denied());
                };
        var handler = new MockFilterChain(new NoServlet(), denies);
        assertThatThrownBy(() -> filter.doFilter(request, response, handler))
                .isInstanceOf(ServletException.class);
        assertThat(states()).containsExactly("in_progress");
        response.setStatus(status);
        response.getWriter().write("denied");
        container.destroys(request);
        assertThat(states()).isEqualTo(state == null ? List.of() : List.of(state));
    }

    /** Jetty says that a request has ended after each dispatch. */
    @ParameterizedTest
    @CsvSource({"sent", "async"})
    void theEndOfADispatchOnJettyIsNotThatOfTheRequest(String how) throws Exception {
        var container = new Container("jetty/12.0.36");
        IdempotencyFilter.listen(container);
        IdempotencyFilter filter = container.filter(gateway);
        assertThat(container.listeners).hasSize(1);
        MockHttpServletRequest request = container.request();
        var response = new MockHttpServletResponse();
        Filter begins =
                (its, answer, chain) -> {
                    if (how.equals("async")) {
                        its.startAsync(its, answer);
                    } else {
                        ((HttpServletResponse) answer).sendError(422);
                    }
                };
        filter.doFilter(request, response, new MockFilterChain(new NoServlet(), begins));
        container.destroys(request);
        assertThat(states()).containsExactly("in_progress");
        request.setAsyncStarted(false);
        boolean isAsync = how.equals("async");
        request.setDispatcherType(isAsync ? DispatcherType.ASYNC : DispatcherType.ERROR);
        // The error page is written to a response that is open again.
        var page = new MockHttpServletResponse();
        Filter answers = (its, answer, chain) -> answer.getWriter().write("page");
        filter.doFilter(request, page, new MockFilterChain(new NoServlet(), answers));
        container.destroys(request);
        assertThat(states()).containsExactly("succeeded");
        assertThat(gateway.claims().get(0).result().toString()).contains("\"body\":\"cGFnZQ==\"");
    }

    /** A container that keeps its listeners. */
    private static final class Container extends MockServletContext {
        private final List<ServletRequestListener> listeners = new ArrayList<>();
        private final String serverInfo;

        Container(String serverInfo) {
            this.serverInfo = serverInfo;
        }

        @Override
        public String getServerInfo() {
            return serverInfo;
        }

        @Override
        public <T extends EventListener> void addListener(T listener) {
            listeners.add((ServletRequestListener) listener);
        }

        IdempotencyFilter filter(MemoryGateway gateway) throws ServletException {
            var filter = new IdempotencyFilter(rules(gateway));
            filter.init(new MockFilterConfig((ServletContext) this));
            return filter;
        }

        MockHttpServletRequest request() {
            var request = new MockHttpServletRequest(this, "POST", "/orders");
            request.addHeader("Idempotency-Key", "k-1");
            request.setAsyncSupported(true);
            return request;
        }

        void destroys(MockHttpServletRequest request) {
            listeners.forEach(
                    each -> each.requestDestroyed(new ServletRequestEvent(this, request)));
        }
    }

    private static final class NoServlet extends jakarta.servlet.http.HttpServlet {
        private static final long serialVersionUID = 1;
    }

    private static final class OwnDenied extends Denied {
        private static final long serialVersionUID = 1;
    }

    private ServerWebExchange answeredReactively(RuntimeException thrown, int status) {
        WebExceptionHandler own =
                (exchange, error) -> {
                    exchange.getResponse().setStatusCode(HttpStatusCode.valueOf(418));
                    return exchange.getResponse().setComplete();
                };
        var filter = new IdempotencyWebFilter(rules(gateway), List.of(own));
        var exchange =
                MockServerWebExchange.from(
                        MockServerHttpRequest.post("/orders").header("Idempotency-Key", "k-1"));
        filter.filter(exchange, handlers -> Mono.error(thrown))
                .onErrorResume(
                        error -> {
                            exchange.getResponse().setStatusCode(HttpStatusCode.valueOf(status));
                            return exchange.getResponse().setComplete();
                        })
                .block();
        return exchange;
    }

    @ParameterizedTest
    @CsvSource({"403,", "422,succeeded", "500,unknown", "302,unknown"})
    void reactiveHandlersAreJudgedByTheStatusOfTheAnswer(int status, String state) {
        answeredReactively(new Denied(), status);
        assertThat(states()).isEqualTo(state == null ? List.of() : List.of(state));
    }

    @Test
    void errorsBelowThoseOfSecurityAreLeftToIt() {
        var exchange = answeredReactively(new OwnDenied(), 403);
        assertThat(exchange.getResponse().getStatusCode()).isEqualTo(HttpStatusCode.valueOf(403));
        assertThat(states()).isEmpty();
    }

    @Test
    void errorsOfOthersAreAnsweredWithin() {
        var exchange = answeredReactively(new IllegalStateException(), 403);
        assertThat(exchange.getResponse().getStatusCode()).isEqualTo(HttpStatusCode.valueOf(418));
        assertThat(states()).containsExactly("succeeded");
    }
}
