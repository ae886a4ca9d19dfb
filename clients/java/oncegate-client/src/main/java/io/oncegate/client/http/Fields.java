package io.oncegate.client.http;

import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;

/** Names of fields that are stored with a response, and of fields that the middleware owns. */
final class Fields {
    static final String OUTCOME = "oncegate-outcome";
    static final String REPLAYED = "idempotent-replayed";
    static final String DEGRADED = "oncegate-degraded";

    private static final Set<String> HOP_BY_HOP =
            Set.of(
                    "connection",
                    "keep-alive",
                    "proxy-connection",
                    "proxy-authenticate",
                    "proxy-authorization",
                    "te",
                    "trailer",
                    "transfer-encoding",
                    "upgrade");

    /** They belong to one caller, or each response gets its own. */
    private static final Set<String> NEVER_STORED =
            Set.of("set-cookie", "set-cookie2", "www-authenticate", "content-length", "date");

    /** Fields that the handler must not see: a replay must fit every caller. */
    private static final Set<String> HIDDEN = Set.of("accept-encoding", "range", "if-range");

    private Fields() {}

    static String lower(String name) {
        return name.toLowerCase(Locale.ROOT);
    }

    /** Returns true for a field that only the gateway and the middleware send. */
    static boolean isOwn(String name) {
        String lower = lower(name);
        return lower.startsWith("oncegate-")
                || lower.startsWith("oncegate_")
                || lower.equals(REPLAYED);
    }

    static boolean isHidden(String name) {
        return HIDDEN.contains(lower(name));
    }

    /** Returns the reason why a field can never be stored; null if it can. */
    static String notStorable(String name) {
        String lower = lower(name);
        if (HOP_BY_HOP.contains(lower) || lower.startsWith("proxy-")) {
            return "which concerns a single connection";
        }
        if (lower.equals("content-length") || lower.equals("date")) {
            return "which is new in each replay";
        }
        return isOwn(name) ? "which only the gateway and the middleware use" : null;
    }

    /** Returns the fields of these that are stored and replayed. */
    static List<Field> stored(List<Field> fields, Set<String> with, Set<String> without) {
        Set<String> named = new HashSet<>();
        for (Field field : fields) {
            if (lower(field.name()).equals("connection")) {
                Arrays.stream(field.value().split(","))
                        .forEach(name -> named.add(lower(name.strip())));
            }
        }
        return fields.stream()
                .map(field -> new Field(lower(field.name()), field.value()))
                .filter(field -> isStored(field.name(), with, without))
                .filter(field -> !named.contains(field.name()))
                .toList();
    }

    private static boolean isStored(String name, Set<String> with, Set<String> without) {
        boolean isDefault =
                !NEVER_STORED.contains(name)
                        && !HOP_BY_HOP.contains(name)
                        && !name.startsWith("proxy-")
                        && !isOwn(name);
        return (isDefault || with.contains(name)) && !without.contains(name);
    }

    /** Returns true if a list of directives, such as {@code Cache-Control}, has this one. */
    static boolean hasDirective(List<Field> fields, String name, String directive) {
        return fields.stream()
                .filter(field -> field.name().equalsIgnoreCase(name))
                .flatMap(field -> Arrays.stream(field.value().split(",")))
                .anyMatch(item -> item.split("=", 2)[0].strip().equalsIgnoreCase(directive));
    }
}
