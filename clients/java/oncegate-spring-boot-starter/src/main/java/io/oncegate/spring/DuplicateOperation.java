package io.oncegate.spring;

import io.oncegate.client.Duplicate;
import io.oncegate.client.http.Problem;

/** The operation of a {@link Once} method is in progress elsewhere, or its outcome is unknown. */
public class DuplicateOperation extends OnceRefused {
    private final transient Duplicate<?> duplicate;

    DuplicateOperation(Duplicate<?> duplicate) {
        super(
                Problem.of(duplicate),
                "Another attempt is "
                        + duplicate.state()
                        + "; repeat after "
                        + duplicate.retryAfter().toMillis()
                        + " ms, or look it up");
        this.duplicate = duplicate;
    }

    /** Returns its state, and the time after which a repeat can help. */
    public Duplicate<?> duplicate() {
        return duplicate;
    }
}
