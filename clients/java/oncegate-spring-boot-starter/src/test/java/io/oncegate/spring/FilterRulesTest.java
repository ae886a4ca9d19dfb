package io.oncegate.spring;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.oncegate.client.http.Field;
import io.oncegate.client.http.Idempotency;
import io.oncegate.client.http.Problem;
import io.oncegate.client.http.Reply;
import io.oncegate.client.servlet.IdempotencyFilter;
import io.oncegate.client.testing.MemoryGateway;
import io.oncegate.client.testing.StoredClaim;
import io.oncegate.spring.webflux.IdempotencyWebFilter;
import jakarta.servlet.Filter;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.springframework.http.HttpStatus;
import org.springframework.mock.http.server.reactive.MockServerHttpRequest;
import org.springframework.mock.web.MockFilterChain;
import org.springframework.mock.web.MockHttpServletRequest;
import org.springframework.mock.web.MockHttpServletResponse;
import org.springframework.mock.web.server.MockServerWebExchange;
import org.springframework.web.server.ServerWebExchange;
import reactor.core.publisher.Mono;

/** Rules of both filters that no vector shows. */
class FilterRulesTest {
    private final MemoryGateway gateway = new MemoryGateway();

    private <R> Idempotency<R> rules(String operation) {
        return new Idempotency<R>(gateway.client(), operation).principal(request -> "alice");
    }

    private static MockHttpServletResponse post(String key, Filter... filters) throws Exception {
        var servlet =
                new HttpServlet() {
                    private static final long serialVersionUID = 1;

                    @Override
                    protected void doPost(
                            HttpServletRequest request, HttpServletResponse response) {
                        response.setStatus(201);
                    }
                };
        var request = new MockHttpServletRequest("POST", "/orders");
        request.addHeader("Idempotency-Key", key);
        var response = new MockHttpServletResponse();
        new MockFilterChain(servlet, filters).doFilter(request, response);
        return response;
    }

    private static MockServerWebExchange postReactively(
            String key, IdempotencyWebFilter outer, IdempotencyWebFilter inner) {
        var request = MockServerHttpRequest.post("/orders").header("Idempotency-Key", key);
        var exchange = MockServerWebExchange.from(request);
        outer.filter(exchange, next -> inner.filter(next, FilterRulesTest::created)).block();
        return exchange;
    }

    private static Mono<Void> created(ServerWebExchange exchange) {
        exchange.getResponse().setStatusCode(HttpStatus.CREATED);
        return exchange.getResponse().setComplete();
    }

    private List<String> operations() {
        return gateway.claims().stream().map(StoredClaim::operation).toList();
    }

    @Test
    void ofTwoFiltersTheInnerOnePasses() throws Exception {
        var outer = new IdempotencyFilter(rules("outer"));
        var inner = new IdempotencyFilter(rules("inner"));
        for (String replayed : new String[] {null, "true"}) {
            MockHttpServletResponse response = post("k-1", outer, inner);
            assertThat(response.getStatus()).isEqualTo(201);
            assertThat(response.getHeader("Idempotent-Replayed")).isEqualTo(replayed);
        }
        assertThat(operations()).containsExactly("outer");
    }

    @Test
    void ofTwoReactiveFiltersTheInnerOnePasses() {
        var outer = new IdempotencyWebFilter(rules("outer"), List.of());
        var inner = new IdempotencyWebFilter(rules("inner"), List.of());
        for (String replayed : new String[] {null, "true"}) {
            var response = postReactively("k-1", outer, inner).getResponse();
            assertThat(response.getStatusCode()).isEqualTo(HttpStatus.CREATED);
            assertThat(response.getHeaders().getFirst("Idempotent-Replayed")).isEqualTo(replayed);
        }
        assertThat(operations()).containsExactly("outer");
    }

    @Test
    void aWaitIsAtMostAnHour() {
        Idempotency<HttpServletRequest> rules = rules("shop.http");
        rules.waitFor(Duration.ofHours(1));
        assertThatThrownBy(() -> rules.waitFor(Duration.ofHours(1).plusMillis(1)))
                .isInstanceOf(IllegalArgumentException.class)
                .hasMessage("waitFor is PT1H0.001S: at most an hour");
    }

    private static Reply own(Problem problem) {
        byte[] text = ("own " + problem.code()).getBytes(StandardCharsets.UTF_8);
        return new Reply(418, List.of(new Field("X-Own", "1")), text, List.of());
    }

    @Test
    void refusalsHaveTheFormOfTheService() throws Exception {
        Idempotency<HttpServletRequest> rules = rules("shop.http");
        var response = post("no key", new IdempotencyFilter(rules.render(FilterRulesTest::own)));
        assertThat(response.getStatus()).isEqualTo(418);
        assertThat(response.getHeader("X-Own")).isEqualTo("1");
        assertThat(response.getContentAsString()).isEqualTo("own idempotency_key_invalid");
        Idempotency<ServerWebExchange> reactive = rules("shop.http");
        var filter = new IdempotencyWebFilter(reactive.render(FilterRulesTest::own), List.of());
        var answer = postReactively("no key", filter, filter).getResponse();
        assertThat(answer.getStatusCode().value()).isEqualTo(418);
        assertThat(answer.getBodyAsString().block()).isEqualTo("own idempotency_key_invalid");
        assertThat(gateway.claims()).isEmpty();
    }

    @Test
    void anErrorOfThePrincipalGoesToTheFramework() {
        Idempotency<HttpServletRequest> rules = rules("shop.http");
        var filter =
                new IdempotencyFilter(
                        rules.principal(
                                request -> {
                                    throw new IllegalStateException("no session");
                                }));
        assertThatThrownBy(() -> post("k-1", filter)).hasMessage("no session");
        Idempotency<ServerWebExchange> reactive = rules("shop.http");
        var reactiveFilter =
                new IdempotencyWebFilter(
                        reactive,
                        exchange -> Mono.error(new IllegalStateException("x")),
                        List.of());
        assertThatThrownBy(() -> postReactively("k-1", reactiveFilter, reactiveFilter))
                .hasMessage("x");
        assertThat(gateway.claims()).isEmpty();
    }
}
