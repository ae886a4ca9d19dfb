package io.oncegate.client;

import java.util.Locale;

/**
 * The last failure of a gateway.
 *
 * @param status the HTTP status, 0 without an answer
 * @param code the problem code, or null
 * @param requestId the request id of the answer, or null
 */
public record Cause(
        String url, Kind kind, String detail, int status, String code, String requestId) {

    /** Kinds of failures. */
    public enum Kind {
        /** The host name has no address. */
        DNS,
        /** No server listens on the port. */
        REFUSED,
        /** No answer in time. */
        TIMEOUT,
        /** The certificate or the handshake. */
        TLS,
        /** The connection was closed or broke. */
        CONNECTION,
        /** Something else answered: check the URL. */
        NOT_A_GATEWAY,
        /** The gateway answered 5xx, or 429. */
        ANSWER,
        /** The grant arrived after its lease had ended by this clock; it was released. */
        TOO_LATE;

        /** Returns the name that all clients use, such as {@code not_a_gateway}. */
        public String wire() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

    Cause(String url, Kind kind, String detail) {
        this(url, kind, detail, 0, null, null);
    }

    @Override
    public String toString() {
        return url + ": " + kind.wire() + ": " + detail;
    }
}
