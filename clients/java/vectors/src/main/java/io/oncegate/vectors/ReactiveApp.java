package io.oncegate.vectors;

import io.oncegate.client.http.Idempotency;
import io.oncegate.spring.webflux.IdempotencyWebFilter;
import java.util.ArrayList;
import java.util.List;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Import;
import org.springframework.core.Ordered;
import org.springframework.core.annotation.Order;
import org.springframework.web.server.ServerWebExchange;
import org.springframework.web.server.WebExceptionHandler;
import org.springframework.web.server.WebFilter;
import reactor.core.publisher.Mono;

/** The reactive application: WebFlux on Netty. */
@SpringBootConfiguration(proxyBeanMethods = false)
@EnableAutoConfiguration
@Import(ReactiveHandler.class)
public class ReactiveApp {
    static final List<String> LACKS = List.of("trailers");

    /** A layer that reads forms before the middleware. */
    @Bean
    @Order(Ordered.HIGHEST_PRECEDENCE)
    WebFilter reader() {
        return (exchange, chain) ->
                exchange.getRequest().getURI().getRawPath().startsWith("/behind/")
                        ? exchange.getMultipartData().then(chain.filter(exchange))
                        : chain.filter(exchange);
    }

    @Bean
    @Order(0)
    WebFilter idempotency(ObjectProvider<WebExceptionHandler> errors) {
        List<IdempotencyWebFilter> filters = new ArrayList<>();
        List<WebExceptionHandler> handlers = errors.orderedStream().toList();
        Rules.<ServerWebExchange>all(
                        exchange -> exchange.getRequest().getHeaders().getFirst("Vector-User"))
                .forEach((at, rules) -> filters.add(filter(at, rules, handlers)));
        return (exchange, chain) -> next(filters, 0, exchange, chain);
    }

    private static Mono<Void> next(
            List<IdempotencyWebFilter> filters,
            int at,
            ServerWebExchange exchange,
            org.springframework.web.server.WebFilterChain chain) {
        return at == filters.size()
                ? chain.filter(exchange)
                : filters.get(at).filter(exchange, next -> next(filters, at + 1, next, chain));
    }

    private static IdempotencyWebFilter filter(
            String at, Idempotency<ServerWebExchange> rules, List<WebExceptionHandler> errors) {
        String prefix = "/" + at + "/";
        return new IdempotencyWebFilter(
                rules.when(
                        exchange -> exchange.getRequest().getURI().getRawPath().startsWith(prefix)),
                errors);
    }
}
