package io.oncegate.spring;

import static org.assertj.core.api.Assertions.assertThat;

import io.oncegate.client.Answerer;
import io.oncegate.client.OncegateClient;
import io.oncegate.client.Options;
import io.oncegate.client.http.Idempotency;
import io.oncegate.client.testing.MemoryGateway;
import io.oncegate.spring.webflux.IdempotencyWebFilter;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.Test;
import org.springframework.mock.http.server.reactive.MockServerHttpRequest;
import org.springframework.mock.web.server.MockServerWebExchange;
import org.springframework.web.server.ServerWebExchange;
import reactor.core.publisher.Mono;

/** A caller that disconnects while its key is being claimed. */
class WebFilterHangUpTest {
    @Test
    void aGrantThatMeetsNoHandlerIsGivenBack() throws Exception {
        var gateway = new MemoryGateway();
        var asked = new CountDownLatch(1);
        var left = new CountDownLatch(1);
        var reported = new CountDownLatch(1);
        Answerer late =
                (path, body) -> {
                    if (path.equals("/v1/claims")) {
                        asked.countDown();
                        awaitInSpiteOfInterrupts(left);
                    }
                    Answerer.Answer answer = gateway.answer(path, body);
                    if (path.endsWith("/outcome")) {
                        reported.countDown();
                    }
                    return answer;
                };
        var client =
                new OncegateClient(
                        new Options("http://memory.invalid").answerer(late).enabled(true));
        var rules = new Idempotency<ServerWebExchange>(client, "shop.http").sharedKeys();
        var filter = new IdempotencyWebFilter(rules, List.of());
        var hasRun = new AtomicBoolean();
        var exchange =
                MockServerWebExchange.from(
                        MockServerHttpRequest.post("/orders").header("Idempotency-Key", "k-1"));
        var caller =
                filter.filter(exchange, handlers -> Mono.fromRunnable(() -> hasRun.set(true)))
                        .subscribe();
        assertThat(asked.await(20, TimeUnit.SECONDS)).isTrue();
        caller.dispose();
        left.countDown();
        assertThat(reported.await(20, TimeUnit.SECONDS)).isTrue();
        assertThat(gateway.claims()).isEmpty();
        assertThat(hasRun).isFalse();
        assertThat(filter.drain(Duration.ofSeconds(20))).isTrue();
    }

    private static void awaitInSpiteOfInterrupts(CountDownLatch latch) {
        while (true) {
            try {
                latch.await();
                return;
            } catch (InterruptedException crossed) {
                // The answer was on its way already.
            }
        }
    }
}
