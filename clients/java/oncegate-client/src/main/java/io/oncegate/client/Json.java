package io.oncegate.client;

import java.util.List;
import java.util.Map;

/**
 * Writes JSON values: maps, lists, strings, numbers, booleans, null, and {@link JsonText}
 * unchanged.
 */
final class Json {
    private static final int LEVELS_MAX = 512;

    private Json() {}

    static String write(Object value) {
        var out = new StringBuilder();
        write(value, 0, out);
        return out.toString();
    }

    private static void write(Object value, int depth, StringBuilder out) {
        if (depth > LEVELS_MAX) {
            throw new IllegalArgumentException("nested deeper than " + LEVELS_MAX + " levels");
        }
        if (value == null || value instanceof Boolean) {
            out.append(value);
        } else if (value instanceof String text) {
            writeText(text, out);
        } else if (value instanceof JsonText json) {
            out.append(json.text());
        } else if (value instanceof Number number) {
            if (!Double.isFinite(number.doubleValue())) {
                throw new IllegalArgumentException(number + " is not JSON");
            }
            out.append(number);
        } else if (value instanceof List<?> items) {
            char separator = '[';
            for (Object item : items) {
                out.append(separator);
                write(item, depth + 1, out);
                separator = ',';
            }
            out.append(items.isEmpty() ? "[]" : "]");
        } else if (value instanceof Map<?, ?> members) {
            char separator = '{';
            for (var member : members.entrySet()) {
                if (!(member.getKey() instanceof String name)) {
                    throw new IllegalArgumentException("a member name is not text");
                }
                out.append(separator);
                writeText(name, out);
                out.append(':');
                write(member.getValue(), depth + 1, out);
                separator = ',';
            }
            out.append(members.isEmpty() ? "{}" : "}");
        } else {
            throw new IllegalArgumentException(
                    value.getClass().getName()
                            + " is not JSON; return maps, lists, strings and numbers, or set a"
                            + " resultWriter");
        }
    }

    /**
     * Writes a text as RFC 8785 does. A lone surrogate is escaped, so that no encoder replaces it
     * silently.
     */
    static void writeText(String text, StringBuilder out) {
        out.append('"');
        for (int at = 0; at < text.length(); at++) {
            char unit = text.charAt(at);
            int shortForm = "\b\t\n\f\r\"\\".indexOf(unit);
            if (shortForm >= 0) {
                out.append('\\').append("btnfr\"\\".charAt(shortForm));
            } else if (unit < 0x20 || isLone(text, at)) {
                out.append(String.format("\\u%04x", (int) unit));
            } else {
                out.append(unit);
            }
        }
        out.append('"');
    }

    /** Returns true if half of a surrogate pair stands at this position. */
    static boolean isLone(String text, int at) {
        char unit = text.charAt(at);
        if (Character.isHighSurrogate(unit)) {
            return at + 1 == text.length() || !Character.isLowSurrogate(text.charAt(at + 1));
        }
        return Character.isLowSurrogate(unit)
                && (at == 0 || !Character.isHighSurrogate(text.charAt(at - 1)));
    }

    /**
     * Reads JSON text with nothing lost: numbers are {@link java.math.BigDecimal}, and a key that
     * occurs twice is refused.
     *
     * @throws IllegalArgumentException if it is not JSON
     */
    static Object read(String text) {
        return new JsonReader(text).document();
    }
}
