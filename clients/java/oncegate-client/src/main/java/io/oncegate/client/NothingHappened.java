package io.oncegate.client;

/** Thrown by the work: it failed and had no effect. The operation is released at once. */
public class NothingHappened extends RuntimeException {
    /** Says why nothing happened. */
    public NothingHappened(String message) {
        super(message);
    }

    /** Says why nothing happened. */
    public NothingHappened(String message, Throwable cause) {
        super(message, cause);
    }
}
