package io.oncegate.spring;

import io.oncegate.client.Decision;

/** An unfinished message: the decision names the next step. */
public class NotDone extends RuntimeException {
    private final transient Decision decision;

    /** Carries a decision to the error handler of the container. */
    public NotDone(Decision decision) {
        super(decision.kind() + ": " + decision.reason(), decision.error());
        this.decision = decision;
    }

    /** Returns the decision. */
    public Decision decision() {
        return decision;
    }

    /** Returns the decision in a chain of causes, or null. */
    public static Decision in(Throwable thrown) {
        for (Throwable cause = thrown; cause != null; cause = cause.getCause()) {
            if (cause instanceof NotDone not) {
                return not.decision();
            }
        }
        return null;
    }
}
