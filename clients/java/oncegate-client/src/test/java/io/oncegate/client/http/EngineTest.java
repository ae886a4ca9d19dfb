package io.oncegate.client.http;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.micrometer.core.instrument.simple.SimpleMeterRegistry;
import io.oncegate.client.Outcome;
import io.oncegate.client.http.Answer.Answered;
import io.oncegate.client.http.Answer.Granted;
import io.oncegate.client.http.Answer.Keyed;
import io.oncegate.client.http.Answer.Pass;
import io.oncegate.client.micrometer.OncegateMetrics;
import io.oncegate.client.testing.MemoryGateway;
import io.oncegate.client.testing.OncegateTest;
import io.oncegate.client.testing.StoredClaim;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.function.Consumer;
import org.junit.jupiter.api.Test;

/** The rules of the middleware, without a framework. */
@OncegateTest
class EngineTest {
    private record Head(String method, Map<String, List<String>> fields) implements RequestHead {
        @Override
        public String path() {
            return "/seats";
        }

        @Override
        public String query() {
            return null;
        }

        @Override
        public Iterable<String> names() {
            return fields.keySet();
        }

        @Override
        public List<String> lines(String name) {
            return fields.getOrDefault(name, List.of());
        }
    }

    private static Head post(String... keys) {
        return new Head("POST", Map.of("Idempotency-Key", List.of(keys)));
    }

    private static Idempotency<String> rules(MemoryGateway gateway) {
        return new Idempotency<String>(gateway.client(), "seat.book").principal(user -> user);
    }

    private static Answer send(Engine<String> engine, String key, Consumer<Run> handler)
            throws InterruptedException {
        var head = post(key);
        var keyed = assertInstanceOf(Keyed.class, engine.enter(head, "alice"));
        Answer answer = engine.claim(keyed, "alice", head, new byte[] {1});
        if (answer instanceof Granted granted) {
            handler.accept(granted.run());
        }
        return answer;
    }

    private static Consumer<Run> answers(int status, List<Field> fields, String body) {
        return run -> {
            byte[] bytes = body.getBytes(StandardCharsets.UTF_8);
            run.head(status, fields);
            run.body(bytes, 0, bytes.length);
            run.complete();
        };
    }

    private static Reply reply(Answer answer) {
        return assertInstanceOf(Answered.class, answer).reply();
    }

    @Test
    void aRepeatGetsTheStoredResponse(MemoryGateway gateway) throws Exception {
        var registry = new SimpleMeterRegistry();
        var client = gateway.client(options -> options.onEvent(new OncegateMetrics(registry)));
        var engine =
                new Engine<>(new Idempotency<String>(client, "seat.book").principal(user -> user));
        var fields = List.of(new Field("X-Seat", "12A"), new Field("Set-Cookie", "s=1"));
        send(engine, "k", answers(201, fields, "booked"));
        Reply replay = reply(send(engine, "\"k\"", run -> {}));
        assertEquals(201, replay.status());
        assertArrayEquals("booked".getBytes(StandardCharsets.UTF_8), replay.body());
        var names = replay.fields().stream().map(Field::name).toList();
        assertEquals(List.of("x-seat", "Idempotent-Replayed", "Age"), names);
        var tags = List.of("operation", "seat.book", "result", "replayed");
        assertEquals(1, registry.counter("oncegate.requests", tags.toArray(String[]::new)).count());
        assertTrue(engine.drain(Duration.ZERO));
    }

    @Test
    void theOutcomeIsSaidByTheFirstThatSaysIt(MemoryGateway gateway) throws Exception {
        var engine = new Engine<>(rules(gateway).releaseOn(IllegalArgumentException.class));
        Map<String, Consumer<Run>> handlers =
                Map.of(
                        "failure 1",
                                run -> run.takes("Oncegate-Outcome", List.of(" failure "), false),
                        "failure 2", run -> run.grant().mark(Outcome.FAILURE),
                        "failure 3", run -> run.thrown(new NumberFormatException()),
                        "unknown 4",
                                run -> run.takes("oncegate-outcome", List.of("perhaps"), false),
                        "unknown 6",
                                run -> {
                                    run.takes("Oncegate-Outcome", List.of("success"), false);
                                    run.takes("Oncegate-Outcome", List.of("success"), true);
                                },
                        "succeeded 5",
                                run ->
                                        run.thrown(
                                                new IllegalStateException(
                                                        new NumberFormatException())));
        for (var each : handlers.entrySet()) {
            gateway.clear();
            send(
                    engine,
                    "k",
                    run -> {
                        each.getValue().accept(run);
                        answers(200, List.of(), "").accept(run);
                    });
            String state = gateway.claims().isEmpty() ? "failure" : gateway.claims().get(0).state();
            assertEquals(each.getKey().split(" ")[0], state, each.getKey());
        }
        gateway.clear();
        send(engine, "k", Run::broken);
        assertEquals("unknown", gateway.claims().get(0).state());
    }

    @Test
    void whatIsTooLongOrPrivateLeavesATombstone(MemoryGateway gateway) throws Exception {
        var engine = new Engine<>(rules(gateway).responseBytes(8));
        var location = new Field("Location", "/seats/12A");
        var noStore = new Field("Cache-Control", "private, No-Store");
        send(engine, "long", answers(201, List.of(location), "123456789"));
        send(engine, "private", answers(201, List.of(location, noStore), "1"));
        for (String key : List.of("long", "private")) {
            Reply reply = reply(send(engine, key, run -> {}));
            assertEquals(409, reply.status());
            String text = new String(reply.body(), StandardCharsets.UTF_8);
            assertTrue(text.contains("\"code\":\"response_not_stored\""), text);
            assertTrue(text.contains("\"response_status\":201"), text);
            assertTrue(reply.fields().contains(new Field("location", "/seats/12A")), text);
        }
    }

    @Test
    void keysThatCannotBeUsedAreRefused(MemoryGateway gateway) {
        var engine = new Engine<>(rules(gateway));
        for (String wrong :
                List.of(
                        "",
                        "\"\"",
                        "a b",
                        "\"open",
                        "\"a\"b",
                        "\"a\\b\"",
                        "\"a\";x=1",
                        "\u00e4",
                        "\u00a0a")) {
            assertEquals(400, reply(engine.enter(post(wrong), "alice")).status(), wrong);
        }
        assertEquals(400, reply(engine.enter(post("a", "a"), "alice")).status());
        assertEquals("a\"b\\c", ((Keyed) engine.enter(post("\"a\\\"b\\\\c\""), "")).key());
        assertEquals(Pass.ON, engine.enter(new Head("GET", post("a").fields()), "alice"));
        assertEquals(400, reply(engine.withoutPrincipal("")).status());
    }

    @Test
    void anOutcomeThatNoGatewayTakesCompletesTheResponseAllTheSame(MemoryGateway gateway)
            throws Exception {
        var events = new ConcurrentLinkedQueue<String>();
        var client = gateway.client(options -> options.onEvent(event -> events.add(event.name())));
        var rules = new Idempotency<String>(client, "seat.book").principal(user -> user);
        var engine = new Engine<>(rules.settleWithin(Duration.ofMillis(200)));
        Consumer<Run> whole = answers(201, List.of(), "booked");
        var run =
                assertInstanceOf(
                                Granted.class,
                                send(
                                        engine,
                                        "k",
                                        granted -> {
                                            gateway.unavailable(true);
                                            whole.accept(granted);
                                        }))
                        .run();
        assertTrue(run.hasEnded());
        assertTrue(events.contains("not_settled"), events::toString);
        assertTrue(engine.drain(Duration.ZERO));
    }

    @Test
    void anExactStatusLeavesTheDefaultOfTheOtherList(MemoryGateway gateway) throws Exception {
        var storing = new Engine<>(rules(gateway).store("2xx", "403"));
        for (int status : new int[] {403, 404, 401}) {
            send(storing, "s-" + status, answers(status, List.of(), ""));
        }
        var releasing = new Engine<>(rules(gateway).release("204", "302", "4xx"));
        for (int status : new int[] {201, 204, 302, 303, 404}) {
            send(releasing, "r-" + status, answers(status, List.of(), ""));
        }
        var states = gateway.claims().stream().map(StoredClaim::state).toList();
        assertEquals(List.of("succeeded", "unknown", "succeeded", "succeeded"), states);
    }

    @Test
    void wrongOptionsFailAtOnce(MemoryGateway gateway) {
        var rules = rules(gateway);
        assertThrows(IllegalArgumentException.class, () -> rules.methods("GET"));
        assertThrows(IllegalArgumentException.class, rules::methods);
        assertThrows(IllegalArgumentException.class, () -> rules.store("2x"));
        assertThrows(IllegalArgumentException.class, () -> rules.storeWith("Connection"));
        assertThrows(IllegalArgumentException.class, () -> rules.bodyBytes(0));
        assertThrows(
                IllegalArgumentException.class,
                () -> new Engine<>(new Idempotency<String>(gateway.client(), "seat.book")));
        assertThrows(
                IllegalArgumentException.class,
                () -> new Engine<>(rules.store("409").release("409")));
    }
}
