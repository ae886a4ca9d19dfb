package io.oncegate.client;

import io.oncegate.client.Rounds.Failed;
import io.oncegate.client.Rounds.Plan;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Future;
import java.util.function.Consumer;

/**
 * A lease that is renewed in the background until it is stopped or lost. It counts on a monotonic
 * clock from when the request was sent.
 */
final class Lease {
    private static final long RENEWAL_MIN_NANOS = Duration.ofMillis(10).toNanos();

    private final Context context;
    private final Call renewal;
    private final int gateway;
    private final String lostEvent;
    private final List<Consumer<String>> observers = new ArrayList<>();
    private volatile long end;
    private volatile String lost;
    private boolean stopped;
    private boolean reporting;
    private Future<?> next;

    /**
     * A lease that is not renewed before {@link #start}.
     *
     * @param gateway the gateway that granted
     * @param lostEvent the event that says that the lease was lost
     */
    Lease(Context context, Call renewal, int gateway, long end, String lostEvent) {
        this.context = context;
        this.renewal = renewal;
        this.gateway = gateway;
        this.end = end;
        this.lostEvent = lostEvent;
    }

    boolean isLive() {
        return lost == null && end - context.now() > 0;
    }

    String lost() {
        return lost;
    }

    /** Calls the observer once the lease is lost; at once if it is lost already. */
    void onLost(Consumer<String> observer) {
        synchronized (this) {
            if (lost == null) {
                observers.add(observer);
                return;
            }
        }
        observer.accept(lost);
    }

    /** Renews at a third of the rest. This leaves time to repeat a lost answer. */
    synchronized void start() {
        if (stopped || lost != null) {
            return;
        }
        long left = end - context.now();
        if (left <= 0) {
            // Observers run on a worker, and not under this lock.
            context.background().run(() -> lose("not_renewed"));
            return;
        }
        long third = left / 3;
        next = context.background().after(third < RENEWAL_MIN_NANOS ? left : third, this::renew);
    }

    synchronized void stop() {
        stopped = true;
        if (next != null) {
            next.cancel(false);
        }
    }

    /**
     * Renews until {@link #stop} while the outcome is reported: if the lease ended during that
     * time, a repeat could run. A renewal that the report overtakes does no harm.
     */
    synchronized void reporting() {
        reporting = true;
    }

    private synchronized boolean isStopped() {
        return stopped;
    }

    private void renew() {
        try {
            if (!isStopped() && end - context.now() > 0) {
                renewWith(renewal, false);
            }
        } catch (Failed | Rejected | InterruptedException unknown) {
            // Not known: repeated for as long as the lease lasts.
        }
        start();
    }

    /** Returns true if a gateway renewed the lease; false if it is lost. */
    boolean renewNow(Call call) throws InterruptedException {
        try {
            return renewWith(call, true);
        } catch (Failed failed) {
            throw failed.error();
        }
    }

    private boolean renewWith(Call call, boolean interruptible)
            throws Failed, InterruptedException {
        Duration left = Duration.ofNanos(Math.max(0, end - context.now()));
        Response answer =
                context.rounds().once(call, new Plan(gateway, left, interruptible, late -> {}));
        if (answer.status() == 409) {
            lose(answer.text("code"));
            return false;
        }
        if (answer.status() != 200) {
            throw new Rejected(answer);
        }
        synchronized (this) {
            // Answers may overtake each other.
            end = answer.leaseEnd() - end > 0 ? answer.leaseEnd() : end;
            if (stopped) {
                return true;
            }
        }
        context.events().send("renewed", call.subject());
        return true;
    }

    private void lose(String code) {
        List<Consumer<String>> signalled;
        synchronized (this) {
            if (lost != null || stopped) {
                return;
            }
            if (reporting) {
                stopped = true;
                return;
            }
            lost = code;
            signalled = List.copyOf(observers);
        }
        context.events().send(lostEvent, renewal.subject(), "code", code);
        signalled.forEach(observer -> observer.accept(code));
    }
}
