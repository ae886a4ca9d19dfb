package io.oncegate.client;

import java.util.concurrent.locks.ReadWriteLock;

/**
 * A read lock (shared) and a write lock (exclusive) of one name. A thread that holds the write lock
 * may take the read lock and release the write lock. The other way is refused with {@link
 * LockNotAcquired} while other threads read, instead of a deadlock.
 */
public final class OncegateReadWriteLock implements ReadWriteLock {
    private final OncegateLock read;
    private final OncegateLock write;

    OncegateReadWriteLock(ThreadHolds holds, String name, LockTerms terms) {
        read = new OncegateLock(holds, name, terms.mode(LockMode.SHARED));
        write = new OncegateLock(holds, name, terms.mode(LockMode.EXCLUSIVE));
    }

    @Override
    public OncegateLock readLock() {
        return read;
    }

    @Override
    public OncegateLock writeLock() {
        return write;
    }

    @Override
    public String toString() {
        return "OncegateReadWriteLock[" + read + ", " + write + "]";
    }
}
