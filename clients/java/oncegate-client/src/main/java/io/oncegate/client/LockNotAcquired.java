package io.oncegate.client;

import java.time.Duration;

/** The lock was held until the wait was over, or cannot be had. */
public final class LockNotAcquired extends OncegateException {
    private final String code;
    private final Duration retryAfter;
    private final Integer limit;

    LockNotAcquired(Response answer) {
        super(message(answer));
        code = answer.text("code");
        retryAfter = answer.retryAfter();
        Long inUse = answer.number("limit");
        limit = inUse == null ? null : inUse.intValue();
    }

    private static String message(Response answer) {
        String advice =
                "upgrade_refused".equals(answer.text("code"))
                        ? "; others share the lock: release the read lock before you take the write"
                                + " lock"
                        : "";
        return "The lock was not acquired: " + answer.problem() + advice;
    }

    /**
     * Returns {@code lock_held}, {@code upgrade_refused}, {@code limit_differs} or {@code
     * withdrawn}.
     */
    public String code() {
        return code;
    }

    /** Returns the limit in use, with {@code limit_differs}; else null. */
    public Integer limit() {
        return limit;
    }

    /** Returns the time after which a repeat can help. */
    public Duration retryAfter() {
        return retryAfter;
    }
}
