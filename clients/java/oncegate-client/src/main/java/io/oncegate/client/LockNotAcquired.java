package io.oncegate.client;

import java.time.Duration;

/** The lock was held until the wait was over, or cannot be had. */
public final class LockNotAcquired extends OncegateException {
    private final String code;
    private final Duration retryAfter;

    LockNotAcquired(Response answer) {
        super(message(answer));
        code = answer.text("code");
        retryAfter = answer.retryAfter();
    }

    private static String message(Response answer) {
        String advice =
                "upgrade_refused".equals(answer.text("code"))
                        ? "; others share the lock: release the read lock before you take the write"
                                + " lock"
                        : "";
        return "The lock was not acquired: " + answer.problem() + advice;
    }

    /** Returns {@code lock_held}, {@code upgrade_refused} or {@code withdrawn}. */
    public String code() {
        return code;
    }

    /** Returns the time after which a repeat can help. */
    public Duration retryAfter() {
        return retryAfter;
    }
}
