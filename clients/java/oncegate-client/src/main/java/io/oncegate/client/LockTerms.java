package io.oncegate.client;

import java.time.Duration;

/**
 * Terms of a lock.
 *
 * @param owner 16 to 64 of {@code [A-Za-z0-9_-]}: holds of one owner join. Null: each hold is its
 *     own owner, and the methods of {@link java.util.concurrent.locks.Lock} use the thread
 * @param lease such as {@code 30s}; null is the operator's choice
 * @param fair grants requests in the order in which they first came
 * @param limit of shared holds only: at most so many at once, 2 to 1000, as of a semaphore. All
 *     that hold the lock at the same time name the same limit. Null: any number. A thread that
 *     locks again shares its permit; {@link OncegateLock#hold} takes another one
 */
public record LockTerms(LockMode mode, String owner, String lease, boolean fair, Integer limit) {
    /** Exclusive, not fair, with the operator's lease. */
    public static final LockTerms EXCLUSIVE =
            new LockTerms(LockMode.EXCLUSIVE, null, null, false, null);

    /** Shared, not fair, with the operator's lease and without a limit. */
    public static final LockTerms SHARED = EXCLUSIVE.mode(LockMode.SHARED);

    /** Refuses an owner or a limit of another form. */
    public LockTerms {
        if (owner != null && !owner.matches("[A-Za-z0-9_-]{16,64}")) {
            throw new IllegalArgumentException(
                    "The owner of a lock has 16 to 64 letters, digits, _ or -, such as a UUID");
        }
        if (limit != null && mode != LockMode.SHARED) {
            throw new IllegalArgumentException(
                    "limit: only shared holds have a limit; begin with LockTerms.SHARED");
        }
        if (limit != null && (limit < 2 || limit > 1000)) {
            throw new IllegalArgumentException(
                    "limit: a limit is a number of holds from 2 to 1000, such as 4; for one,"
                            + " request the lock in mode exclusive");
        }
    }

    /** Returns these terms in another mode. */
    public LockTerms mode(LockMode mode) {
        return new LockTerms(mode, owner, lease, fair, limit);
    }

    /** Returns these terms with an owner. */
    public LockTerms owner(String owner) {
        return new LockTerms(mode, owner, lease, fair, limit);
    }

    /** Returns these terms with a lease, such as {@code 30s}. */
    public LockTerms lease(String lease) {
        return new LockTerms(mode, owner, lease, fair, limit);
    }

    /** Returns these terms with a lease. */
    public LockTerms lease(Duration lease) {
        return lease(Durations.text(lease));
    }

    /** Returns these terms with a queue, or without. */
    public LockTerms fair(boolean fair) {
        return new LockTerms(mode, owner, lease, fair, limit);
    }

    /** Returns these terms with a limit of holds at once, 2 to 1000. */
    public LockTerms limit(int holds) {
        return new LockTerms(mode, owner, lease, fair, holds);
    }
}
