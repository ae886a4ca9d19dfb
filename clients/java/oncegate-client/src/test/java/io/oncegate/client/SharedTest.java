package io.oncegate.client;

import static io.oncegate.client.Vectors.list;
import static io.oncegate.client.Vectors.object;
import static io.oncegate.client.Vectors.text;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.net.httpserver.HttpServer;
import io.oncegate.client.http.Answer;
import io.oncegate.client.http.Engine;
import io.oncegate.client.http.Idempotency;
import io.oncegate.client.http.RequestHead;
import io.oncegate.client.testing.MemoryGateway;
import io.oncegate.client.testing.OncegateTest;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
import org.junit.jupiter.api.Test;

/** Rules of all clients in the vectors that no other file shows. */
@OncegateTest
class SharedTest {
    private static final Map<String, Object> SHARED = Vectors.load("clients/vectors/shared.json");

    @Test
    void theEnvironmentSwitchesClientsOff() {
        for (Object each : list(SHARED.get("disabled"))) {
            var vector = object(each);
            String text = text(vector.get("text"), null);
            if (vector.get("disabled") instanceof Boolean expected) {
                assertEquals(expected, Options.isDisabled(text), text);
            } else {
                var wrong =
                        assertThrows(
                                IllegalArgumentException.class,
                                () -> Options.isDisabled(text),
                                text);
                assertTrue(wrong.getMessage().contains("ONCEGATE_DISABLED"), wrong.getMessage());
            }
        }
    }

    private record Head(String method, List<String> keys) implements RequestHead {
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
            return List.of("Idempotency-Key");
        }

        @Override
        public List<String> lines(String name) {
            return name.equalsIgnoreCase("Idempotency-Key") ? keys : List.of();
        }
    }

    @Test
    void requestsAreCountedUnderTheSameNames(MemoryGateway gateway) throws Exception {
        List<Object> results = new ArrayList<>();
        Consumer<Event> counting =
                event -> {
                    if (event.name().equals("request")) {
                        results.add(event.fields().get("result"));
                    }
                };
        var client = gateway.client(options -> options.onEvent(counting));
        var rules =
                new Idempotency<String>(client, "seat.book")
                        .principal(user -> user)
                        .methods("POST");
        var open = new Engine<>(rules);
        AtomicReference<Map<String, Object>> answer = new AtomicReference<>();
        HttpServer scripted = scripted(answer);
        String url = "http://127.0.0.1:" + scripted.getAddress().getPort();
        var other =
                new OncegateClient(
                        new Options(url).claimWithin(Duration.ofSeconds(1)).onEvent(counting));
        var elsewhere =
                new Engine<>(new Idempotency<String>(other, "seat.book").principal(user -> user));
        var required = new Engine<>(rules.required());
        var observing = new Engine<>(rules.observe());
        for (Object each : list(SHARED.get("counted"))) {
            var vector = object(each);
            results.clear();
            String key = text(vector.get("key"), null);
            var head =
                    new Head(
                            text(vector.get("method"), "POST"),
                            key == null ? List.of() : List.of(key));
            var engine = Boolean.TRUE.equals(vector.get("required")) ? required : open;
            engine = Boolean.TRUE.equals(vector.get("observe")) ? observing : engine;
            if (vector.get("gateway") != null) {
                answer.set(object(vector.get("gateway")));
                engine = elsewhere;
            }
            if (engine.enter(head, "alice") instanceof Answer.Keyed keyed
                    && engine.claim(keyed, "alice", head, new byte[0])
                            instanceof Answer.Granted granted) {
                granted.run().head(201, List.of());
                granted.run().complete();
            }
            Object result = vector.get("result");
            assertEquals(
                    result == null ? List.of() : List.of(result),
                    results,
                    text(vector.get("name"), null));
        }
        other.close();
        scripted.stop(0);
    }

    @Test
    void aGatewayThatIsBackAfterAnUnprotectedRunRecordsItsResponse(MemoryGateway gateway) {
        var engine =
                new Engine<>(
                        new Idempotency<String>(gateway.client(), "seat.book")
                                .principal(user -> user)
                                .claimWithin(Duration.ofMillis(100))
                                .onUnavailable(OnUnavailable.PROCEED));
        var head = new Head("POST", List.of("k-1"));
        gateway.unavailable(true);
        var first = assertInstanceOf(Answer.Granted.class, claim(engine, head)).run();
        assertEquals("caller", first.grant().degraded());
        gateway.unavailable(false);
        first.head(201, List.of());
        first.complete();
        assertEquals("succeeded", gateway.claims().get(0).state());
        assertInstanceOf(Answer.Answered.class, claim(engine, head));
    }

    private static Answer claim(Engine<String> engine, Head head) {
        try {
            var keyed = assertInstanceOf(Answer.Keyed.class, engine.enter(head, "alice"));
            return engine.claim(keyed, "alice", head, new byte[0]);
        } catch (InterruptedException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    /** Gives this answer to each claim, and accepts each outcome. */
    private static HttpServer scripted(AtomicReference<Map<String, Object>> answer)
            throws IOException {
        var server =
                HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.createContext(
                "/v1/claims",
                exchange -> {
                    exchange.getRequestBody().readAllBytes();
                    String path = exchange.getRequestURI().getPath();
                    boolean isOutcome = path.endsWith("/outcome");
                    Object body =
                            isOutcome
                                    ? Map.of("global_id", path.split("/")[3], "state", "released")
                                    : answer.get().get("body");
                    int status = isOutcome ? 200 : ((Number) answer.get().get("status")).intValue();
                    byte[] content = JsonText.of(body).text().getBytes(StandardCharsets.UTF_8);
                    exchange.sendResponseHeaders(status, content.length);
                    exchange.getResponseBody().write(content);
                    exchange.close();
                });
        server.start();
        return server;
    }

    @Test
    void locksSayTheirNameAndState(MemoryGateway gateway) throws Exception {
        try (OncegateClient client = gateway.client()) {
            var lock = client.lock("hall:1");
            assertEquals(
                    "OncegateLock[hall:1, exclusive, not held by this thread]", lock.toString());
            assertTrue(lock.tryLock());
            assertEquals("OncegateLock[hall:1, exclusive, held by this thread]", lock.toString());
            lock.unlock();
            assertTrue(client.readWriteLock("hall:2").toString().contains("hall:2, shared"));
            try (var hold = lock.hold(Duration.ZERO)) {
                assertTrue(hold.toString().startsWith("Hold[hall:1, exclusive, held, fence "));
            }
        }
    }
}
