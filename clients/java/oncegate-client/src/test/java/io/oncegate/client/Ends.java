package io.oncegate.client;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The ends of calls as the vectors write them. */
final class Ends {
    private Ends() {}

    /** An error of the work itself. */
    static final class WorkFailed extends RuntimeException {
        WorkFailed() {
            super("the work failed");
        }
    }

    private static Map<String, Object> fields(Object... namesAndValues) {
        var fields = new LinkedHashMap<String, Object>();
        for (int at = 0; at < namesAndValues.length; at += 2) {
            fields.put((String) namesAndValues[at], namesAndValues[at + 1]);
        }
        return fields;
    }

    private static Object json(Object value) {
        try {
            return value == null ? null : Json.read(Json.write(value));
        } catch (IllegalArgumentException notJson) {
            return String.valueOf(value);
        }
    }

    private static Object millis(Duration duration) {
        return duration.toMillis();
    }

    private static Object text(Object value) {
        return value == null ? null : value.toString();
    }

    static Map<String, Object> of(Object end) {
        if (end instanceof Done<?> done) {
            return fields(
                    "done",
                    fields(
                            "result",
                            json(done.result()),
                            "state",
                            done.state(),
                            "degraded",
                            done.degraded(),
                            "late",
                            done.late(),
                            "would_be",
                            done.wouldBe(),
                            "result_omitted",
                            done.resultOmitted() != null,
                            "global_id",
                            done.globalId()));
        }
        if (end instanceof Duplicate<?> duplicate) {
            return fields(
                    "duplicate",
                    fields(
                            "state",
                            duplicate.state(),
                            "result",
                            json(duplicate.result()),
                            "retry_after_ms",
                            millis(duplicate.retryAfter()),
                            "claimed_at",
                            text(duplicate.claimedAt()),
                            "expires_at",
                            text(duplicate.expiresAt()),
                            "contents_verified",
                            duplicate.contentsVerified(),
                            "degraded",
                            duplicate.degraded(),
                            "would_be",
                            duplicate.wouldBe(),
                            "global_id",
                            duplicate.globalId()));
        }
        if (end instanceof Mismatch<?> mismatch) {
            return fields(
                    "mismatch", fields("code", mismatch.code(), "global_id", mismatch.globalId()));
        }
        if (end instanceof Grant grant) {
            return fields("grant", grant(grant));
        }
        if (end instanceof Settled settled) {
            return fields(
                    "settled",
                    fields(
                            "state",
                            settled.state(),
                            "late",
                            settled.late(),
                            "degraded",
                            settled.degraded(),
                            "result_omitted",
                            settled.resultOmitted() != null,
                            "global_id",
                            settled.globalId()));
        }
        throw new IllegalStateException("no end of a call: " + end);
    }

    static Map<String, Object> lock(LockRecord lock) {
        var holders =
                lock.holders().stream()
                        .map(
                                holder ->
                                        fields(
                                                "hash",
                                                holder.hash(),
                                                "mode",
                                                holder.mode().wire(),
                                                "claimed_at",
                                                text(holder.claimedAt()),
                                                "lease_ms",
                                                millis(holder.lease())))
                        .toList();
        return fields(
                "held",
                lock.held(),
                "mode",
                lock.mode() == null ? null : lock.mode().wire(),
                "limit",
                lock.limit() == null ? null : lock.limit().longValue(),
                "fence",
                lock.fence(),
                "waiting",
                lock.waiting(),
                "holders",
                holders);
    }

    static Map<String, Object> hold(Hold hold) {
        return fields("fence", hold.fence(), "is_live", hold.isLive(), "lost", hold.lost());
    }

    static Map<String, Object> grant(Grant grant) {
        return fields(
                "global_id",
                grant.globalId(),
                "fence",
                grant.fence(),
                "repeated",
                grant.repeated(),
                "taken_over",
                grant.takenOver(),
                "degraded",
                grant.degraded(),
                "would_be",
                grant.wouldBe(),
                "is_live",
                grant.isLive(),
                "lost",
                grant.lost());
    }

    static Map<String, Object> cause(Cause cause, List<String> urls) {
        return fields(
                "at",
                urls.indexOf(cause.url()),
                "kind",
                cause.kind().wire(),
                "status",
                cause.status(),
                "code",
                cause.code(),
                "request_id",
                cause.requestId());
    }

    static Map<String, Object> error(Throwable thrown, List<String> urls) {
        if (thrown instanceof Unavailable unavailable) {
            var causes = unavailable.causes().stream().map(cause -> cause(cause, urls)).toList();
            return fields("error", "unavailable", "causes", causes);
        }
        if (thrown instanceof Rejected rejected) {
            return fields(
                    "error",
                    "rejected",
                    "status",
                    rejected.status(),
                    "code",
                    rejected.code(),
                    "request_id",
                    rejected.requestId(),
                    "retry_after_ms",
                    millis(rejected.retryAfter()));
        }
        if (thrown instanceof OutcomeRefused refused) {
            return fields(
                    "error",
                    "outcome_refused",
                    "code",
                    refused.code(),
                    "result",
                    json(refused.result()));
        }
        if (thrown instanceof NotSettled unsettled) {
            return fields(
                    "error",
                    "not_settled",
                    "report",
                    Json.read(unsettled.report()),
                    "result",
                    json(unsettled.result()),
                    "cause",
                    error(unsettled.getCause(), urls));
        }
        if (thrown instanceof LockNotAcquired held) {
            return fields(
                    "error",
                    "lock_not_acquired",
                    "code",
                    held.code(),
                    "retry_after_ms",
                    millis(held.retryAfter()),
                    "limit",
                    held.limit() == null ? null : held.limit().longValue());
        }
        if (thrown instanceof NotCanonical refused) {
            return fields(
                    "error", "not_canonical", "reason", refused.reason(), "path", refused.path());
        }
        if (thrown instanceof NothingHappened) {
            return fields("error", "nothing_happened");
        }
        if (thrown instanceof WorkFailed) {
            return fields("error", "work");
        }
        if (thrown instanceof InterruptedException) {
            return fields("error", "cancelled");
        }
        if (thrown instanceof IllegalArgumentException) {
            return fields("error", "argument");
        }
        throw new AssertionError("no error of the vectors", thrown);
    }
}
