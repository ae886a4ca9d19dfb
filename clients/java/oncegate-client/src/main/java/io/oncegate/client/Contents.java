package io.oncegate.client;

import java.lang.reflect.RecordComponent;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.stream.Collectors;

/** Contents in canonical form (RFC 8785), the same in every language, and global IDs. */
public final class Contents {
    private static final int DEPTH_MAX = 32;
    private static final int DECIMAL_MAX = 128;
    private static final int INTEGER_BITS = 53;
    private static final DateTimeFormatter SECONDS =
            DateTimeFormatter.ofPattern("uuuu-MM-dd'T'HH:mm:ss");

    private Contents() {}

    /**
     * Returns the canonical form.
     *
     * @throws NotCanonical if others could read something else, or if there is no value in it
     */
    public static String canonical(Object contents) {
        String text = fingerprint(contents);
        Object value = contents instanceof JsonText json ? Json.read(json.text()) : contents;
        if (!holdsValue(value)) {
            throw new NotCanonical(
                    "empty",
                    "$",
                    "contents hold no value, only null, \"\", {} or []: one unset variable would"
                            + " make every operation the same");
        }
        return text;
    }

    /** Returns the canonical form of a fingerprint, which may be without a value. */
    static String fingerprint(Object value) {
        var out = new StringBuilder();
        write(value, 0, "$", out);
        return out.toString();
    }

    /**
     * Returns MD5 of app key, operation and canonical contents, in hex: the same operation, the
     * same ID, in every language.
     */
    public static String globalId(String app, String operation, Object contents) {
        return id(app, operation, canonical(contents));
    }

    static String id(String app, String operation, String canonical) {
        byte[] named = (app + "\n" + operation + "\n" + canonical).getBytes(StandardCharsets.UTF_8);
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("MD5").digest(named));
        } catch (NoSuchAlgorithmException absent) {
            throw new IllegalStateException("Every JDK has MD5", absent);
        }
    }

    /** Returns true if there is a number, a boolean, or a text with a character in it. */
    private static boolean holdsValue(Object value) {
        if (value instanceof Map<?, ?> members) {
            return members.values().stream().anyMatch(Contents::holdsValue);
        }
        if (value instanceof List<?> items) {
            return items.stream().anyMatch(Contents::holdsValue);
        }
        if (value instanceof Record record) {
            return members(record, "$").values().stream().anyMatch(Contents::holdsValue);
        }
        return value != null && !value.equals("");
    }

    private static void write(Object value, int depth, String path, StringBuilder out) {
        if (value == null || value instanceof Boolean) {
            out.append(value);
        } else if (value instanceof String text) {
            writeText(text, path, out);
        } else if (value instanceof JsonText json) {
            writeJson(json.text(), depth, path, out);
        } else if (value instanceof Number number) {
            out.append(number(number, path));
        } else if (value instanceof List<?> items) {
            writeItems(items, depth, path, out);
        } else if (value instanceof Map<?, ?> members) {
            writeMembers(members, depth, path, out);
        } else if (value instanceof Record record) {
            writeMembers(members(record, path), depth, path, out);
        } else {
            out.append('"').append(text(value, path)).append('"');
        }
    }

    private static void writeJson(String text, int depth, String path, StringBuilder out) {
        Object value;
        try {
            value = Json.read(text);
        } catch (IllegalArgumentException malformed) {
            throw new NotCanonical("not_json", path, malformed.getMessage());
        }
        write(numbered(value), depth, path, out);
    }

    /** Marks the numbers of JSON text, which stay numbers, unlike a decimal of the caller. */
    private static Object numbered(Object value) {
        if (value instanceof BigDecimal number) {
            return new JsonNumber(number);
        }
        if (value instanceof List<?> items) {
            return items.stream().map(Contents::numbered).collect(Collectors.toList());
        }
        if (value instanceof Map<?, ?> members) {
            var numbered = new TreeMap<String, Object>();
            members.forEach((name, member) -> numbered.put((String) name, numbered(member)));
            return numbered;
        }
        return value;
    }

    private static final class JsonNumber extends Number {
        private final transient BigDecimal value;

        JsonNumber(BigDecimal value) {
            this.value = value;
        }

        @Override
        public int intValue() {
            return value.intValue();
        }

        @Override
        public long longValue() {
            return value.longValue();
        }

        @Override
        public float floatValue() {
            return value.floatValue();
        }

        @Override
        public double doubleValue() {
            return value.doubleValue();
        }
    }

    private static void writeItems(List<?> items, int depth, String path, StringBuilder out) {
        checkDepth(depth, path);
        out.append('[');
        int at = 0;
        for (Object item : items) {
            out.append(at == 0 ? "" : ",");
            write(item, depth + 1, path + "[" + at++ + "]", out);
        }
        out.append(']');
    }

    private static void writeMembers(Map<?, ?> members, int depth, String path, StringBuilder out) {
        checkDepth(depth, path);
        // By UTF-16 code units, as the RFC says, and as Java compares strings.
        var sorted = new TreeMap<String, Object>();
        members.forEach(
                (name, member) -> {
                    if (!(name instanceof String text)) {
                        throw new NotCanonical(
                                "key_not_text",
                                path,
                                "a member name is not text; make it a String");
                    }
                    sorted.put(text, member);
                });
        out.append('{');
        boolean first = true;
        for (var member : sorted.entrySet()) {
            out.append(first ? "" : ",");
            first = false;
            writeText(member.getKey(), path, out);
            out.append(':');
            write(member.getValue(), depth + 1, step(path, member.getKey()), out);
        }
        out.append('}');
    }

    private static void checkDepth(int depth, String path) {
        if (depth == DEPTH_MAX) {
            throw new NotCanonical(
                    "too_deep",
                    path,
                    "nested deeper than " + DEPTH_MAX + " levels; send it as text");
        }
    }

    private static String step(String path, String name) {
        return name.matches("[A-Za-z0-9_]+") ? path + "." + name : path + "[\"" + name + "\"]";
    }

    private static Map<String, Object> members(Record record, String path) {
        var members = new TreeMap<String, Object>();
        for (RecordComponent component : record.getClass().getRecordComponents()) {
            Named named = component.getAnnotation(Named.class);
            if (named == null) {
                throw new NotCanonical(
                        "unsupported_type",
                        path,
                        "component "
                                + component.getName()
                                + " of "
                                + record.getClass().getName()
                                + " has no explicit name; write @Named(\"…\") on it, or pass a"
                                + " Map");
            }
            try {
                var accessor = component.getAccessor();
                accessor.setAccessible(true);
                members.put(named.value(), accessor.invoke(record));
            } catch (ReflectiveOperationException unreadable) {
                throw new NotCanonical(
                        "unsupported_type", path, "the record cannot be read: " + unreadable);
            }
        }
        return members;
    }

    private static void writeText(String text, String path, StringBuilder out) {
        for (int at = 0; at < text.length(); at++) {
            if (Json.isLone(text, at)) {
                throw new NotCanonical("surrogate", path, "a text holds half of a surrogate pair");
            }
        }
        Json.writeText(text, out);
    }

    private static String number(Number number, String path) {
        if (number instanceof JsonNumber json) {
            return Numbers.canonical(json.value, path);
        }
        if (number instanceof BigDecimal decimal) {
            return '"' + decimal(decimal, path) + '"';
        }
        if (number instanceof Double || number instanceof Float) {
            throw new NotCanonical(
                    "float",
                    path,
                    "binary floats are not written alike everywhere; send integer minor units, a"
                            + " BigDecimal, or text");
        }
        boolean isInteger =
                number instanceof Integer
                        || number instanceof Long
                        || number instanceof Short
                        || number instanceof Byte
                        || number instanceof BigInteger;
        if (!isInteger) {
            throw unsupported(number, path);
        }
        var integer = new BigInteger(number.toString());
        if (integer.abs().bitLength() > INTEGER_BITS) {
            throw new NotCanonical(
                    "integer_too_large", path, "an integer of 2^53 or more; send it as text");
        }
        return integer.toString();
    }

    private static String decimal(BigDecimal decimal, String path) {
        // The length is computed, since the text of 1E+1000000000 would take all memory.
        BigDecimal stripped = decimal.stripTrailingZeros();
        long digits = stripped.precision();
        long scale = stripped.scale();
        long point = scale > 0 ? 1 : 0;
        long length = scale <= 0 ? digits - scale : Math.max(digits, scale + 1) + point;
        if (stripped.signum() != 0 && length + (stripped.signum() < 0 ? 1 : 0) > DECIMAL_MAX) {
            throw new NotCanonical(
                    "too_long",
                    path,
                    "a decimal of more than " + DECIMAL_MAX + " characters; send it as text");
        }
        return stripped.signum() == 0 ? "0" : stripped.toPlainString();
    }

    private static String text(Object value, String path) {
        if (value instanceof Instant instant) {
            return instant(instant);
        }
        if (value instanceof OffsetDateTime time) {
            return instant(time.toInstant());
        }
        if (value instanceof ZonedDateTime time) {
            return instant(time.toInstant());
        }
        if (value instanceof LocalDateTime) {
            throw new NotCanonical(
                    "no_zone", path, "an instant without a zone; use Instant or OffsetDateTime");
        }
        if (value instanceof LocalDate || value instanceof UUID) {
            return value.toString();
        }
        throw unsupported(value, path);
    }

    private static String instant(Instant instant) {
        String seconds = SECONDS.format(instant.atOffset(ZoneOffset.UTC));
        if (instant.getNano() == 0) {
            return seconds + "Z";
        }
        String fraction = String.format("%09d", instant.getNano()).replaceAll("0+$", "");
        return seconds + "." + fraction + "Z";
    }

    private static NotCanonical unsupported(Object value, String path) {
        return new NotCanonical(
                "unsupported_type",
                path,
                value.getClass().getName()
                        + " has no canonical form; send text, integers, maps, lists, or records"
                        + " with @Named");
    }
}
