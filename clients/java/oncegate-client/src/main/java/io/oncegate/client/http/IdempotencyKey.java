package io.oncegate.client.http;

import java.util.List;

/** The key of a request: a bare text, or the same text as a string of structured fields. */
final class IdempotencyKey {
    static final String NAME = "Idempotency-Key";

    private static final int LENGTH_MAX = 255;
    private static final String ADVICE =
            "; send a fresh random value for each operation, such as a UUID";

    private IdempotencyKey() {}

    /**
     * Returns the key in these lines; null without a line.
     *
     * @throws Problem.Refused if it cannot be used
     */
    static String of(List<String> lines) {
        if (lines.isEmpty()) {
            return null;
        }
        if (lines.size() > 1) {
            throw invalid(NAME + " came twice; send one field with one key.");
        }
        String text = trimmed(lines.get(0));
        String key = text.startsWith("\"") ? unquoted(text) : text;
        if (key.isEmpty() || key.length() > LENGTH_MAX) {
            throw invalid(NAME + " is empty or longer than 255 characters" + ADVICE + ".");
        }
        if (!key.chars().allMatch(unit -> unit >= '!' && unit <= '~')) {
            throw invalid(NAME + " may have visible ASCII characters only" + ADVICE + ".");
        }
        return key;
    }

    /** Removes ASCII white space only: a non-breaking space is a wrong character of the key. */
    private static String trimmed(String line) {
        int begin = 0;
        int end = line.length();
        while (begin < end && " \t\r\n\f".indexOf(line.charAt(begin)) >= 0) {
            begin++;
        }
        while (end > begin && " \t\r\n\f".indexOf(line.charAt(end - 1)) >= 0) {
            end--;
        }
        return line.substring(begin, end);
    }

    private static String unquoted(String text) {
        var key = new StringBuilder();
        for (int at = 1; at < text.length(); at++) {
            char unit = text.charAt(at);
            if (unit == '"') {
                String rest = trimmed(text.substring(at + 1));
                if (rest.isEmpty()) {
                    return key.toString();
                }
                throw rest.startsWith(";")
                        ? invalid(NAME + " has parameters after the string; send the string alone.")
                        : wrong();
            }
            if (unit == '\\') {
                at++;
                if (at == text.length() || "\"\\".indexOf(text.charAt(at)) < 0) {
                    throw wrong();
                }
            }
            key.append(text.charAt(at));
        }
        throw wrong();
    }

    private static Problem.Refused wrong() {
        return invalid(
                NAME
                        + " begins with a quote, and is not a string of structured fields: close"
                        + " it, and escape quotes by a backslash.");
    }

    static Problem.Refused invalid(String detail) {
        return new Problem.Refused(Problem.of(400, "idempotency_key_invalid", detail));
    }
}
