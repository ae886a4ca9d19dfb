package io.oncegate.client;

import static io.oncegate.client.Vectors.list;
import static io.oncegate.client.Vectors.object;
import static io.oncegate.client.Vectors.text;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.oncegate.client.http.Answer;
import io.oncegate.client.http.Engine;
import io.oncegate.client.http.Idempotency;
import io.oncegate.client.http.RequestHead;
import io.oncegate.client.testing.MemoryGateway;
import io.oncegate.client.testing.OncegateTest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
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
        var client =
                gateway.client(
                        options ->
                                options.onEvent(
                                        event -> {
                                            if (event.name().equals("request")) {
                                                results.add(event.fields().get("result"));
                                            }
                                        }));
        var rules =
                new Idempotency<String>(client, "seat.book")
                        .principal(user -> user)
                        .methods("POST");
        var open = new Engine<>(rules);
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
