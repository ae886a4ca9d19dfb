package io.oncegate.spring;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.simple.SimpleMeterRegistry;
import io.oncegate.client.CurrentGrant;
import io.oncegate.client.NothingHappened;
import io.oncegate.client.OncegateClient;
import java.io.IOException;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;
import org.awaitility.Awaitility;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.springframework.boot.autoconfigure.AutoConfigurations;
import org.springframework.boot.autoconfigure.aop.AopAutoConfiguration;
import org.springframework.boot.autoconfigure.jackson.JacksonAutoConfiguration;
import org.springframework.boot.autoconfigure.transaction.TransactionAutoConfiguration;
import org.springframework.boot.test.context.runner.ApplicationContextRunner;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.test.util.AopTestUtils;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.TransactionDefinition;
import org.springframework.transaction.annotation.EnableTransactionManagement;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.support.AbstractPlatformTransactionManager;
import org.springframework.transaction.support.DefaultTransactionStatus;
import org.springframework.transaction.support.TransactionSynchronizationManager;
import org.springframework.transaction.support.TransactionTemplate;
import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;

class OnceTest {
    private ClaimTable gateway;
    private ApplicationContextRunner runner;

    record Order(String id, int cents) {}

    record Receipt(int number, String fence) {}

    /** The work of the tests. */
    static class Orders {
        final AtomicInteger runs = new AtomicInteger();
        final CompletableFuture<Receipt> later = new CompletableFuture<>();
        boolean sawTransaction;

        @Once(
                operation = "order.submit",
                key = "{order_id: #order.id}",
                fingerprint = "#order.cents",
                lease = "20s")
        public Receipt submit(Order order) {
            return new Receipt(
                    runs.incrementAndGet(),
                    String.valueOf(CurrentGrant.get().orElseThrow().fence()));
        }

        @Once(operation = "order.submit", key = "#order.id")
        @Transactional
        public Receipt inItsTransaction(Order order) {
            sawTransaction = TransactionSynchronizationManager.isActualTransactionActive();
            return new Receipt(runs.incrementAndGet(), null);
        }

        @Once(operation = "order.fail", key = "#id")
        public void fail(String id, RuntimeException thrown) {
            runs.incrementAndGet();
            throw thrown;
        }

        @Once(operation = "order.async", key = "#id")
        public CompletableFuture<Receipt> async(String id) {
            runs.incrementAndGet();
            return later;
        }

        @Once(operation = "order.mono", key = "#id")
        public Mono<Receipt> mono(String id) {
            return Mono.fromSupplier(() -> new Receipt(runs.incrementAndGet(), null));
        }

        @Once(operation = "order.callable", key = "#id")
        public Callable<Receipt> callable(String id) {
            return () ->
                    new Receipt(
                            runs.incrementAndGet(),
                            String.valueOf(CurrentGrant.get().orElseThrow().fence()));
        }

        @Once(operation = "order.object", key = "#id")
        public Object anything(String id) {
            runs.incrementAndGet();
            return new FutureTask<>(() -> 1);
        }

        @Once(operation = "order.time", key = "#id")
        public Shipped shipped(String id) {
            runs.incrementAndGet();
            return new Shipped(Instant.EPOCH);
        }

        @Once(operation = "order.nothing", key = "#id")
        public Receipt nothing(String id) {
            runs.incrementAndGet();
            return null;
        }
    }

    /** Jackson needs a module for it. */
    record Shipped(Instant at) {}

    /** The annotation is on the method of the interface. */
    interface Payouts {
        @Once(operation = "payout.send", key = "#id")
        int send(String id);
    }

    static class BankPayouts implements Payouts {
        final AtomicInteger runs = new AtomicInteger();

        @Override
        public int send(String id) {
            return runs.incrementAndGet();
        }
    }

    static class Streams {
        @Once(operation = "order.stream", key = "#id")
        public Stream<Receipt> stream(String id) {
            return Stream.of();
        }
    }

    static class Fluxes {
        @Once(operation = "order.flux", key = "#id")
        public Flux<Receipt> flux(String id) {
            return Flux.empty();
        }
    }

    static class Futures {
        @Once(operation = "order.future", key = "#id")
        public Future<Receipt> future(String id) {
            return new FutureTask<>(() -> null);
        }
    }

    static class Privates {
        @Once(operation = "order.private", key = "#id")
        private void run(String id) {}
    }

    /** A transaction manager without a database. */
    static class NoDatabase extends AbstractPlatformTransactionManager {
        @Override
        protected Object doGetTransaction() {
            return new Object();
        }

        @Override
        protected void doBegin(Object transaction, TransactionDefinition definition) {}

        @Override
        protected void doCommit(DefaultTransactionStatus status) {}

        @Override
        protected void doRollback(DefaultTransactionStatus status) {}
    }

    @Configuration(proxyBeanMethods = false)
    @EnableTransactionManagement
    static class Application {
        @Bean
        Orders orders() {
            return new Orders();
        }

        @Bean
        PlatformTransactionManager transactionManager() {
            return new NoDatabase();
        }

        @Bean
        MeterRegistry meterRegistry() {
            return new SimpleMeterRegistry();
        }
    }

    @BeforeEach
    void start() throws IOException {
        gateway = new ClaimTable();
        var configurations =
                AutoConfigurations.of(
                        OncegateAutoConfiguration.class,
                        AopAutoConfiguration.class,
                        JacksonAutoConfiguration.class,
                        TransactionAutoConfiguration.class);
        runner =
                new ApplicationContextRunner()
                        .withConfiguration(configurations)
                        .withUserConfiguration(Application.class)
                        .withPropertyValues(
                                "oncegate.urls=" + gateway.url(), "oncegate.settle-within=2s");
    }

    @AfterEach
    void stop() {
        gateway.close();
    }

    @Test
    void aRepeatReturnsTheStoredResultAsTheTypeOfTheMethod() {
        runner.run(
                context -> {
                    Orders orders = context.getBean(Orders.class);
                    Receipt first = orders.submit(new Order("A-1", 1110));
                    assertThat(orders.submit(new Order("A-1", 1110))).isEqualTo(first);
                    assertThat(first).isEqualTo(new Receipt(1, "1"));
                    assertThat(orders.submit(new Order("A-2", 1110)).number()).isEqualTo(2);
                });
    }

    @Test
    void anotherFingerprintIsAMistake() {
        runner.run(
                context -> {
                    Orders orders = context.getBean(Orders.class);
                    orders.submit(new Order("A-1", 1110));
                    assertThatThrownBy(() -> orders.submit(new Order("A-1", 1111)))
                            .isInstanceOf(OperationMismatch.class);
                });
    }

    @Test
    void itRefusesToRunInsideATransaction() {
        runner.run(
                context -> {
                    Orders orders = context.getBean(Orders.class);
                    var transaction =
                            new TransactionTemplate(
                                    context.getBean(PlatformTransactionManager.class));
                    assertThatThrownBy(
                                    () ->
                                            transaction.execute(
                                                    status -> orders.submit(new Order("A-1", 1))))
                            .isInstanceOf(IllegalStateException.class)
                            .hasMessageContaining("inside a transaction");
                    assertThat(target(orders).runs).hasValue(0);
                    assertThat(gateway.outcomes()).isEmpty();
                });
    }

    @Test
    void itStandsOutsideTheTransactionOfTheMethod() {
        runner.run(
                context -> {
                    Orders orders = context.getBean(Orders.class);
                    assertThat(orders.inItsTransaction(new Order("A-1", 1)).number()).isEqualTo(1);
                    assertThat(gateway.outcomes()).containsExactly("success");
                });
    }

    @Test
    void aThrownExceptionIsUnknownAndNothingHappenedIsReleased() {
        runner.run(
                context -> {
                    Orders orders = context.getBean(Orders.class);
                    var nothing = new NothingHappened("not reached");
                    assertThatThrownBy(() -> orders.fail("A-1", nothing)).isSameAs(nothing);
                    var unknown = new IllegalStateException("a timeout");
                    assertThatThrownBy(() -> orders.fail("A-1", unknown)).isSameAs(unknown);
                    assertThatThrownBy(() -> orders.fail("A-1", unknown))
                            .isInstanceOfSatisfying(
                                    DuplicateOperation.class,
                                    refused ->
                                            assertThat(refused.duplicate().state())
                                                    .isEqualTo("unknown"));
                    assertThat(gateway.outcomes()).containsExactly("failure", "unknown");
                });
    }

    @Test
    void aStageIsReportedWhenItCompletes() {
        runner.run(
                context -> {
                    Orders orders = context.getBean(Orders.class);
                    CompletableFuture<Receipt> first = orders.async("A-1");
                    Awaitility.await().until(() -> target(orders).runs.get() == 1);
                    assertThat(gateway.outcomes()).isEmpty();
                    assertThatThrownBy(() -> orders.async("A-1").get(5, TimeUnit.SECONDS))
                            .isInstanceOf(ExecutionException.class)
                            .hasCauseInstanceOf(DuplicateOperation.class);
                    target(orders).later.complete(new Receipt(7, null));
                    assertThat(first.get(5, TimeUnit.SECONDS).number()).isEqualTo(7);
                    assertThat(gateway.outcomes()).containsExactly("success");
                    assertThat(orders.async("A-1").get(5, TimeUnit.SECONDS))
                            .isEqualTo(new Receipt(7, null));
                });
    }

    @Test
    void aCancelledStageIsUnknown() {
        runner.run(
                context -> {
                    Orders orders = context.getBean(Orders.class);
                    CompletableFuture<Receipt> first = orders.async("A-1");
                    Awaitility.await().until(() -> target(orders).runs.get() == 1);
                    first.cancel(true);
                    Awaitility.await()
                            .atMost(Duration.ofSeconds(5))
                            .until(() -> gateway.outcomes().contains("unknown"));
                });
    }

    @Test
    void aMonoRunsOnSubscriptionAndIsReported() {
        runner.run(
                context -> {
                    Orders orders = context.getBean(Orders.class);
                    Mono<Receipt> mono = orders.mono("A-1");
                    assertThat(target(orders).runs).hasValue(0);
                    assertThat(mono.block(Duration.ofSeconds(5)).number()).isEqualTo(1);
                    assertThat(mono.block(Duration.ofSeconds(5)).number()).isEqualTo(1);
                    assertThat(gateway.outcomes()).containsExactly("success");
                });
    }

    @Test
    void whatEndsUnseenOrHasNoEffectIsRefusedWhenItsBeanIsMade() {
        for (Class<?> type : List.of(Streams.class, Fluxes.class, Futures.class, Privates.class)) {
            runner.withBean(type)
                    .run(
                            context ->
                                    assertThat(context.getStartupFailure())
                                            .as(type.getName())
                                            .rootCause()
                                            .hasMessageContaining("@Once on"));
        }
    }

    @Test
    void aCallableIsReportedWhenItWasCalled() {
        runner.run(
                context -> {
                    Orders orders = context.getBean(Orders.class);
                    Callable<Receipt> first = orders.callable("A-1");
                    assertThat(gateway.outcomes()).isEmpty();
                    assertThat(first.call()).isEqualTo(new Receipt(1, "1"));
                    assertThat(gateway.outcomes()).containsExactly("success");
                    assertThat(orders.callable("A-1").call()).isEqualTo(new Receipt(1, "1"));
                });
    }

    @Test
    void anObjectWhoseWorkEndsLaterIsUnknown() {
        runner.run(
                context -> {
                    Orders orders = context.getBean(Orders.class);
                    assertThatThrownBy(() -> orders.anything("A-1"))
                            .hasMessageContaining("FutureTask");
                    assertThat(gateway.outcomes()).containsExactly("unknown");
                });
    }

    @Test
    void anAnnotationOnAnInterfaceCounts() {
        runner.withBean(BankPayouts.class)
                .run(
                        context -> {
                            Payouts payouts = context.getBean(Payouts.class);
                            assertThat(payouts.send("P-1")).isEqualTo(1);
                            assertThat(payouts.send("P-1")).isEqualTo(1);
                            assertThat(gateway.outcomes()).containsExactly("success");
                        });
    }

    @Test
    void aResultThatCannotBeStoredIsNeverReadAsNull() {
        runner.run(
                context -> {
                    Orders orders = context.getBean(Orders.class);
                    assertThat(orders.shipped("A-1")).isEqualTo(new Shipped(Instant.EPOCH));
                    assertThatThrownBy(() -> orders.shipped("A-1"))
                            .isInstanceOf(ResultNotStored.class)
                            .hasMessageContaining("not_serialisable");
                    assertThat(orders.nothing("A-2")).isNull();
                    assertThat(orders.nothing("A-2")).isNull();
                    assertThat(target(orders).runs).hasValue(2);
                });
    }

    @Test
    void eventsAreCounted() {
        runner.run(
                context -> {
                    context.getBean(Orders.class).submit(new Order("A-1", 1));
                    var counter =
                            context.getBean(MeterRegistry.class)
                                    .counter(
                                            "oncegate.client.events",
                                            "event",
                                            "granted",
                                            "operation",
                                            "order.submit");
                    assertThat(counter.count()).isEqualTo(1);
                });
    }

    @Test
    void aWrongPropertyStopsTheStart() {
        runner.withPropertyValues("oncegate.urls=localhost:8080")
                .run(
                        context ->
                                assertThat(context)
                                        .getFailure()
                                        .rootCause()
                                        .hasMessageContaining("http://HOST:PORT"));
    }

    @Test
    void aTraceIsPassedOn() {
        OncegateCustomizer trace =
                options ->
                        options.traceparent(
                                () -> "00-" + "a".repeat(32) + "-" + "b".repeat(16) + "-01");
        runner.withBean(OncegateCustomizer.class, () -> trace)
                .run(
                        context -> {
                            context.getBean(Orders.class).submit(new Order("A-1", 1));
                            assertThat(gateway.traceparent()).startsWith("00-aaaa");
                            assertThat(context).hasSingleBean(OncegateClient.class);
                        });
    }

    private static Orders target(Orders proxy) {
        return AopTestUtils.getTargetObject(proxy);
    }
}
