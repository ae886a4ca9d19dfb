package io.oncegate.client;

/**
 * The outcome was answered with 409. After a success, {@code superseded} means perhaps done twice:
 * raise an alarm.
 */
public final class OutcomeRefused extends OncegateException {
    private final String code;
    private final transient Object result;

    OutcomeRefused(String code, Object result) {
        super(
                "The outcome was refused: "
                        + code
                        + ". After a success the work may have been done twice");
        this.code = code;
        this.result = result;
    }

    /** Returns {@code superseded}, {@code already_succeeded} or {@code expired}. */
    public String code() {
        return code;
    }

    /** Returns the result of the work. */
    public Object result() {
        return result;
    }
}
