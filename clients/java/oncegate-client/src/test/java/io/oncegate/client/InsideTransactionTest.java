package io.oncegate.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.oncegate.client.testing.MemoryGateway;
import io.oncegate.client.testing.OncegateTest;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** Calls inside a transaction: a success reported before the commit would stay after a rollback. */
@OncegateTest
class InsideTransactionTest {
    private static final Map<String, String> SEAT = Map.of("seat", "12A");

    private static OncegateClient inside(MemoryGateway gateway) {
        return gateway.client(options -> options.insideTransaction(() -> true));
    }

    @Test
    void callsThatClaimAreRefusedBeforeTheClaim(MemoryGateway gateway) {
        OncegateClient client = inside(gateway);
        List<Executable> calls =
                List.of(
                        () -> client.once("seat.book", SEAT, grant -> 1),
                        () -> client.claim("seat.book", SEAT, Terms.NONE),
                        () ->
                                client.onceAsync(
                                        "seat.book",
                                        SEAT,
                                        Terms.NONE,
                                        grant -> CompletableFuture.completedFuture(1)));
        for (Executable call : calls) {
            var refused = assertThrows(IllegalStateException.class, call);
            assertTrue(refused.getMessage().contains("inside a transaction"));
        }
        assertEquals(List.of(), gateway.claims());
    }

    @Test
    void whoReportsFromAnOutboxAllowsThem(MemoryGateway gateway) throws Exception {
        OncegateClient outbox =
                inside(gateway).with(options -> options.insideTransaction(() -> false));
        assertInstanceOf(Done.class, outbox.once("seat.book", SEAT, grant -> 1));
    }

    /** Spring shows the transaction of a broker around a listener as that of a database. */
    @Test
    void consumersOfMessagesMayStandInTheTransactionOfTheirBroker(MemoryGateway gateway)
            throws Exception {
        var consumer = new OnceConsumer<>(inside(gateway), "seat.book", seat -> SEAT);
        assertEquals(Decision.Kind.ACK, consumer.handle("12A", 0, () -> 1).kind());
    }
}
