package io.oncegate.client.http;

import java.time.Duration;

/** The handlers that run at the moment. */
final class Running {
    private int count;

    synchronized void began() {
        count++;
    }

    synchronized void ended() {
        count--;
        notifyAll();
    }

    synchronized boolean drain(Duration within) throws InterruptedException {
        long ends = System.nanoTime() + within.toNanos();
        while (count > 0) {
            long left = (ends - System.nanoTime()) / 1_000_000;
            if (left <= 0) {
                return false;
            }
            wait(left);
        }
        return true;
    }
}
