package io.oncegate.client;

import java.time.Duration;

/**
 * Terms of a lock.
 *
 * @param owner 16 to 64 of {@code [A-Za-z0-9_-]}: holds of one owner join. Null: each hold is its
 *     own owner, and the methods of {@link java.util.concurrent.locks.Lock} use the thread
 * @param lease such as {@code 30s}; null is the operator's choice
 * @param fair grants requests in the order in which they first came
 */
public record LockTerms(LockMode mode, String owner, String lease, boolean fair) {
    /** Exclusive, not fair, with the operator's lease. */
    public static final LockTerms EXCLUSIVE = new LockTerms(LockMode.EXCLUSIVE, null, null, false);

    /** Refuses an owner of another form. */
    public LockTerms {
        if (owner != null && !owner.matches("[A-Za-z0-9_-]{16,64}")) {
            throw new IllegalArgumentException(
                    "The owner of a lock has 16 to 64 letters, digits, _ or -, such as a UUID");
        }
    }

    /** Returns these terms in another mode. */
    public LockTerms mode(LockMode mode) {
        return new LockTerms(mode, owner, lease, fair);
    }

    /** Returns these terms with an owner. */
    public LockTerms owner(String owner) {
        return new LockTerms(mode, owner, lease, fair);
    }

    /** Returns these terms with a lease, such as {@code 30s}. */
    public LockTerms lease(String lease) {
        return new LockTerms(mode, owner, lease, fair);
    }

    /** Returns these terms with a lease. */
    public LockTerms lease(Duration lease) {
        return lease(Durations.text(lease));
    }

    /** Returns these terms with a queue, or without. */
    public LockTerms fair(boolean fair) {
        return new LockTerms(mode, owner, lease, fair);
    }
}
