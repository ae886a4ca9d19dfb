package io.oncegate.client;

import static io.oncegate.client.Vectors.list;
import static io.oncegate.client.Vectors.object;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;

/** Typed contents of the vectors as values of Java. */
final class Typed {
    private Typed() {}

    /** A value that Java does not have: there is no BigDecimal that is not a number. */
    static final class NotInJava extends RuntimeException {
        NotInJava(String why) {
            super(why);
        }
    }

    private record Derived(String orderId) {}

    static Object value(Object json) {
        if (json instanceof Map<?, ?> members) {
            var first = members.isEmpty() ? "" : (String) members.keySet().iterator().next();
            if (members.size() == 1 && first.startsWith("$")) {
                return typed(first, members.get(first));
            }
            var values = new LinkedHashMap<String, Object>();
            object(json).forEach((name, member) -> values.put(name, value(member)));
            return values;
        }
        if (json instanceof List<?>) {
            var values = new ArrayList<Object>();
            list(json).forEach(item -> values.add(value(item)));
            return values;
        }
        return json instanceof BigDecimal number ? (Object) number.intValueExact() : json;
    }

    private static Object typed(String type, Object value) {
        return switch (type) {
            case "$int" -> integer(new BigInteger((String) value));
            case "$decimal" -> decimal((String) value);
            case "$float" -> Double.parseDouble((String) value);
            case "$instant" -> OffsetDateTime.parse((String) value);
            case "$local" -> LocalDateTime.parse((String) value);
            case "$date" -> LocalDate.parse((String) value);
            case "$uuid" -> UUID.fromString((String) value);
            case "$json" -> new JsonText((String) value);
            case "$utf16" -> units((String) value);
            case "$bytes" -> HexFormat.of().parseHex((String) value);
            case "$set" -> new HashSet<>(list(value));
            case "$object" -> new Derived("A-1001");
            case "$int_key" -> Map.of(Integer.parseInt((String) value), "x");
            default -> throw new AssertionError("no type of the vectors: " + type);
        };
    }

    private static Object integer(BigInteger value) {
        return value.bitLength() < 32
                ? (Object) value.intValue()
                : value.bitLength() < 64 ? (Object) value.longValue() : value;
    }

    private static BigDecimal decimal(String text) {
        try {
            return new BigDecimal(text);
        } catch (NumberFormatException none) {
            throw new NotInJava("no BigDecimal is " + text);
        }
    }

    private static String units(String hex) {
        var text = new StringBuilder();
        for (int at = 0; at < hex.length(); at += 4) {
            text.append((char) Integer.parseInt(hex.substring(at, at + 4), 16));
        }
        return text.toString();
    }
}
