package io.oncegate.client.testing;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.oncegate.client.Hold;
import io.oncegate.client.JsonText;
import io.oncegate.client.LockMode;
import io.oncegate.client.LockNotAcquired;
import io.oncegate.client.LockTerms;
import io.oncegate.client.OncegateClient;
import io.oncegate.client.Options;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Test;

/** The table of the calls of locks, in memory and at a real gateway if ONCEGATE_URL is set. */
class MemoryLocksTest {
    private final Map<?, ?> vectors = read();

    private static Map<?, ?> read() {
        try {
            Path root = Path.of(System.getProperty("oncegate.root"));
            String text = Files.readString(root.resolve("clients/vectors/locks.json"));
            return (Map<?, ?>) new JsonText(text).value();
        } catch (java.io.IOException unreadable) {
            throw new java.io.UncheckedIOException(unreadable);
        }
    }

    @Test
    void inMemory() throws Exception {
        try (OncegateClient client = new MemoryGateway().client()) {
            runAll(client);
        }
    }

    @Test
    void atAGateway() throws Exception {
        String url = System.getenv("ONCEGATE_URL");
        Assumptions.assumeTrue(url != null, "no gateway: set ONCEGATE_URL");
        var options = new Options(url).credential(System.getenv("ONCEGATE_CREDENTIAL"));
        try (OncegateClient client = new OncegateClient(options)) {
            runAll(client);
        }
    }

    @Test
    void aWrongLimitIsRefusedBeforeAnythingIsSent() {
        for (Object each : (List<?>) vectors.get("wrong_limits")) {
            var wrong = (Map<?, ?>) each;
            var refused =
                    assertThrows(IllegalArgumentException.class, () -> terms(wrong), "" + wrong);
            assertTrue(refused.getMessage().contains((String) wrong.get("says")), "" + wrong);
        }
    }

    @Test
    void aThreadThatLocksAgainSharesItsPermitAndAnotherLimitIsThrown() throws Exception {
        try (OncegateClient client = new MemoryGateway().client()) {
            var seats = client.lock("hall:1", LockTerms.SHARED.limit(2));
            seats.lock();
            seats.lock();
            assertEquals(1, seats.lookup().orElseThrow().holders().size());
            try (Hold own = seats.hold(Duration.ZERO)) {
                assertTrue(seats.acquire(Duration.ZERO).isEmpty());
            }
            var other = client.lock("hall:1", LockTerms.SHARED.limit(3));
            var refused = assertThrows(LockNotAcquired.class, other::tryLock);
            assertEquals(List.of("limit_differs", 2), List.of(refused.code(), refused.limit()));
            seats.unlock();
            seats.unlock();
            assertTrue(other.tryLock());
        }
    }

    private LockTerms terms(Map<?, ?> step) {
        LockTerms terms =
                "shared".equals(step.get("mode")) ? LockTerms.SHARED : LockTerms.EXCLUSIVE;
        if (step.get("limit") instanceof Number limit) {
            terms = terms.limit(limit.intValue());
        }
        return step.get("own") == null ? terms : terms.owner((String) vectors.get("owner"));
    }

    private void runAll(OncegateClient client) throws InterruptedException {
        int number = 0;
        for (Object table : (List<?>) vectors.get("tables")) {
            String name = "table:" + System.nanoTime() + ":" + ++number;
            run(client, name, (List<?>) ((Map<?, ?>) table).get("steps"));
        }
    }

    private void run(OncegateClient client, String name, List<?> steps)
            throws InterruptedException {
        Map<Object, Hold> holds = new HashMap<>();
        long fence = 0;
        for (Object each : steps) {
            var step = (Map<?, ?>) each;
            if (step.containsKey("release")) {
                holds.remove(step.get("release")).close();
            } else if (step.containsKey("lookup")) {
                assertEquals(
                        lookup((Map<?, ?>) step.get("lookup")), found(client, name), "" + step);
            } else if (step.get("held") instanceof Map<?, ?> held) {
                Hold hold = client.lock(name, terms(step)).hold(Duration.ZERO);
                String isNew = hold.fence() > fence ? "new" : "same";
                assertTrue(hold.fence() >= fence, "" + step);
                assertEquals(
                        held.get("mode") + " " + held.get("holds") + " " + held.get("fence"),
                        mode(hold.mode()) + " " + hold.holds() + " " + isNew,
                        "" + step);
                holds.put(step.get("acquire"), hold);
                fence = hold.fence();
            } else {
                var lock = client.lock(name, terms(step));
                var refused =
                        assertThrows(
                                LockNotAcquired.class, () -> lock.hold(Duration.ZERO), "" + step);
                assertEquals(
                        step.get("refused") + " " + step.get("in_use"),
                        refused.code() + " " + refused.limit(),
                        "" + step);
            }
        }
    }

    private static String mode(LockMode mode) {
        return mode.name().toLowerCase(Locale.ROOT);
    }

    private static String lookup(Map<?, ?> expected) {
        return expected == null
                ? null
                : expected.get("mode")
                        + " "
                        + expected.get("holders")
                        + " "
                        + expected.get("limit");
    }

    private static String found(OncegateClient client, String name) throws InterruptedException {
        return client.lock(name)
                .lookup()
                .map(lock -> mode(lock.mode()) + " " + lock.holders().size() + " " + lock.limit())
                .orElse(null);
    }
}
