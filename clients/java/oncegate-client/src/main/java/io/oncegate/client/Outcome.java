package io.oncegate.client;

import java.util.Locale;

/** The reported outcome of an operation. */
public enum Outcome {
    /** Finished: must never run again. */
    SUCCESS,
    /** Nothing happened: the operation is released at once. */
    FAILURE,
    /** Unknown whether it happened. */
    UNKNOWN;

    /** Returns the name that all clients use, such as {@code success}. */
    public String wire() {
        return name().toLowerCase(Locale.ROOT);
    }
}
