package io.oncegate.client;

/**
 * The end of {@link OncegateClient#once}.
 *
 * @param <T> the type of the work's result
 */
public sealed interface Result<T> permits Done, Duplicate, Mismatch {
    /**
     * Returns the result of the work: that of this run, or the stored one of an earlier success;
     * null if there is none.
     */
    T result();

    /** Returns the ID of the operation. */
    String globalId();
}
