package io.oncegate.client;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.Map;
import java.util.Objects;

/**
 * The holds of each thread. A thread is one owner: it re-enters a lock that it holds, in each mode
 * by a counter here, and across modes by another hold at the gateway. A hold that was lost is not
 * re-entered: the gateway decides again.
 */
final class ThreadHolds {
    private final Locking locking;
    private final String client = Context.nonce();
    private final ThreadLocal<Map<String, Deque<Entry>>> held =
            ThreadLocal.withInitial(HashMap::new);

    private static final class Entry {
        final LockMode mode;
        final Integer limit;
        final Hold hold;
        int count = 1;

        Entry(LockTerms terms, Hold hold) {
            this.mode = terms.mode();
            this.limit = terms.limit();
            this.hold = hold;
        }
    }

    ThreadHolds(Locking locking) {
        this.locking = locking;
    }

    Locking locking() {
        return locking;
    }

    /** Acquires the lock for this thread; see {@link Locking#acquire}. */
    void acquire(String name, LockTerms terms, Duration wait, boolean interruptible)
            throws InterruptedException {
        Entry entry = entry(name, terms.mode());
        if (entry != null && entry.hold.isLive() && Objects.equals(entry.limit, terms.limit())) {
            if (interruptible && Thread.interrupted()) {
                throw new InterruptedException("interrupted before the lock call");
            }
            entry.count++;
            return;
        }
        String owner = client + "-" + Long.toHexString(Thread.currentThread().getId());
        LockTerms own = terms.owner() == null ? terms.owner(owner) : terms;
        Hold hold = locking.acquire(name, own, wait, interruptible);
        held.get().computeIfAbsent(name, absent -> new ArrayDeque<>()).push(new Entry(terms, hold));
    }

    void release(String name, LockMode mode) {
        Entry entry = entry(name, mode);
        if (entry == null) {
            throw new IllegalMonitorStateException(
                    "Thread "
                            + Thread.currentThread().getName()
                            + " does not hold "
                            + name
                            + "; unlock in the thread that locked");
        }
        if (--entry.count > 0) {
            return;
        }
        Deque<Entry> entries = held.get().get(name);
        entries.remove(entry);
        if (entries.isEmpty()) {
            held.get().remove(name);
        }
        entry.hold.close();
    }

    /** Returns this thread's newest hold in this mode, or null. */
    Hold hold(String name, LockMode mode) {
        Entry entry = entry(name, mode);
        return entry == null ? null : entry.hold;
    }

    int count(String name, LockMode mode) {
        Deque<Entry> entries = held.get().getOrDefault(name, new ArrayDeque<>());
        return entries.stream()
                .filter(entry -> entry.mode == mode)
                .mapToInt(entry -> entry.count)
                .sum();
    }

    private Entry entry(String name, LockMode mode) {
        Deque<Entry> entries = held.get().getOrDefault(name, new ArrayDeque<>());
        return entries.stream().filter(entry -> entry.mode == mode).findFirst().orElse(null);
    }
}
