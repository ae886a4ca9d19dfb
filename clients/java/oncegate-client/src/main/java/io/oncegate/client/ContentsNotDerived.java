package io.oncegate.client;

/** The contents of an operation could not be read from a message. */
public final class ContentsNotDerived extends OncegateException {
    ContentsNotDerived(Exception cause) {
        super("The contents could not be derived from the message: " + cause, cause);
    }
}
