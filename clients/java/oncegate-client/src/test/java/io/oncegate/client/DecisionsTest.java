package io.oncegate.client;

import static io.oncegate.client.Vectors.list;
import static io.oncegate.client.Vectors.number;
import static io.oncegate.client.Vectors.object;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.DynamicTest.dynamicTest;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;

/** The decision of a consumer for each end of a run: the same in every language. */
class DecisionsTest {
    @TestFactory
    Stream<DynamicTest> decisions() {
        var vectors = list(Vectors.load("clients/vectors/decisions.json").get("decisions"));
        return vectors.stream()
                .map(each -> dynamicTest(each.toString(), () -> check(object(each))));
    }

    private static void check(Map<String, Object> vector) {
        var end = object(vector.get("end"));
        int failures = (int) number(vector.get("failures"), 0);
        boolean kept = Boolean.TRUE.equals(vector.get("report_is_kept"));
        Decision decision =
                end.containsKey("error")
                        ? Decision.of(error(end), failures, 3, kept)
                        : Decision.of(result(end));
        assertEquals(vector.get("decision"), decision.kind().name().toLowerCase(Locale.ROOT));
        if (vector.containsKey("delay_ms")) {
            Object delay = vector.get("delay_ms");
            assertEquals(
                    delay == null ? null : Duration.ofMillis(number(delay, 0)), decision.delay());
        }
    }

    private static Result<?> result(Map<String, Object> end) {
        if (end.containsKey("done")) {
            var done = object(end.get("done"));
            return new Done<>(
                    null,
                    (String) done.get("state"),
                    null,
                    (Boolean) done.get("late"),
                    null,
                    null,
                    null);
        }
        if (end.containsKey("mismatch")) {
            return new Mismatch<>((String) object(end.get("mismatch")).get("code"), null);
        }
        var duplicate = object(end.get("duplicate"));
        return new Duplicate<>(
                new Response(409, duplicate, 0, 0, null), null, PlainResults::read, null, false);
    }

    private static Exception error(Map<String, Object> end) {
        var fields = new LinkedHashMap<>(end);
        fields.putIfAbsent("code", "of_the_case");
        int status = (int) number(end.get("status"), 0);
        var answer = new Response(status, fields, 0, 0, null);
        return switch ((String) end.get("error")) {
            case "not_canonical" -> new NotCanonical("float", "$", "by the case");
            case "contents_not_derived" ->
                    new ContentsNotDerived(new IllegalStateException("by the case"));
            case "rejected" -> new Rejected(answer);
            case "unavailable" -> new Unavailable(List.of(), false);
            case "nothing_happened" -> new NothingHappened("by the case");
            case "outcome_refused" -> new OutcomeRefused((String) end.get("code"), null);
            case "not_settled" -> new NotSettled("{}", null, new Unavailable(List.of(), false));
            default -> new Ends.WorkFailed();
        };
    }
}
