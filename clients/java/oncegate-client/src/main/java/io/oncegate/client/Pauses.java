package io.oncegate.client;

import java.time.Duration;

/** Pauses that an interrupt ends, or does not. */
final class Pauses {
    private Pauses() {}

    /**
     * Returns the pause before a call is repeated. An answer that came at the end of the wait is
     * asked for again at once: to pause then would miss what ends meanwhile.
     */
    static Duration after(Response answer, Duration wait, long sent) {
        boolean waited = System.nanoTime() - sent >= wait.toNanos() * 9 / 10;
        return waited && !wait.isZero() ? Duration.ZERO : answer.retryAfter();
    }

    static void sleep(Duration duration, boolean interruptible) throws InterruptedException {
        long ends = System.nanoTime() + duration.toNanos();
        boolean interrupted = false;
        try {
            for (long left; (left = ends - System.nanoTime()) > 0; ) {
                try {
                    Thread.sleep(left / 1_000_000, (int) (left % 1_000_000));
                } catch (InterruptedException interrupt) {
                    if (interruptible) {
                        throw interrupt;
                    }
                    interrupted = true;
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }
}
