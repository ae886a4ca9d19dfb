package io.oncegate.spring;

/**
 * An earlier run of a {@link Once} method has succeeded, but its result was not stored. The
 * operation is done: do not run it again.
 */
public class ResultNotStored extends RuntimeException {
    private final String omitted;

    ResultNotStored(String operation, String omitted) {
        super(
                operation
                        + " has succeeded before, but its result was not stored ("
                        + omitted
                        + "); read it from your own data, or return a type that Jackson can write");
        this.omitted = omitted;
    }

    /** Returns the reason: {@code too_large} or {@code not_serialisable}. */
    public String omitted() {
        return omitted;
    }
}
