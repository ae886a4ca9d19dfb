package io.oncegate.client;

import java.time.Duration;
import java.util.List;

/**
 * Optional terms of one claim; null is the operator's choice.
 *
 * <pre>{@code Terms.NONE.fingerprint(Map.of("amount_cents", 1110)).lease("2m")}</pre>
 *
 * @param fingerprint what else must be equal on a repeat, without being part of the identity; null
 *     is none
 * @param lease such as {@code 30s}
 * @param retention such as {@code 30d}, or {@code forever}
 * @param takesOver claims an operation that is {@code unknown}, after its effect was looked up
 * @param waitFor waits for an attempt that is in progress, such as {@code 10s}
 * @param releaseOn errors of work that had no effect, in addition to those of the client
 * @param isUnknownOnLeaseEnd makes the claim {@code unknown} if its lease ends without an outcome
 */
public record Terms(
        Object fingerprint,
        String lease,
        String retention,
        boolean takesOver,
        String waitFor,
        List<Class<? extends Throwable>> releaseOn,
        boolean isUnknownOnLeaseEnd) {
    /** The operator's terms. */
    public static final Terms NONE = new Terms(null, null, null, false, null, List.of(), false);

    /** Refuses what is not a duration. */
    public Terms {
        if (waitFor != null) {
            Durations.parse("waitFor", waitFor);
        }
        if (lease != null) {
            Durations.parse("lease", lease);
        }
        if (retention != null && !"forever".equals(retention)) {
            Durations.parse("retention", retention);
        }
    }

    /** Returns these terms with a fingerprint. */
    public Terms fingerprint(Object fingerprint) {
        return new Terms(
                fingerprint, lease, retention, takesOver, waitFor, releaseOn, isUnknownOnLeaseEnd);
    }

    /** Returns these terms with a lease, such as {@code 30s}. */
    public Terms lease(String lease) {
        return new Terms(
                fingerprint, lease, retention, takesOver, waitFor, releaseOn, isUnknownOnLeaseEnd);
    }

    /** Returns these terms with a lease. */
    public Terms lease(Duration lease) {
        return lease(Durations.text(lease));
    }

    /** Returns these terms with a retention, such as {@code 30d} or {@code forever}. */
    public Terms retention(String retention) {
        return new Terms(
                fingerprint, lease, retention, takesOver, waitFor, releaseOn, isUnknownOnLeaseEnd);
    }

    /** Returns these terms, taking over an operation that is {@code unknown}. */
    public Terms takeOver() {
        return new Terms(
                fingerprint, lease, retention, true, waitFor, releaseOn, isUnknownOnLeaseEnd);
    }

    /**
     * Returns these terms, with a claim that becomes {@code unknown} if its lease ends without an
     * outcome, also where the operation's own term releases it.
     */
    public Terms unknownOnLeaseEnd() {
        return new Terms(fingerprint, lease, retention, takesOver, waitFor, releaseOn, true);
    }

    /** Returns these terms with a wait, such as {@code 10s}. */
    public Terms waitFor(String waitFor) {
        return new Terms(
                fingerprint, lease, retention, takesOver, waitFor, releaseOn, isUnknownOnLeaseEnd);
    }

    /** Returns these terms with a wait. */
    public Terms waitFor(Duration wait) {
        return waitFor(Durations.text(wait));
    }

    /**
     * Returns these terms with errors of work that had no effect, subclasses included: the
     * operation is released at once, and the error is thrown on unchanged. Causes do not count.
     */
    public Terms releaseOn(List<Class<? extends Throwable>> errors) {
        return new Terms(
                fingerprint,
                lease,
                retention,
                takesOver,
                waitFor,
                List.copyOf(errors),
                isUnknownOnLeaseEnd);
    }

    /** Returns how long to wait for an attempt that is in progress. */
    public Duration waiting() {
        return waitFor == null ? Duration.ZERO : Durations.parse("waitFor", waitFor);
    }
}
