package io.oncegate.vectors;

import io.oncegate.client.JsonText;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** Reads the steps of a request, and the values in them. */
final class Steps {
    /** The media type that the framework compresses; others stay as they are. */
    static final String ZIPPED = "application/x-rows";

    private Steps() {}

    static List<Map<?, ?>> of(String field) {
        List<Map<?, ?>> steps = new ArrayList<>();
        if (field != null) {
            for (Object step : (List<?>) new JsonText(field).value()) {
                steps.add((Map<?, ?>) step);
            }
        }
        return steps;
    }

    static int number(Map<?, ?> step, String name, int otherwise) {
        return step.get(name) instanceof Number number ? number.intValue() : otherwise;
    }

    static boolean flag(Map<?, ?> step, String name) {
        return Boolean.TRUE.equals(step.get(name));
    }

    /** Returns the pairs of names and values. */
    static List<Map.Entry<String, String>> headers(Map<?, ?> step) {
        List<Map.Entry<String, String>> headers = new ArrayList<>();
        if (step.get("headers") instanceof List<?> lines) {
            for (Object line : lines) {
                List<?> pair = (List<?>) line;
                headers.add(Map.entry((String) pair.get(0), text(pair.get(1))));
            }
        }
        return headers;
    }

    /** Returns the text of a body; null for none. */
    static String body(Map<?, ?> step) {
        return text(step.get("body"));
    }

    /** Returns a text, or one that is repeated. */
    static String text(Object given) {
        if (given instanceof Map<?, ?> repeated) {
            List<?> both = (List<?>) repeated.get("repeat");
            return ((String) both.get(0)).repeat(((Number) both.get(1)).intValue());
        }
        return (String) given;
    }

    /** Returns a row of a stream. */
    static String row(Map<?, ?> stream, int number) {
        String row = stream.get("row") instanceof String text ? text : "row {}\n";
        return row.replace("{}", Integer.toString(number)) + "x".repeat(number(stream, "pad", 0));
    }

    /** Returns the length of all rows. */
    static int length(Map<?, ?> stream) {
        int length = 0;
        for (int at = 0; at < number(stream, "rows", 0); at++) {
            length += row(stream, at).length();
        }
        return length;
    }

    static void sleep(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }
}
