package io.oncegate.client;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.math.BigDecimal;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Reads the vectors that all clients share, and compares JSON values. */
final class Vectors {
    private Vectors() {}

    static Path root() {
        return Path.of(System.getProperty("oncegate.root"));
    }

    static Map<String, Object> load(String path) {
        try {
            return object(Json.read(Files.readString(root().resolve(path))));
        } catch (IOException unreadable) {
            throw new UncheckedIOException(unreadable);
        }
    }

    @SuppressWarnings("unchecked") // The reader makes only such maps.
    static Map<String, Object> object(Object value) {
        return value == null ? Map.of() : (Map<String, Object>) value;
    }

    @SuppressWarnings("unchecked") // The reader makes only such lists.
    static List<Object> list(Object value) {
        return value == null ? List.of() : (List<Object>) value;
    }

    static String text(Object value, String otherwise) {
        return value == null ? otherwise : (String) value;
    }

    static long number(Object value, long otherwise) {
        return value == null ? otherwise : ((Number) value).longValue();
    }

    /**
     * Returns one object with the members of both; the members of `body` and `headers` are replaced
     * one by one.
     */
    static Map<String, Object> merged(Map<String, Object> base, Map<String, Object> more) {
        var merged = new LinkedHashMap<>(base);
        more.forEach(
                (name, value) -> {
                    boolean deep =
                            (name.equals("body") || name.equals("headers"))
                                    && merged.get(name) instanceof Map;
                    if (deep) {
                        var members = new LinkedHashMap<>(object(merged.get(name)));
                        members.putAll(object(value));
                        merged.put(name, members);
                    } else {
                        merged.put(name, value);
                    }
                });
        merged.remove("use");
        return merged;
    }

    static boolean equal(Object one, Object other) {
        if (one instanceof Number && other instanceof Number) {
            return new BigDecimal(one.toString()).compareTo(new BigDecimal(other.toString())) == 0;
        }
        if (one instanceof Map<?, ?> left && other instanceof Map<?, ?> right) {
            return left.keySet().equals(right.keySet())
                    && left.keySet().stream()
                            .allMatch(name -> equal(left.get(name), right.get(name)));
        }
        if (one instanceof List<?> left && other instanceof List<?> right) {
            boolean same = left.size() == right.size();
            for (int at = 0; same && at < left.size(); at++) {
                same = equal(left.get(at), right.get(at));
            }
            return same;
        }
        return one == null ? other == null : one.equals(other);
    }

    /** Returns what is expected and not there: the members named must be equal. */
    static List<String> missing(Map<String, Object> expected, Map<String, Object> actual) {
        List<String> missing = new ArrayList<>();
        expected.forEach(
                (name, value) -> {
                    if (!equal(value, actual.get(name))) {
                        missing.add(name + " is " + actual.get(name) + ", not " + value);
                    }
                });
        return missing;
    }
}
