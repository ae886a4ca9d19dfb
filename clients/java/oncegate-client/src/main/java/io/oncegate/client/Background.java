package io.oncegate.client;

import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/** Daemon threads for renewals and for reports after a cancellation. */
final class Background implements AutoCloseable {
    private final ExecutorService workers =
            Executors.newCachedThreadPool(named("oncegate-worker-"));
    private final ScheduledThreadPoolExecutor clock =
            new ScheduledThreadPoolExecutor(1, named("oncegate-clock-"));

    Background() {
        clock.setRemoveOnCancelPolicy(true);
        clock.setExecuteExistingDelayedTasksAfterShutdownPolicy(false);
    }

    static ThreadFactory named(String prefix) {
        var count = new AtomicLong();
        return task -> {
            var thread = new Thread(task, prefix + count.incrementAndGet());
            thread.setDaemon(true);
            return thread;
        };
    }

    ExecutorService workers() {
        return workers;
    }

    void run(Runnable task) {
        if (!workers.isShutdown()) {
            workers.execute(task);
        }
    }

    /**
     * Runs the task on a worker after a delay. Null once the client is closed: nothing is renewed
     * then.
     */
    ScheduledFuture<?> after(long nanos, Runnable task) {
        return clock.isShutdown()
                ? null
                : clock.schedule(() -> run(task), nanos, TimeUnit.NANOSECONDS);
    }

    @Override
    public void close() {
        clock.shutdownNow();
        workers.shutdown();
    }
}
