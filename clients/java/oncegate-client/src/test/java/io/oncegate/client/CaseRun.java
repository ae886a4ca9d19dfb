package io.oncegate.client;

import static io.oncegate.client.Vectors.list;
import static io.oncegate.client.Vectors.number;
import static io.oncegate.client.Vectors.object;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import java.util.function.Supplier;

/** One case of the behaviour vectors. */
final class CaseRun {
    private final Map<String, Object> vector;
    private final Script script;
    private final List<String> urls = new ArrayList<>();
    private final List<Event> events = Collections.synchronizedList(new ArrayList<>());
    private final AtomicLong clockStep = new AtomicLong();
    private final AtomicInteger runs = new AtomicInteger();
    private OncegateClient client;

    CaseRun(Map<String, Object> vector) {
        this.vector = vector;
        script = new Script(list(vector.get("exchanges")));
    }

    /** The claim or lock that the work runs under. */
    private record Held(Supplier<Map<String, Object>> sees, Consumer<Consumer<String>> onLost) {}

    void run() throws Exception {
        var options = new LinkedHashMap<>(Script.common("options"));
        options.putAll(object(vector.get("options")));
        List<ScriptServer> servers = new ArrayList<>();
        try {
            for (Object kind : list(options.get("urls"))) {
                var server = new ScriptServer((String) kind, servers.size(), script);
                servers.add(server);
                urls.add(server.url());
            }
            script.place("$url0", urls.get(0));
            client = new OncegateClient(options(options));
            for (Object call : list(vector.get("calls"))) {
                call(object(call));
            }
            client.close();
        } finally {
            for (ScriptServer server : servers) {
                server.close();
            }
        }
        assertEquals(List.of(), script.failures());
    }

    private Options options(Map<String, Object> options) {
        boolean proceed = "proceed".equals(options.get("on_unavailable"));
        return new Options(urls)
                .credential((String) options.get("credential"))
                .timeout(millis(options.get("timeout_ms")))
                .claimWithin(millis(options.get("claim_within_ms")))
                .settleWithin(millis(options.get("settle_within_ms")))
                .onUnavailable(proceed ? OnUnavailable.PROCEED : OnUnavailable.FAIL_CLOSED)
                .onEvent(events::add)
                .nanoTime(() -> System.nanoTime() + clockStep.get());
    }

    private static Duration millis(Object value) {
        return Duration.ofMillis(number(value, 0));
    }

    private void call(Map<String, Object> call) throws Exception {
        events.clear();
        runs.set(0);
        if (call.get("cancel_at_exchange") != null) {
            cancelAt(number(call.get("cancel_at_exchange"), 0));
        }
        Map<String, Object> end;
        try {
            end =
                    make(
                            object(call.getOrDefault("call", Script.common("call"))),
                            list(call.getOrDefault("work", Script.commonWork())));
            if (Thread.interrupted()) {
                // Java keeps the result of finished work, and the interrupt stays set.
                end = Ends.error(new InterruptedException(), urls);
            }
        } catch (AssertionError wrong) {
            throw wrong;
        } catch (Throwable thrown) {
            end = Ends.error(thrown, urls);
        }
        if (list(vector.get("calls")).size() == 1) {
            script.awaitAll();
        }
        var expected = object(script.filled(call.get("expected")));
        assertEquals(List.of(), differences(expected, end), () -> "in " + events);
        assertEquals(number(call.get("runs"), 0), runs.get(), "runs");
        if (call.get("events") != null) {
            checkEvents(list(call.get("events")));
        }
    }

    private void cancelAt(long exchange) {
        Thread caller = Thread.currentThread();
        var canceller =
                new Thread(
                        () -> {
                            try {
                                script.awaitRead(exchange);
                                caller.interrupt();
                            } catch (InterruptedException ended) {
                                // The case has ended.
                            }
                        });
        canceller.setDaemon(true);
        canceller.start();
    }

    private Map<String, Object> make(Map<String, Object> call, List<Object> steps)
            throws Exception {
        String kind = call.keySet().iterator().next();
        var arguments = object(call.get(kind));
        String operation = (String) arguments.get("operation");
        switch (kind) {
            case "once":
                return Ends.of(
                        client.once(
                                operation,
                                Typed.value(arguments.get("contents")),
                                terms(arguments),
                                grant -> work(steps, held(grant))));
            case "settle":
                return Ends.of(client.settle(Json.write(arguments.get("report"))));
            case "lookup":
                var record = client.lookup((String) arguments.get("global_id")).orElse(null);
                return Collections.singletonMap("record", record);
            case "lock_lookup":
                var lock = client.lock((String) arguments.get("name")).lookup().map(Ends::lock);
                return Collections.singletonMap("lock_record", lock.orElse(null));
            case "claim_batch":
                return batch(list(arguments.get("items")));
            case "lock":
                return lock(arguments, steps);
            default:
                throw new AssertionError("no call of the vectors: " + kind);
        }
    }

    private Map<String, Object> lock(Map<String, Object> arguments, List<Object> steps)
            throws InterruptedException {
        var mode = "shared".equals(arguments.get("mode")) ? LockMode.SHARED : LockMode.EXCLUSIVE;
        boolean fair = Boolean.TRUE.equals(arguments.get("fair"));
        Number limit = (Number) arguments.get("limit");
        var terms =
                new LockTerms(
                        mode,
                        (String) arguments.get("owner"),
                        (String) arguments.get("lease"),
                        fair,
                        limit == null ? null : limit.intValue());
        Duration wait =
                arguments.get("wait") == null
                        ? Duration.ZERO
                        : Durations.parse("wait", (String) arguments.get("wait"));
        try (Hold hold = client.lock((String) arguments.get("name"), terms).hold(wait)) {
            Object result = work(steps, new Held(() -> Ends.hold(hold), hold::onLost));
            return Map.of("hold", Map.of("result", result, "fence", hold.fence()));
        }
    }

    private static Terms terms(Map<String, Object> arguments) {
        boolean takesOver = Boolean.TRUE.equals(arguments.get("take_over"));
        return new Terms(
                Typed.value(arguments.get("fingerprint")),
                (String) arguments.get("lease"),
                (String) arguments.get("retention"),
                takesOver,
                (String) arguments.get("wait"),
                List.of(),
                "unknown".equals(arguments.get("on_lease_end")));
    }

    private Map<String, Object> batch(List<Object> items) throws InterruptedException {
        var claims =
                items.stream()
                        .map(
                                item ->
                                        new ClaimItem(
                                                (String) object(item).get("operation"),
                                                Typed.value(object(item).get("contents"))))
                        .toList();
        List<Object> ends = new ArrayList<>();
        for (BatchItem<Claimed> item : client.claimBatch(claims)) {
            ends.add(item.error() == null ? Ends.of(item.value()) : Ends.error(item.error(), urls));
        }
        return Map.of("batch", ends);
    }

    private static Held held(Grant grant) {
        return new Held(() -> Ends.grant(grant), grant::onLost);
    }

    private Object work(List<Object> steps, Held held) throws InterruptedException {
        runs.incrementAndGet();
        for (Object each : steps) {
            var step = object(each);
            String kind = step.keySet().iterator().next();
            Object value = step.get(kind);
            switch (kind) {
                case "returns":
                    return value;
                case "returns_unserialisable":
                    return new Object();
                case "returns_text_of":
                    return "x".repeat((int) number(value, 0));
                case "raises":
                    throw "nothing_happened".equals(value)
                            ? new NothingHappened("by the case")
                            : new Ends.WorkFailed();
                case "wait_ms":
                    Thread.sleep(number(value, 0));
                    break;
                case "until_exchange":
                    script.awaitAnswered(number(value, 0));
                    // The client reads the answer a little after it was written.
                    awaitEvent(number(value, 0));
                    break;
                case "until_lost":
                    var lost = new CountDownLatch(1);
                    held.onLost.accept(code -> lost.countDown());
                    assertTrue(lost.await(20, TimeUnit.SECONDS), "the claim is not lost");
                    break;
                case "sees":
                    assertEquals(List.of(), Vectors.missing(object(value), held.sees.get()));
                    break;
                case "wall_clock_steps_ms":
                    // The client reads no wall clock: there is none to step.
                    break;
                case "monotonic_clock_steps_ms":
                    clockStep.addAndGet(number(value, 0) * 1_000_000);
                    break;
                case "cancelled":
                    Thread.currentThread().interrupt();
                    Thread.sleep(60_000);
                    break;
                default:
                    throw new AssertionError("no step of the vectors: " + kind);
            }
        }
        return null;
    }

    /** Awaits an event for each exchange: every answer makes one. */
    private void awaitEvent(long count) throws InterruptedException {
        long ends = System.nanoTime() + 2_000_000_000L;
        while (events.size() < count && System.nanoTime() < ends) {
            Thread.sleep(2);
        }
    }

    private List<String> differences(Map<String, Object> expected, Map<String, Object> end) {
        if (expected.containsKey("error")) {
            var wanted = new LinkedHashMap<>(expected);
            List<String> differences = new ArrayList<>();
            nested(wanted, end, differences, "causes");
            if (wanted.get("cause") != null) {
                differences.addAll(
                        differences(object(wanted.remove("cause")), object(end.get("cause"))));
            }
            differences.addAll(Vectors.missing(wanted, end));
            return differences;
        }
        String kind = expected.keySet().iterator().next();
        if (!end.containsKey(kind)) {
            return List.of("expected " + expected + ", got " + end);
        }
        if (expected.get(kind) instanceof List<?>) {
            List<String> differences = new ArrayList<>();
            var actual = list(end.get(kind));
            int at = 0;
            for (Object item : list(expected.get(kind))) {
                differences.addAll(differences(object(item), object(actual.get(at++))));
            }
            return differences;
        }
        return expected.get(kind) == null
                ? Vectors.missing(expected, end)
                : Vectors.missing(object(expected.get(kind)), object(end.get(kind)));
    }

    private static void nested(
            Map<String, Object> wanted,
            Map<String, Object> end,
            List<String> differences,
            String name) {
        if (wanted.get(name) == null) {
            return;
        }
        var expected = list(wanted.remove(name));
        var actual = list(end.get(name));
        if (expected.size() != actual.size()) {
            differences.add(name + " are " + actual);
            return;
        }
        for (int at = 0; at < expected.size(); at++) {
            differences.addAll(Vectors.missing(object(expected.get(at)), object(actual.get(at))));
        }
    }

    private void checkEvents(List<Object> expected) throws InterruptedException {
        awaitEvent(expected.size());
        List<Event> actual = List.copyOf(events);
        var names =
                expected.stream()
                        .map(
                                event ->
                                        event instanceof String name
                                                ? name
                                                : object(event).get("name"))
                        .toList();
        assertEquals(names, actual.stream().map(Event::name).toList(), "events");
        for (int at = 0; at < names.size(); at++) {
            if (expected.get(at) instanceof Map<?, ?> fields) {
                var wanted = new LinkedHashMap<>(object(fields));
                wanted.remove("name");
                if (wanted.get("cause") != null) {
                    var cause = (Cause) actual.get(at).fields().get("cause");
                    var expectedCause = object(wanted.remove("cause"));
                    assertEquals(
                            List.of(), Vectors.missing(expectedCause, Ends.cause(cause, urls)));
                }
                assertEquals(
                        List.of(),
                        Vectors.missing(wanted, actual.get(at).fields()),
                        actual.get(at).name());
            }
        }
    }
}
