package io.oncegate.client;

/**
 * The operation was claimed with another fingerprint, or with other contents of the same ID.
 *
 * @param code {@code fingerprint_mismatch} or {@code contents_mismatch}
 * @param <T> the type of the work's result
 */
public record Mismatch<T>(String code, String globalId) implements Result<T>, Claimed {
    /** Returns null: a mismatch has no result. */
    @Override
    public T result() {
        return null;
    }

    @SuppressWarnings("unchecked") // The parameter only makes the type fit: no member has it.
    <U> Mismatch<U> as() {
        return (Mismatch<U>) this;
    }
}
