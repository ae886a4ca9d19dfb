package io.oncegate.client;

import java.time.Duration;
import java.util.Set;

/**
 * Decision of a consumer about a message: one table for all brokers, the same in every language.
 *
 * @param kind acknowledge, redeliver, park or dead-letter
 * @param delay least delay before a redelivery; null: the consumer's own
 * @param reason for the log and the header of a parked message
 * @param error what was thrown, or null
 */
public record Decision(Kind kind, Duration delay, String reason, Exception error) {
    /** Statuses that say nothing about the message: a wrong credential or URL. */
    private static final Set<Integer> NOT_OF_THE_MESSAGE = Set.of(401, 403, 404, 405);

    /** Action on the message. */
    public enum Kind {
        /** Done, here or before. */
        ACK,
        /** Again later: in progress, no gateway, a quota, nothing happened. */
        REDELIVER,
        /**
         * Its outcome is unknown: keep it apart for a program or person who looks up the effect and
         * takes over.
         */
        PARK,
        /** A mistake that a repeat cannot correct, or a poison message. */
        DEAD_LETTER
    }

    /** Returns the decision for the end of a run. */
    public static Decision of(Result<?> result) {
        if (result instanceof Mismatch<?> mismatch) {
            return new Decision(Kind.DEAD_LETTER, null, mismatch.code(), null);
        }
        if (result instanceof Duplicate<?> duplicate) {
            return switch (duplicate.state()) {
                case "succeeded" -> new Decision(Kind.ACK, null, "done before", null);
                case "in_progress" ->
                        new Decision(Kind.REDELIVER, duplicate.retryAfter(), "in progress", null);
                default -> new Decision(Kind.PARK, null, "its outcome is unknown", null);
            };
        }
        return new Decision(Kind.ACK, null, "done", null);
    }

    /**
     * Returns the decision for a run that ended with this error.
     *
     * @param failures earlier runs of this message that ended with {@link NothingHappened}
     * @param maxFailures runs after which it is poison
     * @param reportIsKept the report of {@link NotSettled} was kept, to be settled later
     */
    public static Decision of(
            Exception error, int failures, int maxFailures, boolean reportIsKept) {
        String reason = String.valueOf(error.getMessage());
        if (error instanceof NothingHappened) {
            Kind kind = failures + 1 >= maxFailures ? Kind.DEAD_LETTER : Kind.REDELIVER;
            return new Decision(kind, null, reason, error);
        }
        if (error instanceof Unavailable) {
            return new Decision(Kind.REDELIVER, null, reason, error);
        }
        if (error instanceof NotSettled) {
            return new Decision(reportIsKept ? Kind.ACK : Kind.REDELIVER, null, reason, error);
        }
        if (error instanceof OutcomeRefused) {
            // Ours is done, with any outcome of the other attempt. The event is an alarm.
            return new Decision(Kind.ACK, null, reason, error);
        }
        if (error instanceof NotCanonical || error instanceof ContentsNotDerived) {
            return new Decision(Kind.DEAD_LETTER, null, reason, error);
        }
        if (error instanceof Rejected rejected) {
            if (rejected.status() == 429) {
                return new Decision(Kind.REDELIVER, rejected.retryAfter(), reason, error);
            }
            boolean later = NOT_OF_THE_MESSAGE.contains(rejected.status());
            return new Decision(later ? Kind.REDELIVER : Kind.DEAD_LETTER, null, reason, error);
        }
        return new Decision(Kind.PARK, null, reason, error);
    }
}
