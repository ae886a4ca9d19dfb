package io.oncegate.client;

import static io.oncegate.client.Vectors.list;
import static io.oncegate.client.Vectors.merged;
import static io.oncegate.client.Vectors.number;
import static io.oncegate.client.Vectors.object;

import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;

/** The exchanges of one case: the expected requests in their order, and the answers to them. */
final class Script {
    private static final Map<String, Object> COMMON =
            Vectors.load("clients/vectors/behaviour/common.json");

    private final List<Map<String, Object>> exchanges = new ArrayList<>();
    private final Map<String, String> placeholders = new LinkedHashMap<>();
    private final List<String> failures = new ArrayList<>();
    private int read;
    private int answered;
    private long answeringAt = System.nanoTime();

    Script(List<Object> exchanges) {
        exchanges.forEach(exchange -> this.exchanges.add(object(exchange)));
    }

    static Map<String, Object> common(String name) {
        return object(COMMON.get(name));
    }

    static Object commonWork() {
        return COMMON.get("work");
    }

    static Map<String, Object> resolved(String kind, Object use) {
        if (use instanceof String name) {
            return object(object(COMMON.get(kind)).get(name));
        }
        var own = object(use);
        return own.containsKey("use") ? merged(resolved(kind, own.get("use")), own) : own;
    }

    synchronized void place(String name, String value) {
        placeholders.put(name, value);
    }

    /**
     * Takes the next exchange for a request, and notes what is wrong with the request. Returns the
     * answer, or null.
     */
    synchronized Object take(
            int at, String method, String path, Map<String, String> headers, String body) {
        if (read == exchanges.size()) {
            failures.add("one request more: " + method + " " + path + " " + body);
            return null;
        }
        Map<String, Object> exchange = exchanges.get(read++);
        String place = "exchange " + read + ": ";
        if (number(exchange.get("at"), 0) != at) {
            failures.add(place + "sent to gateway " + at);
        }
        long since = (System.nanoTime() - answeringAt) / 1_000_000;
        if (since < number(exchange.get("after_ms"), 0)) {
            failures.add(place + "sent after " + since + " ms");
        }
        var expected = resolved("requests", exchange.get("expect"));
        check(place, expected.get("method"), method);
        check(place, expected.get("path"), path);
        object(expected.get("headers"))
                .forEach(
                        (name, value) ->
                                check(place, value, headers.get(name.toLowerCase(Locale.ROOT))));
        if (expected.containsKey("body")) {
            var sent = new LinkedHashMap<>(object(Json.read(body)));
            sent.values().removeIf(value -> value == null);
            check(place, expected.get("body"), sent);
        }
        notifyAll();
        Object answer = exchange.get("answer");
        return answer instanceof String name && object(COMMON.get("answers")).get(name) == null
                ? name
                : resolved("answers", answer);
    }

    private void check(String place, Object expected, Object actual) {
        if (!matches(expected, actual)) {
            failures.add(place + "got " + actual + ", expected " + filled(expected));
        }
    }

    private boolean matches(Object expected, Object actual) {
        if (expected instanceof String name
                && name.startsWith("$")
                && actual instanceof String value) {
            if (name.equals("$rest")) {
                return Durations.parse("wait", value).toMillis() <= 20_000;
            }
            String known = placeholders.putIfAbsent(name, value);
            if (known == null && name.equals("$nonce")) {
                placeholders.put("$attempt_hash", hash("1792488615123456-" + value));
            }
            return known == null
                    ? placeholders.values().stream().filter(value::equals).count() == 1
                    : known.equals(value);
        }
        if (expected instanceof Map<?, ?> left && actual instanceof Map<?, ?> right) {
            return left.keySet().equals(right.keySet())
                    && left.keySet().stream()
                            .allMatch(name -> matches(left.get(name), right.get(name)));
        }
        if (expected instanceof List<?> left
                && actual instanceof List<?> right
                && left.size() == right.size()) {
            boolean same = true;
            for (int at = 0; same && at < left.size(); at++) {
                same = matches(left.get(at), right.get(at));
            }
            return same;
        }
        return Vectors.equal(filled(expected), actual);
    }

    private static String hash(String attempt) {
        try {
            byte[] digest = MessageDigest.getInstance("SHA-256").digest(attempt.getBytes());
            return HexFormat.of().formatHex(digest, 0, 4);
        } catch (NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    /** Returns the value with its placeholders replaced. */
    synchronized Object filled(Object value) {
        if (value instanceof String text) {
            String filled = text;
            for (var placeholder : placeholders.entrySet()) {
                filled = filled.replace(placeholder.getKey(), placeholder.getValue());
            }
            return filled;
        }
        if (value instanceof Map<?, ?> members) {
            var filled = new LinkedHashMap<String, Object>();
            members.forEach((name, member) -> filled.put((String) name, filled(member)));
            return filled;
        }
        return value instanceof List<?>
                ? list(value).stream().map(this::filled).collect(Collectors.toList())
                : value;
    }

    /** An answer will be sent now: the client may have it before the server knows that. */
    synchronized void answering() {
        answeringAt = System.nanoTime();
    }

    synchronized void answered() {
        answered++;
        notifyAll();
    }

    synchronized void awaitRead(long exchange) throws InterruptedException {
        await(() -> read >= exchange);
    }

    synchronized void awaitAnswered(long exchange) throws InterruptedException {
        await(() -> answered >= exchange);
    }

    synchronized void awaitAll() throws InterruptedException {
        await(() -> answered >= exchanges.size());
    }

    private void await(BooleanSupplier condition) throws InterruptedException {
        long ends = System.nanoTime() + 10_000_000_000L;
        while (!condition.getAsBoolean()) {
            long left = (ends - System.nanoTime()) / 1_000_000;
            if (left <= 0) {
                failures.add(
                        "only "
                                + read
                                + " requests of "
                                + exchanges.size()
                                + " came, "
                                + answered
                                + " were answered");
                return;
            }
            wait(left);
        }
    }

    synchronized List<String> failures() {
        return List.copyOf(failures);
    }
}
