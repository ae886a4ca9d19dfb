package io.oncegate.client;

import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;

/** Reads one JSON text strictly. */
final class JsonReader {
    private static final int LEVELS_MAX = 512;

    /**
     * Longer numbers are refused: to convert them takes time that grows with the square of their
     * length.
     */
    private static final int NUMBER_MAX = 400;

    private static final Pattern NUMBER =
            Pattern.compile("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]{1,6})?");

    private final String text;
    private int at;

    JsonReader(String text) {
        this.text = text;
    }

    Object document() {
        Object value = value(0);
        skipSpace();
        if (at < text.length()) {
            throw wrong();
        }
        return value;
    }

    private Object value(int depth) {
        skipSpace();
        if (depth > LEVELS_MAX || at == text.length()) {
            throw wrong();
        }
        return switch (text.charAt(at)) {
            case '{' -> object(depth);
            case '[' -> array(depth);
            case '"' -> string();
            case 't' -> literal("true", true);
            case 'f' -> literal("false", false);
            case 'n' -> literal("null", null);
            default -> number();
        };
    }

    private Map<String, Object> object(int depth) {
        var members = new LinkedHashMap<String, Object>();
        at++;
        for (boolean more = !isNext('}'); more; more = isSeparator('}')) {
            skipSpace();
            String key = string();
            if (!isNext(':')) {
                throw wrong();
            }
            if (members.containsKey(key)) {
                throw new IllegalArgumentException("a key occurs twice in its object");
            }
            members.put(key, value(depth + 1));
        }
        return members;
    }

    private List<Object> array(int depth) {
        var items = new ArrayList<>();
        at++;
        for (boolean more = !isNext(']'); more; more = isSeparator(']')) {
            items.add(value(depth + 1));
        }
        return items;
    }

    private String string() {
        if (!isNext('"')) {
            throw wrong();
        }
        var out = new StringBuilder();
        while (at < text.length() && text.charAt(at) != '"') {
            char unit = text.charAt(at++);
            if (unit < 0x20) {
                throw wrong();
            }
            out.append(unit == '\\' ? escaped() : unit);
        }
        if (at++ >= text.length()) {
            throw wrong();
        }
        return out.toString();
    }

    private char escaped() {
        int known = at < text.length() ? "\"\\/bfnrt".indexOf(text.charAt(at)) : -1;
        if (known >= 0) {
            at++;
            return "\"\\/\b\f\n\r\t".charAt(known);
        }
        if (at + 5 > text.length() || !text.substring(at, at + 5).matches("u[0-9a-fA-F]{4}")) {
            throw wrong();
        }
        at += 5;
        return (char) Integer.parseInt(text.substring(at - 4, at), 16);
    }

    private BigDecimal number() {
        int begin = at;
        while (at < text.length() && "+-.0123456789eE".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        String literal = text.substring(begin, at);
        if (literal.length() > NUMBER_MAX || !NUMBER.matcher(literal).matches()) {
            throw wrong();
        }
        return new BigDecimal(literal);
    }

    private Object literal(String word, Object value) {
        if (!text.startsWith(word, at)) {
            throw wrong();
        }
        at += word.length();
        return value;
    }

    private boolean isSeparator(char close) {
        if (isNext(close)) {
            return false;
        }
        if (!isNext(',')) {
            throw wrong();
        }
        return true;
    }

    private boolean isNext(char wanted) {
        skipSpace();
        boolean is = at < text.length() && text.charAt(at) == wanted;
        at += is ? 1 : 0;
        return is;
    }

    private void skipSpace() {
        while (at < text.length() && " \t\n\r".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private IllegalArgumentException wrong() {
        return new IllegalArgumentException("not JSON at character " + at);
    }
}
