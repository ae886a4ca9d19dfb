package io.oncegate.client;

/** Contents that others could read as something else. Nothing was sent. */
public final class NotCanonical extends OncegateException {
    private final String reason;
    private final String path;

    NotCanonical(String reason, String path, String message) {
        super(path + ": " + message);
        this.reason = reason;
        this.path = path;
    }

    /** Returns a reason of the table in the README of the clients, such as {@code float}. */
    public String reason() {
        return reason;
    }

    /** Returns the place in the contents, such as {@code $.lines[0]}. */
    public String path() {
        return path;
    }
}
