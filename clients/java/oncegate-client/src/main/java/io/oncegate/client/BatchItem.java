package io.oncegate.client;

/**
 * The answer to one item of a batch: a value, or an error of this item.
 *
 * @param value null if there is an error
 * @param error null if there is a value
 */
public record BatchItem<T>(T value, OncegateException error) {
    /** Returns the value, or throws the error. */
    public T get() {
        if (error != null) {
            throw error;
        }
        return value;
    }
}
