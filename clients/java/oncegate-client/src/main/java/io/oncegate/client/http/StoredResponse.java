package io.oncegate.client.http;

import io.oncegate.client.JsonText;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * The stored form of a response: the same as the proxy's, so that a service can change its
 * language.
 *
 * @param at seconds since the epoch at which it was complete
 * @param fields names in lower case; names of trailers begin with a colon
 * @param body null in a tombstone: what is left of a response that was not stored
 */
record StoredResponse(int status, long at, List<Field> fields, byte[] body) {
    private static final int VERSION = 1;

    /** Of the fields of a head, of those of trailers, and of a field of a tombstone. */
    private static final int FIELDS_BYTES_MAX = 32 * 1024;

    /** The default of the gateway's {@code limits.result_bytes}. */
    private static final int BYTES_MAX = 64 * 1024;

    private static final Set<String> TOMBSTONE_FIELDS = Set.of("location", "etag");
    private static final String TRAILER = ":";

    static StoredResponse of(
            int status, long at, List<Field> fields, List<Field> trailers, byte[] body) {
        List<Field> all = new ArrayList<>(fields);
        trailers.forEach(field -> all.add(new Field(TRAILER + field.name(), field.value())));
        var stored = new StoredResponse(status, at, List.copyOf(all), body);
        boolean fits =
                bytes(fields) <= FIELDS_BYTES_MAX
                        && bytes(trailers) <= FIELDS_BYTES_MAX
                        && stored.json().text().getBytes(StandardCharsets.UTF_8).length
                                <= BYTES_MAX;
        return fits ? stored : stored.tombstone();
    }

    private static int bytes(List<Field> fields) {
        return fields.stream()
                .mapToInt(field -> field.name().length() + field.value().length())
                .sum();
    }

    /** Returns the tombstone of a response that is not stored. */
    StoredResponse tombstone() {
        List<Field> kept =
                fields.stream()
                        .filter(field -> TOMBSTONE_FIELDS.contains(field.name()))
                        .filter(field -> field.value().length() <= FIELDS_BYTES_MAX)
                        .toList();
        return new StoredResponse(status, at, kept, null);
    }

    JsonText json() {
        Map<String, Object> members = new LinkedHashMap<>();
        members.put("v", VERSION);
        members.put("status", status);
        members.put("at", at);
        members.put(
                "fields",
                fields.stream().map(field -> List.of(field.name(), field.value())).toList());
        if (body != null) {
            members.put("body", Base64.getEncoder().encodeToString(body));
        }
        return JsonText.of(members);
    }

    /** Reads the stored form; null if it is none, or of another version. */
    static StoredResponse read(JsonText json) {
        if (json == null
                || !(json.value() instanceof Map<?, ?> members)
                || !(members.get("v") instanceof Number version)
                || version.intValue() != VERSION
                || !(members.get("status") instanceof Number status)
                || !(members.get("at") instanceof Number at)
                || !(members.get("fields") instanceof List<?> lines)) {
            return null;
        }
        List<Field> fields = new ArrayList<>();
        for (Object line : lines) {
            if (line instanceof List<?> pair
                    && pair.size() == 2
                    && pair.get(0) instanceof String name
                    && pair.get(1) instanceof String value) {
                fields.add(new Field(name, value));
            }
        }
        byte[] body = members.get("body") instanceof String text ? decoded(text) : null;
        return new StoredResponse(status.intValue(), at.longValue(), fields, body);
    }

    private static byte[] decoded(String text) {
        try {
            return Base64.getDecoder().decode(text);
        } catch (IllegalArgumentException torn) {
            return null;
        }
    }

    /** Returns the answer to a repeat. Its fields are filtered again: what is stored may change. */
    Reply replay(long now, Set<String> with, Set<String> without) {
        List<Field> head = new ArrayList<>();
        List<Field> trailers = new ArrayList<>();
        for (Field field : fields) {
            if (field.name().startsWith(TRAILER)) {
                trailers.add(new Field(field.name().substring(1), field.value()));
            } else {
                head.add(field);
            }
        }
        long earlier =
                head.stream()
                        .filter(field -> field.name().equals("age"))
                        .mapToLong(StoredResponse::seconds)
                        .findFirst()
                        .orElse(0);
        List<Field> replayed = new ArrayList<>(Fields.stored(head, with, without));
        replayed.removeIf(field -> field.name().equals("age"));
        replayed.add(new Field("Idempotent-Replayed", "true"));
        replayed.add(new Field("Age", Long.toString(Math.max(0, now - at) + earlier)));
        return new Reply(status, replayed, body, Fields.stored(trailers, with, without));
    }

    private static long seconds(Field field) {
        return field.value().matches("[0-9]{1,9}") ? Long.parseLong(field.value()) : 0;
    }
}
