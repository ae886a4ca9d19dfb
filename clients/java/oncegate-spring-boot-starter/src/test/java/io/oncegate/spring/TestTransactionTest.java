package io.oncegate.spring;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.oncegate.client.Done;
import io.oncegate.client.OncegateClient;
import io.oncegate.client.testing.MemoryGateway;
import java.lang.reflect.Method;
import java.util.concurrent.atomic.AtomicInteger;
import org.assertj.core.api.ThrowableAssert.ThrowingCallable;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.boot.autoconfigure.ImportAutoConfiguration;
import org.springframework.boot.autoconfigure.aop.AopAutoConfiguration;
import org.springframework.boot.autoconfigure.jackson.JacksonAutoConfiguration;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.core.OverridingClassLoader;
import org.springframework.test.context.junit.jupiter.SpringJUnitConfig;
import org.springframework.test.context.transaction.TestTransaction;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.TransactionDefinition;
import org.springframework.transaction.annotation.EnableTransactionManagement;
import org.springframework.transaction.annotation.Propagation;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.support.AbstractPlatformTransactionManager;
import org.springframework.transaction.support.DefaultTransactionStatus;
import org.springframework.transaction.support.TransactionSynchronizationManager;
import org.springframework.transaction.support.TransactionTemplate;

/** Tests that Spring runs in a transaction of their own, which does not count. */
@SpringJUnitConfig
@Transactional
class TestTransactionTest {
    @Autowired private Shop shop;
    @Autowired private Callers callers;
    @Autowired private OncegateClient client;
    @Autowired private MemoryGateway gateway;
    @Autowired private PlatformTransactionManager transactions;

    static class Shop {
        private final AtomicInteger runs = new AtomicInteger();

        @Once(operation = "order.submit", key = "#id")
        public int submit(String id) {
            return runs.incrementAndGet();
        }
    }

    /** Code under test with transactions of its own. */
    static class Callers {
        @Transactional
        public void joins(ThrowingCallable call) throws Throwable {
            call.call();
        }

        @Transactional(propagation = Propagation.REQUIRES_NEW)
        public void begins(ThrowingCallable call) throws Throwable {
            call.call();
        }

        @Transactional(propagation = Propagation.NOT_SUPPORTED)
        public void suspends(ThrowingCallable call) throws Throwable {
            call.call();
        }
    }

    /** A transaction manager without a database, whose transactions can be joined and suspended. */
    static class NoDatabase extends AbstractPlatformTransactionManager {
        private final ThreadLocal<Boolean> active = ThreadLocal.withInitial(() -> false);

        @Override
        protected Object doGetTransaction() {
            return new Object();
        }

        @Override
        protected boolean isExistingTransaction(Object transaction) {
            return active.get();
        }

        @Override
        protected void doBegin(Object transaction, TransactionDefinition definition) {
            active.set(true);
        }

        @Override
        protected Object doSuspend(Object transaction) {
            active.set(false);
            return transaction;
        }

        @Override
        protected void doResume(Object transaction, Object suspended) {
            active.set(true);
        }

        @Override
        protected void doCommit(DefaultTransactionStatus status) {}

        @Override
        protected void doRollback(DefaultTransactionStatus status) {}

        @Override
        protected void doSetRollbackOnly(DefaultTransactionStatus status) {}

        @Override
        protected void doCleanupAfterCompletion(Object transaction) {
            active.set(false);
        }
    }

    @Configuration(proxyBeanMethods = false)
    @EnableTransactionManagement
    @ImportAutoConfiguration({
        OncegateAutoConfiguration.class,
        AopAutoConfiguration.class,
        JacksonAutoConfiguration.class
    })
    static class Application {
        @Bean
        Shop shop() {
            return new Shop();
        }

        @Bean
        Callers callers() {
            return new Callers();
        }

        @Bean
        MemoryGateway gateway() {
            return new MemoryGateway();
        }

        @Bean
        OncegateCustomizer inMemory(MemoryGateway gateway) {
            return options -> options.answerer(gateway);
        }

        @Bean
        PlatformTransactionManager transactionManager() {
            return new NoDatabase();
        }
    }

    @BeforeEach
    void clear() {
        gateway.clear();
        assertThat(TransactionSynchronizationManager.isActualTransactionActive()).isTrue();
    }

    @Test
    void callsAreAcceptedInTheTransactionOfTheTest() throws Exception {
        assertAccepted();
        TestTransaction.end();
        assertAccepted();
        TestTransaction.start();
        assertAccepted();
    }

    private void assertAccepted() throws Exception {
        gateway.clear();
        assertThat(shop.submit("A-1")).isPositive();
        assertThat(client.once("order.pay", "A-1", grant -> 1)).isInstanceOf(Done.class);
        assertThat(gateway.claims()).hasSize(2);
    }

    private void assertRefused() {
        assertThatThrownBy(() -> shop.submit("A-1"))
                .hasMessageStartingWith("@Once on")
                .hasMessageContaining("inside a transaction");
        assertThatThrownBy(() -> client.once("order.pay", "A-1", grant -> 1))
                .isInstanceOf(IllegalStateException.class)
                .hasMessageContaining("inside a transaction");
        assertThat(gateway.claims()).isEmpty();
    }

    @Test
    void theyAreRefusedInATransactionOfTheCodeUnderTest() throws Throwable {
        callers.joins(this::assertRefused);
        callers.begins(this::assertRefused);
        callers.joins(() -> callers.begins(this::assertRefused));
        callers.suspends(this::assertAccepted);
        assertAccepted();
    }

    @ParameterizedTest
    @ValueSource(strings = {"", "order.submit", "nightly"})
    void theyAreRefusedInANewTransactionOfATemplate(String name) throws Exception {
        var template = new TransactionTemplate(transactions);
        template.setPropagationBehavior(TransactionDefinition.PROPAGATION_REQUIRES_NEW);
        if (!name.isEmpty()) {
            template.setName(name);
        }
        template.executeWithoutResult(status -> assertRefused());
        assertAccepted();
    }

    /** The classes of transactions are optional. */
    @Test
    void withoutSpringsTransactionsThereAreNone() throws Exception {
        var loader =
                new OverridingClassLoader(getClass().getClassLoader()) {
                    @Override
                    protected boolean isEligibleForOverriding(String name) {
                        return name.startsWith(Transactions.class.getName());
                    }

                    @Override
                    public Class<?> loadClass(String name) throws ClassNotFoundException {
                        if (name.startsWith("org.springframework.transaction")) {
                            throw new ClassNotFoundException(name);
                        }
                        return super.loadClass(name);
                    }
                };
        Class<?> type = loader.loadClass(Transactions.class.getName());
        assertThat(type).isNotEqualTo(Transactions.class);
        Method isInside = type.getDeclaredMethod("isInside");
        isInside.setAccessible(true);
        assertThat(isInside.invoke(null)).isEqualTo(false);
    }

    /** Threads of a test inherit what Spring knows of its transaction, but not the transaction. */
    @Test
    void theyAreRefusedInTransactionsOfOtherThreads() throws Exception {
        var failures = new AtomicInteger();
        var thread =
                new Thread(
                        () ->
                                new TransactionTemplate(transactions)
                                        .executeWithoutResult(status -> assertRefused()));
        thread.setUncaughtExceptionHandler((its, failure) -> failures.incrementAndGet());
        thread.start();
        thread.join(20_000);
        assertThat(thread.isAlive()).isFalse();
        assertThat(failures).hasValue(0);
    }
}
