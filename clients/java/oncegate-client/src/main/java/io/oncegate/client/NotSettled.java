package io.oncegate.client;

/** The work is done, and no gateway has accepted its outcome. The cause says why. */
public final class NotSettled extends OncegateException {
    private final String report;
    private final transient Object result;

    NotSettled(String report, Object result, OncegateException cause) {
        super("No gateway has accepted the outcome yet: " + cause.getMessage(), cause);
        this.report = report;
        this.result = result;
    }

    /**
     * Returns the report as JSON text, to keep and to pass to {@link OncegateClient#settle} later.
     * It holds the attempt: keep it like a secret.
     */
    public String report() {
        return report;
    }

    /** Returns the result of the work. */
    public Object result() {
        return result;
    }
}
