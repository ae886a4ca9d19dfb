package io.oncegate.spring;

import io.oncegate.client.Mismatch;
import io.oncegate.client.http.Problem;

/**
 * The operation of a {@link Once} method was claimed with another fingerprint or other contents.
 */
public class OperationMismatch extends OnceRefused {
    private final transient Mismatch<?> mismatch;

    OperationMismatch(Mismatch<?> mismatch) {
        super(
                Problem.mismatch(),
                "The same key was used with other data: "
                        + mismatch.code()
                        + "; this is a mistake of the caller, not a repeat");
        this.mismatch = mismatch;
    }

    /** Returns the code. */
    public Mismatch<?> mismatch() {
        return mismatch;
    }
}
