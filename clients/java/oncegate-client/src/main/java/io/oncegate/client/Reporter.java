package io.oncegate.client;

import io.oncegate.client.Rounds.Failed;
import io.oncegate.client.Rounds.Plan;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;

/**
 * Repeats reports until they are accepted. An interrupt of the caller is remembered, and ends no
 * report.
 */
final class Reporter {
    /** A longer result is not sent: the default of the gateway's {@code limits.result_bytes}. */
    private static final int RESULT_BYTES_MAX = 64 * 1024;

    private static final List<Integer> RESULT_REFUSED = List.of(400, 413, 422);

    private final Context context;

    Reporter(Context context) {
        this.context = context;
    }

    /**
     * A result as JSON, or why it cannot be sent.
     *
     * @param text null without a result; a marker if it cannot be sent
     * @param omitted null if there is nothing wrong with it
     */
    record Written(JsonText text, String omitted) {}

    /**
     * Writes a result. Finished work is never reported as unknown because its result cannot be
     * written.
     */
    Written write(Object result) {
        if (result == null) {
            return new Written(null, null);
        }
        try {
            String text =
                    result instanceof JsonText json
                            ? json.text()
                            : context.options().resultWriter.apply(result);
            int bytes = text.getBytes(StandardCharsets.UTF_8).length;
            if (bytes > RESULT_BYTES_MAX) {
                return new Written(
                        marker("too_large"),
                        "the result has " + bytes + " bytes, more than " + RESULT_BYTES_MAX);
            }
            return new Written(new JsonText(text), null);
        } catch (RuntimeException | StackOverflowError notJson) {
            return new Written(marker("not_serialisable"), "the result is not JSON: " + notJson);
        }
    }

    /** Returns the result of a success whose own result is not stored, for its duplicates. */
    private static JsonText marker(String why) {
        return new JsonText("{\"$oncegate\":{\"omitted\":\"" + why + "\"}}");
    }

    /** Sends a report until it is answered; throws {@link OutcomeRefused} or {@link NotSettled}. */
    Settled send(Report report, Object result, String omitted) {
        JsonText refused = omitted == null && report.result() != null ? marker("refused") : null;
        return send(report, result, omitted, refused);
    }

    /**
     * Sends a report until it is answered.
     *
     * @param otherwise the result to send if the gateway refuses the first one; null: none
     */
    Settled send(Report report, Object result, String omitted, JsonText otherwise) {
        try {
            return Traces.<Settled, RuntimeException>call(
                    "oncegate outcome",
                    report.subject().operation(),
                    trace -> {
                        Settled settled = deliver(report, result, omitted, otherwise);
                        trace.says(settled.state(), null, settled.degraded());
                        return settled;
                    });
        } catch (InterruptedException never) {
            throw new IllegalStateException(never);
        }
    }

    private Settled deliver(Report report, Object result, String omitted, JsonText otherwise) {
        if (omitted != null) {
            context.events().send("result_omitted", report.subject(), "why", omitted);
        }
        try {
            Response answer = answer(report);
            if (report.result() != null && RESULT_REFUSED.contains(answer.status())) {
                // The operation has succeeded whether or not its result can be stored.
                return deliver(report.withResult(otherwise), result, answer.problem(), null);
            }
            if (answer.status() == 409) {
                throw refused(report, answer, result);
            }
            if (answer.status() >= 300) {
                throw new Rejected(answer);
            }
            return settled(report, answer, omitted);
        } catch (Failed failed) {
            throw notSettled(report, result, failed.error());
        } catch (Rejected rejected) {
            throw notSettled(report, result, rejected);
        }
    }

    /** Reads the answer to a report in a batch. */
    Settled ofBatch(Report report, Response answer, Object result, String omitted) {
        if (omitted != null) {
            context.events().send("result_omitted", report.subject(), "why", omitted);
        }
        if (answer.status() == 409) {
            throw refused(report, answer, result);
        }
        if (answer.status() >= 300) {
            throw notSettled(report, result, new Rejected(answer));
        }
        return settled(report, answer, omitted);
    }

    private OutcomeRefused refused(Report report, Response answer, Object result) {
        String code = answer.text("code");
        context.events()
                .send(
                        "outcome_refused",
                        report.subject(),
                        "outcome",
                        report.outcome(),
                        "code",
                        code);
        return new OutcomeRefused(code, result);
    }

    private Response answer(Report report) throws Failed {
        int granted = context.options().urls.indexOf(report.gateway());
        int from = granted < 0 ? context.rounds().first() : granted;
        Duration within = context.options().settleWithin;
        try {
            return context.rounds().run(report.call(), new Plan(from, within, false, late -> {}));
        } catch (InterruptedException impossible) {
            throw new IllegalStateException("A report is not interruptible", impossible);
        }
    }

    Settled settled(Report report, Response answer, String omitted) {
        String state = answer.status() == 202 ? "spooled" : answer.text("state");
        Boolean late = answer.fields().get("late") instanceof Boolean flag ? flag : null;
        String degraded = answer.text("degraded");
        context.events()
                .send(
                        "reported",
                        report.subject(),
                        "outcome",
                        report.outcome(),
                        "state",
                        state,
                        "late",
                        late,
                        "degraded",
                        degraded);
        return new Settled(state, late, degraded, omitted, report.globalId());
    }

    NotSettled notSettled(Report report, Object result, OncegateException cause) {
        context.events().send("not_settled", report.subject(), "outcome", report.outcome());
        return new NotSettled(report.text(), result, cause);
    }
}
