package io.oncegate.client;

/**
 * The work ran here, and its outcome was reported.
 *
 * @param result the result of the work
 * @param state the state of the claim: {@code succeeded}, {@code observed}, {@code spooled} (a
 *     gateway delivers it later), or null if nothing was recorded
 * @param degraded the outage policy that answered, of the claim or else of the outcome; {@code
 *     caller} for the caller's own {@code proceed}; null in ordinary answers
 * @param late true: the claim had ended before the outcome arrived, so another attempt may have
 *     run; null: not known
 * @param wouldBe in observe mode the answer that enforcing would have given, else null
 * @param resultOmitted why the result was not stored, null if it was. The success is recorded in
 *     any case
 * @param <T> the type of the work's result
 */
public record Done<T>(
        T result,
        String state,
        String degraded,
        Boolean late,
        String wouldBe,
        String resultOmitted,
        String globalId)
        implements Result<T> {}
