package io.oncegate.client;

/** Base of the errors of this client. */
public class OncegateException extends RuntimeException {
    OncegateException(String message) {
        super(message);
    }

    OncegateException(String message, Throwable cause) {
        super(message, cause);
    }
}
