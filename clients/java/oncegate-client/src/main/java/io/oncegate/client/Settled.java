package io.oncegate.client;

/**
 * A report that was accepted.
 *
 * @param state the state of the claim, or {@code spooled}
 * @param late true: the claim had ended before; null: not known
 * @param degraded the outage policy that answered, or null
 * @param resultOmitted why the result was not stored, null if it was
 */
public record Settled(
        String state, Boolean late, String degraded, String resultOmitted, String globalId) {}
