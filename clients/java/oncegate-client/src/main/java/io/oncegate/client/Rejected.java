package io.oncegate.client;

import java.time.Duration;

/**
 * A gateway refused the call: a mistake of the caller, or (429) its quota is used up. Or ({@code
 * identity_differs}) it granted another identity than the client's own, or another lock, and the
 * claim was released, or the lock withdrawn.
 */
public final class Rejected extends OncegateException {
    private final int status;
    private final String code;
    private final String detail;
    private final String requestId;
    private final Duration retryAfter;

    Rejected(Response response) {
        super(response.problem());
        status = response.status();
        code = response.text("code");
        detail = response.text("detail");
        requestId = response.requestId();
        retryAfter = response.retryAfter();
    }

    private Rejected(int status, String code, String detail) {
        super(status + " " + code + ": " + detail);
        this.status = status;
        this.code = code;
        this.detail = detail;
        requestId = null;
        retryAfter = Duration.ZERO;
    }

    /** A grant of another identity than this client computes. */
    static Rejected identityDiffers(String theirs, String ours) {
        return new Rejected(
                201,
                "identity_differs",
                "the gateway granted the identity "
                        + theirs
                        + ", but this client computes "
                        + ours
                        + "; the claim was released and the work was not run. Remove the credential"
                        + " if the gateway has no apps; otherwise use a client and a gateway with"
                        + " the same rules");
    }

    /** A grant of another lock than the one that was asked for: it protects nothing. */
    static Rejected lockDiffers(String granted, String name) {
        return new Rejected(
                201,
                "identity_differs",
                "the gateway granted the lock "
                        + granted
                        + " for "
                        + name
                        + "; the request was withdrawn, and nothing has run. Is something between"
                        + " client and gateway that changes paths?");
    }

    /** Returns the HTTP status. */
    public int status() {
        return status;
    }

    /** Returns the problem code, such as {@code invalid_request}. */
    public String code() {
        return code;
    }

    /** Returns what is wrong, for people. */
    public String detail() {
        return detail;
    }

    /** Returns the id of the request in the gateway's log. */
    public String requestId() {
        return requestId;
    }

    /** Returns the time after which a repeat can help; of use with 429. */
    public Duration retryAfter() {
        return retryAfter;
    }
}
