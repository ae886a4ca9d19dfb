package io.oncegate.client;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * An outcome to report, as JSON text that the clients of all languages read. It holds the attempt:
 * keep it like a secret.
 */
record Report(
        String globalId,
        String attempt,
        String outcome,
        String operation,
        JsonText contents,
        JsonText result,
        String gateway) {
    private static final List<String> OUTCOMES = List.of("success", "failure", "unknown");

    static Report parse(String text) {
        Object value;
        try {
            value = Json.read(text);
        } catch (IllegalArgumentException malformed) {
            throw new IllegalArgumentException(
                    "Not a report of a client: " + malformed.getMessage(), malformed);
        }
        if (!(value instanceof Map<?, ?> fields)
                || !(fields.get("global_id") instanceof String id)
                || !id.matches("[0-9a-f]{32}")
                || !(fields.get("attempt") instanceof String attempt)
                || !(fields.get("outcome") instanceof String outcome)
                || !OUTCOMES.contains(outcome)) {
            throw new IllegalArgumentException(
                    "Not a report of a client: it needs global_id, attempt and outcome; pass"
                            + " NotSettled.report() as it was");
        }
        String operation = fields.get("operation") instanceof String name ? name : null;
        String gateway = fields.get("gateway") instanceof String url ? url : null;
        return new Report(
                id,
                attempt,
                outcome,
                operation,
                json(fields, "contents"),
                json(fields, "result"),
                gateway);
    }

    private static JsonText json(Map<?, ?> fields, String name) {
        return fields.get(name) == null ? null : new JsonText(Json.write(fields.get(name)));
    }

    Report withResult(JsonText result) {
        return new Report(globalId, attempt, outcome, operation, contents, result, gateway);
    }

    /** Returns the text to keep. */
    String text() {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("global_id", globalId);
        fields.putAll(body());
        if (gateway != null) {
            fields.put("gateway", gateway);
        }
        return Json.write(fields);
    }

    /**
     * Returns the members of the outcome call. Operation and contents matter if the outcome is
     * late: its record then has their terms.
     */
    Map<String, Object> body() {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("attempt", attempt);
        fields.put("outcome", outcome);
        fields.put("operation", operation);
        fields.put("contents", contents);
        fields.put("result", result);
        fields.values().removeIf(value -> value == null);
        return fields;
    }

    Call call() {
        return Call.post("/v1/claims/" + globalId + "/outcome", Json.write(body()), subject());
    }

    Subject subject() {
        return new Subject(operation, globalId);
    }
}
