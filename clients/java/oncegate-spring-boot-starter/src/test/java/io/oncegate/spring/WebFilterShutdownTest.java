package io.oncegate.spring;

import static org.assertj.core.api.Assertions.assertThat;

import io.oncegate.client.http.Idempotency;
import io.oncegate.client.testing.MemoryGateway;
import io.oncegate.spring.webflux.IdempotencyWebFilter;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.junit.jupiter.api.Test;
import org.springframework.boot.web.context.WebServerGracefulShutdownLifecycle;
import org.springframework.context.support.GenericApplicationContext;
import org.springframework.mock.http.server.reactive.MockServerHttpRequest;
import org.springframework.mock.web.server.MockServerWebExchange;
import org.springframework.web.server.ServerWebExchange;
import reactor.core.publisher.Mono;

/** The shutdown of an application whose handlers still run, although their callers have gone. */
class WebFilterShutdownTest {
    private static final int REQUESTS_END =
            WebServerGracefulShutdownLifecycle.SMART_LIFECYCLE_PHASE;

    @Test
    void theShutdownWaitsForHandlersWithoutCallers() throws Exception {
        var gateway = new MemoryGateway();
        var rules = new Idempotency<ServerWebExchange>(gateway.client(), "shop.http").sharedKeys();
        var context = new GenericApplicationContext();
        context.registerBean(
                IdempotencyWebFilter.class, () -> new IdempotencyWebFilter(rules, List.of()));
        context.refresh();
        var filter = context.getBean(IdempotencyWebFilter.class);
        var begun = new CountDownLatch(1);
        var work = new CompletableFuture<Void>();
        var exchange =
                MockServerWebExchange.from(
                        MockServerHttpRequest.post("/orders").header("Idempotency-Key", "k-1"));
        var caller =
                filter.filter(
                                exchange,
                                handlers -> {
                                    begun.countDown();
                                    return Mono.fromFuture(work)
                                            .then(handlers.getResponse().setComplete());
                                })
                        .subscribe();
        assertThat(begun.await(10, TimeUnit.SECONDS)).isTrue();
        caller.dispose();
        CompletableFuture<Void> closed = CompletableFuture.runAsync(context::close);
        assertThat(isOpenFor(Duration.ofMillis(300), closed)).isTrue();
        work.complete(null);
        closed.get(20, TimeUnit.SECONDS);
        assertThat(gateway.claims().get(0).state()).isEqualTo("succeeded");
    }

    private static boolean isOpenFor(Duration time, CompletableFuture<Void> closed)
            throws Exception {
        try {
            closed.get(time.toMillis(), TimeUnit.MILLISECONDS);
            return false;
        } catch (TimeoutException isOpen) {
            return true;
        }
    }

    @Test
    void itWaitsAfterTheRequestsHaveEndedAndBeforeTheServerStops() {
        var rules =
                new Idempotency<ServerWebExchange>(new MemoryGateway().client(), "shop.http")
                        .sharedKeys();
        int phase = new IdempotencyWebFilter(rules, List.of()).getPhase();
        assertThat(phase).isLessThan(REQUESTS_END).isGreaterThan(REQUESTS_END - 1024);
    }
}
