package io.oncegate.client;

/** The caller's own policy when no gateway answers a claim call. */
public enum OnUnavailable {
    /** {@link Unavailable} is thrown. Right for anything that is worse done twice than late. */
    FAIL_CLOSED,
    /** The work runs unprotected, and {@code degraded} is {@code caller}. */
    PROCEED
}
