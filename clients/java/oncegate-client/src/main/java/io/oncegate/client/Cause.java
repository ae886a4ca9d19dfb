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
        /** The grant or hold arrived after its lease had ended by this clock; it was released. */
        TOO_LATE;

        /** Returns the name that all clients use, such as {@code not_a_gateway}. */
        public String wire() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

    Cause(String url, Kind kind, String detail) {
        this(url, kind, detail, 0, null, null);
    }

    /** Returns the failure that a gateway has answered. */
    static Cause of(String url, Response answer) {
        return new Cause(
                url,
                Kind.ANSWER,
                answer.problem(),
                answer.status(),
                answer.text("code"),
                answer.requestId());
    }

    /**
     * @param what the grant or hold that was released
     */
    static Cause tooLate(String url, String what) {
        String detail = "the " + what + " arrived after its lease had ended, and was released";
        return new Cause(url, Kind.TOO_LATE, detail);
    }

    /**
     * Returns true if the call may have had an effect. A gateway that is overloaded or draining has
     * not started it, and what came too late was released.
     */
    boolean mayHaveActed() {
        return switch (kind) {
            case DNS, REFUSED, TLS, TOO_LATE -> false;
            case ANSWER -> status == 500 || "outcome_unknown".equals(code);
            default -> true;
        };
    }

    @Override
    public String toString() {
        return url + ": " + kind.wire() + ": " + detail;
    }
}
