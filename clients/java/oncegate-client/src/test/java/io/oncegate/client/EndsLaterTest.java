package io.oncegate.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.oncegate.client.testing.MemoryGateway;
import io.oncegate.client.testing.OncegateTest;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Flow;
import java.util.concurrent.FutureTask;
import org.junit.jupiter.api.Test;
import org.reactivestreams.Publisher;

/** Work that has not ended when it returns is no success. Without work, nothing is claimed. */
@OncegateTest
class EndsLaterTest {
    @Test
    void workThatHasNotEndedIsUnknown(MemoryGateway gateway) {
        var client = gateway.client();
        Flow.Publisher<String> publisher = subscriber -> {};
        Publisher<String> reactive = subscriber -> {};
        var later =
                List.of(
                        new CompletableFuture<>(),
                        CompletableFuture.completedFuture(1),
                        new FutureTask<>(() -> 1),
                        List.of(1).stream(),
                        List.of(1).iterator(),
                        publisher,
                        reactive);
        for (Object each : later) {
            var contents = Map.of("type", each.getClass().getName() + later.indexOf(each));
            var thrown =
                    assertThrows(
                            IllegalStateException.class,
                            () -> client.once("seat.book", contents, grant -> each));
            assertTrue(thrown.getMessage().contains("onceAsync"), thrown.getMessage());
        }
        assertEquals(later.size(), gateway.claims().size());
        gateway.claims().forEach(claim -> assertEquals("unknown", claim.state(), claim.toString()));
    }

    @Test
    void withoutWorkNothingIsClaimed(MemoryGateway gateway) {
        var client = gateway.client();
        var contents = Map.of("seat", "12A");
        Work<Object, RuntimeException> none = null;
        assertThrows(
                IllegalArgumentException.class, () -> client.once("seat.book", contents, none));
        assertThrows(
                IllegalArgumentException.class,
                () -> client.onceAsync("seat.book", contents, Terms.NONE, null));
        assertTrue(gateway.claims().isEmpty());
    }
}
