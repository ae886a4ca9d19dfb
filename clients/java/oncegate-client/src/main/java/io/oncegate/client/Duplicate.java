package io.oncegate.client;

import java.time.Duration;
import java.time.Instant;

/**
 * Another attempt is running or has completed the operation.
 *
 * @param state {@code in_progress}, {@code succeeded} or {@code unknown}
 * @param result the stored result of a success as maps, lists, strings, numbers and booleans; null
 *     without one
 * @param retryAfter the time after which a repeat can help
 * @param contentsVerified false: the record holds no contents to compare, since its outcome was
 *     late
 * @param degraded the outage policy that answered, or null
 * @param wouldBe in observe mode the answer that enforcing would have given, else null
 * @param <T> the type of the work's result
 */
public record Duplicate<T>(
        String state,
        Object result,
        Duration retryAfter,
        Instant claimedAt,
        Instant expiresAt,
        boolean contentsVerified,
        String degraded,
        String wouldBe,
        String globalId)
        implements Result<T>, Claimed {
    /** Returns true if another attempt is at work. */
    public boolean isInProgress() {
        return "in_progress".equals(state);
    }

    /** Returns true if another attempt has succeeded. */
    public boolean isSucceeded() {
        return "succeeded".equals(state);
    }

    @SuppressWarnings("unchecked") // The parameter only makes the type fit: no member has it.
    <U> Duplicate<U> as() {
        return (Duplicate<U>) this;
    }
}
