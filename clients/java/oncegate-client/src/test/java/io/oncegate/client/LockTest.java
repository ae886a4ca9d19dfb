package io.oncegate.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/**
 * Documented behaviour of locks in java.util.concurrent, over HTTP. Against a gateway that models
 * the lock table; against a real one if ONCEGATE_URL is set.
 */
@Timeout(value = 30, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
class LockTest {
    private final ExecutorService others = Executors.newCachedThreadPool();
    private final String name = "stock:" + Context.nonce();
    private LockTable table;
    private OncegateClient client;

    @BeforeEach
    void start() throws Exception {
        String url = System.getenv("ONCEGATE_URL");
        table = url == null ? new LockTable() : null;
        var options = new Options(url == null ? table.url() : url);
        options = url == null ? options : options.credential(System.getenv("ONCEGATE_CREDENTIAL"));
        client = new OncegateClient(options.timeout(Duration.ofSeconds(5)));
    }

    @AfterEach
    void stop() {
        others.shutdownNow();
        client.close();
        if (table != null) {
            table.close();
        }
    }

    private <T> T elsewhere(Callable<T> task) throws Exception {
        return others.submit(task).get(20, TimeUnit.SECONDS);
    }

    @Test
    void anotherThreadIsExcludedUntilTheUnlock() throws Exception {
        OncegateLock lock = client.lock(name);
        lock.lock();
        assertFalse(elsewhere(() -> lock.tryLock()));
        lock.unlock();
        assertTrue(elsewhere(() -> lock.tryLock()));
    }

    @Test
    void aCounterOfManyThreadsLosesNoUpdate() throws Exception {
        int[] counter = {0};
        List<Future<?>> workers = new ArrayList<>();
        for (int worker = 0; worker < 4; worker++) {
            workers.add(
                    others.submit(
                            () -> {
                                OncegateLock lock = client.lock(name);
                                for (int turn = 0; turn < 25; turn++) {
                                    lock.lock();
                                    try {
                                        int seen = counter[0];
                                        Thread.yield();
                                        counter[0] = seen + 1;
                                    } finally {
                                        lock.unlock();
                                    }
                                }
                            }));
        }
        for (Future<?> worker : workers) {
            worker.get(25, TimeUnit.SECONDS);
        }
        assertEquals(100, counter[0]);
    }

    @Test
    void aThreadReEntersAndUnlocksAsOften() throws Exception {
        OncegateLock lock = client.lock(name);
        lock.lock();
        // Another object of the same lock is the same lock.
        client.lock(name).lock();
        assertTrue(lock.tryLock(1, TimeUnit.SECONDS));
        assertEquals(3, lock.getHoldCount());
        lock.unlock();
        lock.unlock();
        assertTrue(lock.isHeldByCurrentThread());
        assertFalse(elsewhere(() -> lock.tryLock()));
        lock.unlock();
        assertFalse(lock.isHeldByCurrentThread());
        assertTrue(elsewhere(() -> lock.tryLock()));
    }

    @Test
    void onlyTheThreadThatLockedUnlocks() throws Exception {
        OncegateLock lock = client.lock(name);
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
        lock.lock();
        var thrown =
                assertThrows(
                        ExecutionException.class,
                        () ->
                                elsewhere(
                                        () -> {
                                            lock.unlock();
                                            return null;
                                        }));
        assertInstanceOf(IllegalMonitorStateException.class, thrown.getCause());
        assertTrue(lock.isLive());
    }

    @Test
    void tryLockWithATimeGivesUpWhenItIsOver() throws Exception {
        OncegateLock lock = client.lock(name);
        lock.lock();
        long start = System.nanoTime();
        assertFalse(elsewhere(() -> lock.tryLock(300, TimeUnit.MILLISECONDS)));
        long took = (System.nanoTime() - start) / 1_000_000;
        assertTrue(took >= 290 && took < 5000, took + " ms");
    }

    @Test
    void tryLockWithATimeGetsTheLockWhenItIsReleased() throws Exception {
        OncegateLock lock = client.lock(name);
        lock.lock();
        Future<Boolean> other = others.submit(() -> lock.tryLock(20, TimeUnit.SECONDS));
        awaitWaiter();
        lock.unlock();
        assertTrue(other.get(5, TimeUnit.SECONDS));
    }

    @Test
    void lockInterruptiblyEndsOnAnInterruptAndLeavesNothingBehind() throws Exception {
        OncegateLock lock = client.lock(name, LockTerms.EXCLUSIVE.fair(true));
        lock.lock();
        var ended = new CompletableFuture<Throwable>();
        var waiter =
                new Thread(
                        () -> {
                            try {
                                lock.lockInterruptibly();
                                ended.complete(null);
                            } catch (Throwable thrown) {
                                ended.complete(thrown);
                            }
                        });
        waiter.start();
        awaitWaiter();
        waiter.interrupt();
        assertInstanceOf(InterruptedException.class, ended.get(5, TimeUnit.SECONDS));
        lock.unlock();
        // Its ticket was withdrawn: it blocks no caller, and no hold is given to it.
        assertTrue(elsewhere(() -> lock.tryLock(5, TimeUnit.SECONDS)));
    }

    @Test
    void anInterruptBeforeTheCallEndsTheInterruptibleMethods() throws Exception {
        OncegateLock lock = client.lock(name);
        Thread.currentThread().interrupt();
        assertThrows(InterruptedException.class, lock::lockInterruptibly);
        Thread.currentThread().interrupt();
        assertThrows(InterruptedException.class, () -> lock.tryLock(1, TimeUnit.SECONDS));
        assertFalse(Thread.currentThread().isInterrupted());
        assertEquals(0, lock.getHoldCount());
    }

    @Test
    void lockIgnoresAnInterruptAndKeepsIt() throws Exception {
        OncegateLock lock = client.lock(name);
        lock.lock();
        var state = new AtomicReference<Boolean>();
        var waiter =
                new Thread(
                        () -> {
                            lock.lock();
                            state.set(Thread.currentThread().isInterrupted());
                            lock.unlock();
                        });
        waiter.start();
        awaitWaiter();
        waiter.interrupt();
        lock.unlock();
        waiter.join(10_000);
        assertEquals(Boolean.TRUE, state.get());
    }

    @Test
    void aFairLockIsGivenInOrder() throws Exception {
        Assumptions.assumeTrue(table != null, "the order of arrival is seen in the model only");
        OncegateLock lock = client.lock(name, LockTerms.EXCLUSIVE.fair(true));
        lock.lock();
        List<Integer> order = Collections.synchronizedList(new ArrayList<>());
        List<Future<?>> waiters = new ArrayList<>();
        for (int at = 0; at < 5; at++) {
            int number = at;
            waiters.add(
                    others.submit(
                            () -> {
                                lock.lock();
                                order.add(number);
                                lock.unlock();
                            }));
            while (table.queued(name) <= at) {
                Thread.sleep(1);
            }
        }
        lock.unlock();
        for (Future<?> waiter : waiters) {
            waiter.get(10, TimeUnit.SECONDS);
        }
        assertEquals(List.of(0, 1, 2, 3, 4), order);
    }

    @Test
    void readersShareAndWritersExclude() throws Exception {
        OncegateReadWriteLock lock = client.readWriteLock(name);
        lock.readLock().lock();
        assertTrue(
                elsewhere(
                        () -> {
                            boolean read = lock.readLock().tryLock();
                            lock.readLock().unlock();
                            return read;
                        }));
        assertFalse(elsewhere(() -> lock.writeLock().tryLock()));
        lock.readLock().unlock();
        assertTrue(lock.writeLock().tryLock());
        assertFalse(elsewhere(() -> lock.readLock().tryLock()));
    }

    @Test
    void aWriterMayDowngrade() throws Exception {
        OncegateReadWriteLock lock = client.readWriteLock(name);
        lock.writeLock().lock();
        lock.readLock().lock();
        lock.writeLock().unlock();
        assertTrue(elsewhere(() -> lock.readLock().tryLock()));
        assertFalse(elsewhere(() -> lock.writeLock().tryLock()));
    }

    @Test
    void anUpgradeBesideOtherReadersIsRefusedInsteadOfADeadlock() throws Exception {
        OncegateReadWriteLock lock = client.readWriteLock(name);
        lock.readLock().lock();
        // The only reader is upgraded.
        assertTrue(lock.writeLock().tryLock());
        lock.writeLock().unlock();
        var reading = new CountDownLatch(1);
        var done = new CountDownLatch(1);
        others.submit(
                () -> {
                    lock.readLock().lock();
                    reading.countDown();
                    done.await();
                    lock.readLock().unlock();
                    return null;
                });
        assertTrue(reading.await(10, TimeUnit.SECONDS));
        assertEquals(
                "upgrade_refused",
                assertThrows(LockNotAcquired.class, () -> lock.writeLock().lock()).code());
        assertFalse(lock.writeLock().tryLock());
        done.countDown();
    }

    @Test
    void aHoldOfItsOwnIsReleasedByAnyThread() throws Exception {
        OncegateLock lock = client.lock(name);
        Hold hold = lock.hold(Duration.ZERO);
        assertTrue(lock.acquire(Duration.ZERO).isEmpty(), "each hold is its own owner");
        assertEquals(
                "lock_held",
                assertThrows(LockNotAcquired.class, () -> lock.hold(Duration.ZERO)).code());
        elsewhere(
                () -> {
                    hold.close();
                    return null;
                });
        try (Hold next = lock.hold(Duration.ZERO)) {
            assertTrue(next.fence() == null || next.fence() > hold.fence(), "fences rise");
        }
    }

    @Test
    void aLeaseIsRenewedWhileTheLockIsHeld() throws Exception {
        OncegateLock lock = client.lock(name, LockTerms.EXCLUSIVE.lease("600ms"));
        lock.lock();
        // Twice the lease.
        assertFalse(elsewhere(() -> lock.tryLock(1200, TimeUnit.MILLISECONDS)));
        assertTrue(lock.isLive());
        lock.unlock();
    }

    @Test
    void theLeaseOfALockThatWaitedCountsFromTheEndOfTheWait() {
        Map<String, Object> fields = Map.of("lease_ms", 100, "waited_ms", 5000);
        assertEquals(5_100_000_000L + 7, new Response(201, fields, 7, 0, null).leaseEnd());
    }

    @Test
    void aLostLockIsSignalledAndAcquiredAnew() throws Exception {
        Assumptions.assumeTrue(table != null, "the model takes the lock away");
        OncegateLock lock = client.lock(name, LockTerms.EXCLUSIVE.lease("300ms"));
        lock.lock();
        Hold first = lock.currentHold().orElseThrow();
        var lost = new CompletableFuture<String>();
        first.onLost(lost::complete);
        table.drop(name);
        assertEquals("not_held", lost.get(5, TimeUnit.SECONDS));
        assertFalse(lock.isLive());
        assertTrue(lock.isHeldByCurrentThread());
        lock.lock();
        assertTrue(lock.isLive());
        assertNotEquals(first.fence(), lock.fence());
        lock.unlock();
        // Unlocking what was lost is not an error.
        lock.unlock();
        assertEquals(0, lock.getHoldCount());
        assertNull(lock.fence());
    }

    @Test
    void conditionsAndWrongNamesAreRefusedWithAReason() {
        OncegateLock lock = client.lock(name);
        assertTrue(
                assertThrows(UnsupportedOperationException.class, lock::newCondition)
                        .getMessage()
                        .contains("queue"));
        assertThrows(IllegalArgumentException.class, () -> client.lock("a/b"));
        assertThrows(IllegalArgumentException.class, () -> LockTerms.EXCLUSIVE.owner("short"));
    }

    @Test
    void withoutAGatewayALockFailsClosed() {
        var options = new Options("http://127.0.0.1:1").claimWithin(Duration.ofMillis(200));
        try (var alone = new OncegateClient(options)) {
            OncegateLock lock = alone.lock(name);
            long start = System.nanoTime();
            assertThrows(Unavailable.class, lock::lock);
            assertTrue(
                    System.nanoTime() - start < 3_000_000_000L,
                    "the silence of gateways is bounded");
            assertThrows(Unavailable.class, lock::tryLock);
            assertEquals(0, lock.getHoldCount());
        }
    }

    /** Awaits a call of a waiter: with the model its second call, else a moment. */
    private void awaitWaiter() throws InterruptedException {
        if (table == null) {
            Thread.sleep(300);
            return;
        }
        while (table.calls("holds") < 2) {
            Thread.sleep(1);
        }
    }
}
