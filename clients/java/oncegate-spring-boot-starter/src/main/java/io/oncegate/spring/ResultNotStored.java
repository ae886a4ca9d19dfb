package io.oncegate.spring;

import io.oncegate.client.Duplicate;
import io.oncegate.client.http.Problem;

/**
 * An earlier run of a {@link Once} method has succeeded, but its result was not stored. The
 * operation is done: do not run it again.
 */
public class ResultNotStored extends OnceRefused {
    private final String omitted;

    ResultNotStored(String operation, Duplicate<?> duplicate) {
        super(
                Problem.of(duplicate),
                operation
                        + " has succeeded before, but its result was not stored ("
                        + duplicate.resultOmitted()
                        + "); read it from your own data, or return a type that Jackson can write");
        omitted = duplicate.resultOmitted();
    }

    /** Returns the reason: {@code too_large}, {@code not_serialisable} or {@code refused}. */
    public String omitted() {
        return omitted;
    }
}
