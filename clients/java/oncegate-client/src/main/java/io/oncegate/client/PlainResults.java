package io.oncegate.client;

import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
import java.math.BigDecimal;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Reads the results that the default writer writes. */
final class PlainResults {
    private PlainResults() {}

    /** Reads a stored result as this type. */
    static Object read(JsonText stored, Type type) {
        return as(stored.value(), type instanceof ParameterizedType of ? of.getRawType() : type);
    }

    /** Returns numbers as Java's literals are: int, else long, else a decimal. */
    static Object plain(Object value) {
        if (value instanceof BigDecimal number) {
            return integer(number);
        }
        if (value instanceof List<?> items) {
            return items.stream().map(PlainResults::plain).toList();
        }
        if (value instanceof Map<?, ?> members) {
            var plain = new LinkedHashMap<Object, Object>();
            members.forEach((name, member) -> plain.put(name, plain(member)));
            return plain;
        }
        return value;
    }

    private static Number integer(BigDecimal number) {
        if (number.stripTrailingZeros().scale() > 0 || number.precision() > 18) {
            return number;
        }
        long value = number.longValue();
        if (value == (int) value) {
            return (int) value;
        }
        return value;
    }

    private static Object as(Object value, Type type) {
        if (value == null || type == void.class || type == Void.class) {
            return null;
        }
        if (value instanceof BigDecimal number) {
            if (type == Integer.class || type == int.class) {
                return number.intValueExact();
            }
            if (type == Long.class || type == long.class) {
                return number.longValueExact();
            }
            if (type == Double.class || type == double.class) {
                return number.doubleValue();
            }
            if (type == BigDecimal.class) {
                return number;
            }
        }
        if (type == boolean.class && value instanceof Boolean) {
            return value;
        }
        Object plain = plain(value);
        if (type instanceof Class<?> wanted && wanted.isInstance(plain)) {
            return plain;
        }
        throw new IllegalArgumentException(
                "The stored result cannot be read as "
                        + type.getTypeName()
                        + "; set Options.resultReader beside resultWriter");
    }
}
