package io.oncegate.spring.webflux;

import io.oncegate.client.NothingHappened;
import io.oncegate.client.http.Answer;
import java.util.concurrent.atomic.AtomicReference;
import reactor.core.scheduler.Schedulers;

/**
 * The way of an answer from the thread that claims to the handler. A grant whose caller disconnects
 * on that way reaches no handler: it is given back, since it would else be renewed without a run.
 */
final class Handover {
    private static final Object TAKEN = new Object();
    private static final Object CANCELLED = new Object();

    private final AtomicReference<Object> state = new AtomicReference<>();

    /** Puts the answer down; gives it back if the caller has disconnected. */
    Answer offer(Answer answer) {
        if (!state.compareAndSet(null, answer)) {
            giveBack(answer);
        }
        return answer;
    }

    /** Returns true if the handler may run. */
    boolean take(Answer answer) {
        return state.compareAndSet(answer, TAKEN);
    }

    /** The caller has disconnected: once the answer was taken, this changes nothing. */
    void cancel() {
        if (state.getAndUpdate(now -> now == TAKEN ? now : CANCELLED)
                instanceof Answer.Granted granted) {
            Schedulers.boundedElastic().schedule(() -> giveBack(granted));
        }
    }

    private static void giveBack(Answer answer) {
        if (answer instanceof Answer.Granted granted) {
            granted.run().thrown(new NothingHappened("the caller left before the handler"));
            granted.run().broken();
        }
    }
}
