package io.oncegate.client;

import java.time.Duration;

/** Pauses that an interrupt ends, or does not. */
final class Pauses {
    /** The longest pause after a call that has waited. */
    private static final Duration AFTER_WAIT = Duration.ofMillis(50);

    private Pauses() {}

    /**
     * Returns the pause before the next call of a wait. After a call that has waited it is short,
     * since a longer one would miss a claim that ends in it. Otherwise it is the pause that the
     * gateway asks for.
     */
    static Duration after(Response answer, Duration wait) {
        Duration asked = answer.retryAfter();
        boolean isShort = answer.hasWaited() && !wait.isZero() && asked.compareTo(AFTER_WAIT) > 0;
        return isShort ? AFTER_WAIT : asked;
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
