package io.oncegate.client;

import io.oncegate.client.Rounds.Failed;
import io.oncegate.client.Rounds.Plan;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BiFunction;

/**
 * Calls of many items. Items that were not done (429, 5xx) are sent again, as they were, until the
 * time is over.
 */
final class Batches {
    private static final int ITEMS_MAX = 1000;
    private static final Duration PAUSE = Duration.ofMillis(50);

    private final Context context;
    private final Reporter reporter;
    private final Claiming claiming;

    Batches(Context context, Reporter reporter, Claiming claiming) {
        this.context = context;
        this.reporter = reporter;
        this.claiming = claiming;
    }

    List<BatchItem<Claimed>> claim(List<ClaimItem> items) throws InterruptedException {
        var requests =
                items.stream()
                        .map(
                                item ->
                                        ClaimRequest.of(
                                                context,
                                                item.operation(),
                                                item.contents(),
                                                item.terms()))
                        .toList();
        var bodies = requests.stream().map(request -> request.body(Duration.ZERO)).toList();
        return run(
                "/v1/claims/batch",
                bodies,
                context.options().claimWithin,
                (at, answer) -> {
                    Claimed claimed = claiming.read(requests.get(at), answer);
                    if (claimed instanceof Grant grant) {
                        Rejected differs = grant.identityDiffers();
                        if (differs != null) {
                            context.background().run(() -> Claiming.release(grant));
                            throw differs;
                        }
                        grant.start();
                    }
                    return claimed;
                },
                (at, failed) -> failed);
    }

    List<BatchItem<Settled>> settle(List<OutcomeItem> outcomes) throws InterruptedException {
        if (!outcomes.isEmpty() && outcomes.stream().allMatch(Batches::isDisabled)) {
            return outcomes.stream().map(OutcomeItem::grant).map(Batches::disabled).toList();
        }
        List<Pending> pending = outcomes.stream().map(this::pending).toList();
        List<Map<String, Object>> bodies = new ArrayList<>();
        for (Pending each : pending) {
            var body = new LinkedHashMap<String, Object>();
            body.put("global_id", each.report().globalId());
            body.putAll(each.report().body());
            bodies.add(body);
        }
        return run(
                "/v1/outcomes/batch",
                bodies,
                context.options().settleWithin,
                (at, answer) -> settled(pending.get(at), answer),
                (at, failed) -> notSettled(pending.get(at), failed));
    }

    /** An outcome on its way. */
    private record Pending(Report report, OutcomeItem item, String omitted) {}

    private Pending pending(OutcomeItem item) {
        if (item.grant() == null) {
            return new Pending(Report.parse(item.report()), item, null);
        }
        Reporter.Written written = reporter.write(item.result());
        return new Pending(
                item.grant().reportOf(item.outcome(), written.text()), item, written.omitted());
    }

    private static boolean isDisabled(OutcomeItem item) {
        return item.grant() != null && item.grant().isDisabled();
    }

    private static BatchItem<Settled> disabled(Grant grant) {
        var end = new Settled(null, null, grant.degraded(), null, grant.globalId());
        grant.reported(end);
        return new BatchItem<>(end, null);
    }

    private NotSettled notSettled(Pending pending, OncegateException failed) {
        if (pending.item().grant() != null) {
            pending.item().grant().reported(null);
        }
        return reporter.notSettled(pending.report(), pending.item().result(), failed);
    }

    private Settled settled(Pending pending, Response answer) {
        Grant grant = pending.item().grant();
        Settled end = null;
        try {
            end =
                    reporter.ofBatch(
                            pending.report(), answer, pending.item().result(), pending.omitted());
            return end;
        } finally {
            if (grant != null) {
                grant.reported(end);
            }
        }
    }

    private <T> List<BatchItem<T>> run(
            String path,
            List<Map<String, Object>> bodies,
            Duration within,
            BiFunction<Integer, Response, T> read,
            BiFunction<Integer, OncegateException, OncegateException> unanswered)
            throws InterruptedException {
        if (bodies.isEmpty() || bodies.size() > ITEMS_MAX) {
            throw new IllegalArgumentException(
                    "A batch has 1 to " + ITEMS_MAX + " items, not " + bodies.size());
        }
        List<BatchItem<T>> ends = new ArrayList<>(Collections.nCopies(bodies.size(), null));
        List<Integer> open = new ArrayList<>();
        for (int at = 0; at < bodies.size(); at++) {
            open.add(at);
        }
        long last = System.nanoTime() + within.toNanos();
        while (!open.isEmpty()) {
            List<Response> answers;
            try {
                answers = answers(path, open.stream().map(bodies::get).toList(), last);
            } catch (OncegateException failed) {
                if (open.size() == bodies.size()) {
                    throw failed;
                }
                // The other items have their ends.
                for (int item : open) {
                    ends.set(item, new BatchItem<>(null, unanswered.apply(item, failed)));
                }
                return ends;
            }
            List<Integer> again = new ArrayList<>();
            Duration pause = PAUSE;
            for (int at = 0; at < open.size(); at++) {
                Response answer = answers.get(at);
                int item = open.get(at);
                boolean soon = System.nanoTime() + answer.retryAfter().toNanos() < last;
                if (!answer.isFinal() && soon) {
                    again.add(item);
                    pause = pause.compareTo(answer.retryAfter()) > 0 ? pause : answer.retryAfter();
                } else {
                    ends.set(item, end(item, answer, read));
                }
            }
            if (!again.isEmpty()) {
                Pauses.sleep(pause, true);
            }
            open = again;
        }
        return ends;
    }

    private List<Response> answers(String path, List<Map<String, Object>> bodies, long last)
            throws InterruptedException {
        var subject = new Subject("batch", null);
        var call =
                new Call(
                        path, Json.write(Map.of("items", bodies)), "items", Duration.ZERO, subject);
        try {
            Duration left = Duration.ofNanos(Math.max(1, last - System.nanoTime()));
            Response answer =
                    context.rounds()
                            .run(call, new Plan(context.rounds().first(), left, true, late -> {}));
            if (answer.status() != 200
                    || !(answer.fields().get("items") instanceof List<?> items)
                    || items.size() != bodies.size()) {
                throw new Rejected(answer);
            }
            return items.stream().map(item -> answer.item(fields(item))).toList();
        } catch (Failed failed) {
            throw failed.error();
        }
    }

    private static Map<String, Object> fields(Object item) {
        var fields = new LinkedHashMap<String, Object>();
        if (item instanceof Map<?, ?> members) {
            members.forEach((name, value) -> fields.put(String.valueOf(name), value));
        }
        return fields;
    }

    private static <T> BatchItem<T> end(
            int item, Response answer, BiFunction<Integer, Response, T> read) {
        try {
            return new BatchItem<>(read.apply(item, answer), null);
        } catch (OncegateException failed) {
            return new BatchItem<>(null, failed);
        }
    }
}
