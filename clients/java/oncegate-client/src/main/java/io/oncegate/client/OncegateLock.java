package io.oncegate.client;

import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/**
 * A lock across processes. The methods of {@link Lock} hold it by thread: it is re-entrant, and
 * only the thread that locked unlocks. {@link #acquire} and {@link #hold} give a {@link Hold} that
 * any thread may release.
 *
 * <p>The lease is renewed in the background until the lock is released. If it cannot be kept, the
 * lock is lost: {@link #isLive} turns false, and {@link Hold#onLost} is called. Pass {@link #fence}
 * to the resource, so that it refuses a holder that was paused too long. Without a gateway every
 * method throws {@link Unavailable}: locks fail closed.
 */
public final class OncegateLock implements Lock {
    private final ThreadHolds holds;
    private final String name;
    private final LockTerms terms;

    OncegateLock(ThreadHolds holds, String name, LockTerms terms) {
        this.holds = holds;
        this.name = Locking.checked(name);
        this.terms = terms;
    }

    /** Acquires the lock, however long it takes. An interrupt does not end the wait; it is kept. */
    @Override
    public void lock() {
        try {
            holds.acquire(name, terms, null, false);
        } catch (InterruptedException impossible) {
            throw new IllegalStateException("lock() is not interruptible", impossible);
        }
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        holds.acquire(name, terms, null, true);
    }

    /** Acquires the lock if it is free now, also before those that wait in a queue. */
    @Override
    public boolean tryLock() {
        try {
            return tried(terms.fair(false), Duration.ZERO, false);
        } catch (InterruptedException impossible) {
            throw new IllegalStateException("tryLock() is not interruptible", impossible);
        }
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        Duration wait = Duration.ofNanos(Math.max(0, unit.toNanos(time)));
        return tried(terms, wait, true);
    }

    private boolean tried(LockTerms terms, Duration wait, boolean interruptible)
            throws InterruptedException {
        try {
            holds.acquire(name, terms, wait, interruptible);
            return true;
        } catch (LockNotAcquired held) {
            if (held.code().equals("limit_differs")) {
                // Trying again would not help: the callers name different limits.
                throw held;
            }
            return false;
        }
    }

    /**
     * Releases the lock.
     *
     * @throws IllegalMonitorStateException if this thread does not hold it
     */
    @Override
    public void unlock() {
        holds.release(name, terms.mode());
    }

    /**
     * Not supported: a signal to waiters of other processes would need a place in the store that
     * outlives them. Use a queue of messages.
     */
    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException(
                "A lock across processes has no conditions: a signal to other processes may be"
                        + " lost. Use a queue of messages");
    }

    /**
     * Acquires a separate hold, not one of this thread; empty if the lock was held until the wait
     * was over.
     */
    public Optional<Hold> acquire(Duration wait) throws InterruptedException {
        try {
            return Optional.of(hold(wait));
        } catch (LockNotAcquired held) {
            if (!held.code().equals("lock_held")) {
                throw held;
            }
            return Optional.empty();
        }
    }

    /**
     * Acquires a hold for try-with-resources.
     *
     * @throws LockNotAcquired if the lock was held until the wait was over
     */
    public Hold hold(Duration wait) throws InterruptedException {
        return holds.locking().acquire(name, terms, wait, true);
    }

    /**
     * Looks up the holders of the lock, of all processes, and the length of its queue; empty if it
     * is free and no request queues. Acquires nothing.
     */
    public Optional<LockRecord> lookup() throws InterruptedException {
        return holds.locking().lookup(name);
    }

    /**
     * Returns true if this thread holds the lock and its lease lasts. Only the fence closes the gap
     * between this check and an effect.
     */
    public boolean isLive() {
        Hold hold = holds.hold(name, terms.mode());
        return hold != null && hold.isLive();
    }

    /** Returns true if this thread has locked and not unlocked it, also if it is lost. */
    public boolean isHeldByCurrentThread() {
        return getHoldCount() > 0;
    }

    /** Returns how often this thread has to unlock it. */
    public int getHoldCount() {
        return holds.count(name, terms.mode());
    }

    /** Returns the name of the lock, and what this thread holds of it. */
    @Override
    public String toString() {
        int count = getHoldCount();
        String held = isLive() ? "held by this thread" : "lost by this thread";
        String state = count == 0 ? "not held by this thread" : held;
        return "OncegateLock[" + name + ", " + terms.mode().wire() + ", " + state + "]";
    }

    /** Returns this thread's hold, for its fence and its signal of loss. */
    public Optional<Hold> currentHold() {
        return Optional.ofNullable(holds.hold(name, terms.mode()));
    }

    /** Returns the fence of this thread's hold; null without one. */
    public Long fence() {
        return currentHold().map(Hold::fence).orElse(null);
    }
}
