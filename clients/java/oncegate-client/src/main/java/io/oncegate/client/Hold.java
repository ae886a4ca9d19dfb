package io.oncegate.client;

import java.util.function.Consumer;

/** One acquisition of a lock. It is renewed in the background until it is released. */
public final class Hold implements AutoCloseable {
    private final Locking locking;
    private final String name;
    private final String ownLease;
    private final Response answer;
    private final Lease lease;
    private boolean released;

    Hold(Locking locking, String name, String ownLease, Response answer, Lease lease) {
        this.locking = locking;
        this.name = name;
        this.ownLease = ownLease;
        this.answer = answer;
        this.lease = lease;
    }

    /** Returns the name of the lock. */
    public String name() {
        return name;
    }

    /** Returns the mode. */
    public LockMode mode() {
        return "shared".equals(answer.text("mode")) ? LockMode.SHARED : LockMode.EXCLUSIVE;
    }

    /** Returns the proof of the hold. Keep it like a secret. */
    public String attempt() {
        return answer.text("attempt");
    }

    /**
     * Returns a number that rises each time the lock becomes held, for the resource to compare;
     * null where the store has none.
     */
    public Long fence() {
        return answer.number("fence");
    }

    /** Returns how many holds the owner had when this one was acquired. */
    public int holds() {
        Long holds = answer.number("holds");
        return holds == null ? 1 : holds.intValue();
    }

    /**
     * Returns true while the lease lasts by this clock. Only the fence closes the gap between this
     * check and an effect.
     */
    public boolean isLive() {
        return lease.isLive();
    }

    /** Returns {@code not_held} or {@code not_renewed} once the lock is lost, else null. */
    public String lost() {
        return lease.lost();
    }

    /** Calls the observer with the reason once the lock is lost. */
    public void onLost(Consumer<String> observer) {
        lease.onLost(observer);
    }

    /** Renews now, by the given lease (null: its own). Returns false if the lock is lost. */
    public boolean renew(String lease) throws InterruptedException {
        String asked = lease == null ? ownLease : lease;
        return this.lease.renewNow(Locking.renewal(name, attempt(), asked));
    }

    /** Returns the name of the lock and the state of the hold, never its proof. */
    @Override
    public String toString() {
        String state;
        synchronized (this) {
            state = released ? "released" : isLive() ? "held" : "lost";
        }
        return "Hold[" + name + ", " + mode().wire() + ", " + state + ", fence " + fence() + "]";
    }

    /**
     * Releases the hold; repeated until it is answered. If no gateway answers, the hold ends with
     * its lease, and an event reports it.
     */
    @Override
    public void close() {
        synchronized (this) {
            if (released) {
                return;
            }
            released = true;
        }
        lease.stop();
        locking.release(this, answer.gateway());
    }
}
