package io.oncegate.client;

import java.time.Duration;

/**
 * Optional terms of one claim; null is the operator's choice.
 *
 * <pre>{@code Terms.NONE.fingerprint(Map.of("amount_cents", 1110)).lease("2m")}</pre>
 *
 * @param fingerprint what else must be equal on a repeat, without being part of the identity; null is none
 * @param lease such as {@code 30s}
 * @param retention such as {@code 30d}, or {@code forever}
 * @param takeOver claims an operation that is {@code unknown}, after its effect was looked up
 * @param wait waits for an attempt that is in progress, such as {@code 10s}
 */
public record Terms(Object fingerprint, String lease, String retention, boolean takeOver, String wait) {
    /** The operator's terms. */
    public static final Terms NONE = new Terms(null, null, null, false, null);

    /** Refuses what is not a duration. */
    public Terms {
        if (wait != null) {
            Durations.parse("wait", wait);
        }
    }

    /** Returns these terms with a fingerprint. */
    public Terms fingerprint(Object fingerprint) {
        return new Terms(fingerprint, lease, retention, takeOver, wait);
    }

    /** Returns these terms with a lease, such as {@code 30s}. */
    public Terms lease(String lease) {
        return new Terms(fingerprint, lease, retention, takeOver, wait);
    }

    /** Returns these terms with a lease. */
    public Terms lease(Duration lease) {
        return lease(Durations.text(lease));
    }

    /** Returns these terms with a retention, such as {@code 30d} or {@code forever}. */
    public Terms retention(String retention) {
        return new Terms(fingerprint, lease, retention, takeOver, wait);
    }

    /** Returns these terms, taking over an operation that is {@code unknown}. */
    public Terms takeOver() {
        return new Terms(fingerprint, lease, retention, true, wait);
    }

    /** Returns these terms with a wait, such as {@code 10s}. */
    public Terms wait(String wait) {
        return new Terms(fingerprint, lease, retention, takeOver, wait);
    }

    /** Returns these terms with a wait. */
    public Terms wait(Duration wait) {
        return wait(Durations.text(wait));
    }

    Duration waiting() {
        return wait == null ? Duration.ZERO : Durations.parse("wait", wait);
    }
}
