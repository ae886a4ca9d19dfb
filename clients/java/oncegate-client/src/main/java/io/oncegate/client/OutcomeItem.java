package io.oncegate.client;

/** One outcome of {@link OncegateClient#settleBatch}: of a live grant, or one that was kept. */
public final class OutcomeItem {
    private final Grant grant;
    private final Outcome outcome;
    private final Object result;
    private final String report;

    private OutcomeItem(Grant grant, Outcome outcome, Object result, String report) {
        if (grant == null && report == null) {
            throw new IllegalArgumentException("An outcome is of a grant or of a report");
        }
        this.grant = grant;
        this.outcome = outcome;
        this.result = result;
        this.report = report;
    }

    /** Returns the outcome that the work is finished; duplicates get the result. */
    public static OutcomeItem success(Grant grant, Object result) {
        return new OutcomeItem(grant, Outcome.SUCCESS, result, null);
    }

    /** Returns the outcome that nothing happened. */
    public static OutcomeItem failure(Grant grant) {
        return new OutcomeItem(grant, Outcome.FAILURE, null, null);
    }

    /** Returns the outcome that it is not known whether it happened. */
    public static OutcomeItem unknown(Grant grant) {
        return new OutcomeItem(grant, Outcome.UNKNOWN, null, null);
    }

    /** Returns the outcome that {@link NotSettled#report} kept. */
    public static OutcomeItem report(String report) {
        return new OutcomeItem(null, null, null, report);
    }

    /** Returns null for a kept report. */
    Grant grant() {
        return grant;
    }

    Outcome outcome() {
        return outcome;
    }

    Object result() {
        return result;
    }

    String report() {
        return report;
    }
}
