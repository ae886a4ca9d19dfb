package io.oncegate.client.testing;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.oncegate.client.ClaimItem;
import io.oncegate.client.Claimed;
import io.oncegate.client.Done;
import io.oncegate.client.Duplicate;
import io.oncegate.client.Grant;
import io.oncegate.client.JsonText;
import io.oncegate.client.Mismatch;
import io.oncegate.client.OnUnavailable;
import io.oncegate.client.OncegateClient;
import io.oncegate.client.Outcome;
import io.oncegate.client.OutcomeItem;
import io.oncegate.client.OutcomeRefused;
import io.oncegate.client.Terms;
import io.oncegate.client.Unavailable;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** The gateway in memory answers as a real one. */
@OncegateTest
class MemoryGatewayTest {
    private static final Map<String, String> SEAT = Map.of("seat", "12A");

    @Test
    void anOperationRunsOnceAndRepeatsGetItsResult(MemoryGateway gateway) throws Exception {
        try (OncegateClient client = gateway.client()) {
            assertEquals(17, client.once("seat.book", SEAT, grant -> 17).result());
            var again = client.once("seat.book", SEAT, Terms.NONE, Long.class, grant -> 18L);
            assertEquals(17L, again.result());
            assertEquals("succeeded", ((Duplicate<Long>) again).state());
            var other = Terms.NONE.fingerprint(Map.of("row", 2));
            assertInstanceOf(Mismatch.class, client.once("seat.book", SEAT, other, grant -> 1));
            assertEquals(1, gateway.claims().size());
            assertEquals("{\"seat\":\"12A\"}", gateway.claims().get(0).contents().text());
        }
    }

    @Test
    void eachCredentialHasTheOperationsAndLocksOfItsApp(MemoryGateway gateway) throws Exception {
        for (String app : List.of("shop", "box-office")) {
            String credential = app + ".c2VjcmV0X29mX3RoZV90ZXN0cw";
            OncegateClient client = gateway.client(options -> options.credential(credential));
            assertInstanceOf(Done.class, client.once("seat.book", SEAT, grant -> 17));
            assertInstanceOf(Duplicate.class, client.once("seat.book", SEAT, grant -> 18));
            client.lock("seat:12A").hold(Duration.ofMillis(1));
        }
        assertEquals(2, gateway.claims().size());
    }

    @Test
    void errorsWithoutEffectAndMarksSayWhatHappened(MemoryGateway gateway) throws Exception {
        try (OncegateClient client = gateway.client()) {
            var terms = Terms.NONE.releaseOn(List.of(IllegalArgumentException.class));
            assertThrows(
                    NumberFormatException.class,
                    () -> client.once("seat.book", SEAT, terms, grant -> Integer.parseInt("x")));
            assertTrue(gateway.claims().isEmpty());
            client.once(
                    "seat.book",
                    SEAT,
                    grant -> {
                        grant.mark(Outcome.UNKNOWN);
                        return 1;
                    });
            assertEquals("unknown", gateway.claims().get(0).state());
            Claimed taken = client.claim("seat.book", SEAT, Terms.NONE.takeOver());
            assertTrue(((Grant) taken).takenOver());
            ((Grant) taken).succeed(2);
        }
    }

    @Test
    void theClockEndsLeases(MemoryGateway gateway) throws Exception {
        try (OncegateClient client = gateway.client()) {
            Grant grant = (Grant) client.claim("seat.book", SEAT, Terms.NONE.lease("30s"));
            assertTrue(grant.isLive());
            gateway.advance(Duration.ofSeconds(31));
            assertFalse(grant.isLive());
            assertInstanceOf(Done.class, client.once("seat.book", SEAT, again -> 1));
        }
    }

    @Test
    void failuresAreRepeatedAndOutagesAreTold(MemoryGateway gateway) throws Exception {
        try (OncegateClient client = gateway.client()) {
            gateway.failNext(1);
            assertInstanceOf(Done.class, client.once("seat.book", SEAT, grant -> 1));
            gateway.unavailable(true);
            assertThrows(Unavailable.class, () -> client.once("seat.book", "12B", grant -> 1));
        }
        try (OncegateClient client =
                gateway.client(options -> options.onUnavailable(OnUnavailable.PROCEED))) {
            var done = assertInstanceOf(Done.class, client.once("seat.book", "12B", grant -> 1));
            assertEquals("caller", done.degraded());
        }
    }

    @Test
    void aClientThatIsSwitchedOffRunsEverything(MemoryGateway gateway) throws Exception {
        try (OncegateClient client = gateway.client(options -> options.enabled(false))) {
            for (int click = 0; click < 2; click++) {
                var done = assertInstanceOf(Done.class, client.once("seat.book", SEAT, grant -> 1));
                assertEquals("disabled", done.degraded());
            }
            assertTrue(gateway.claims().isEmpty());
        }
    }

    @Test
    void aClaimThatAsksForItIsUnknownWhenItsLeaseEnds(MemoryGateway gateway) throws Exception {
        try (OncegateClient client = gateway.client()) {
            client.claim("seat.book", "12A", Terms.NONE);
            client.claim("seat.book", "12B", Terms.NONE.unknownOnLeaseEnd());
            gateway.advance(Duration.ofDays(365));
            assertEquals(
                    List.of("unknown"),
                    gateway.claims().stream().map(claim -> claim.state()).toList());
        }
    }

    @Test
    void batchesAndLocksAreAnswered(MemoryGateway gateway) throws Exception {
        try (OncegateClient client = gateway.client()) {
            var items =
                    List.of(new ClaimItem("seat.book", "12A"), new ClaimItem("seat.book", "12A"));
            var ends = client.claimBatch(items);
            assertInstanceOf(Grant.class, ends.get(0).value());
            assertInstanceOf(Duplicate.class, ends.get(1).value());
            try (var hold = client.lock("hall:1").hold(Duration.ZERO)) {
                assertTrue(hold.isLive());
                assertTrue(client.lock("hall:1").acquire(Duration.ZERO).isEmpty());
                assertEquals("Hold[hall:1, exclusive, held, fence 1]", hold.toString());
            }
            assertTrue(client.lock("hall:1").tryLock());
        }
    }

    @Test
    void aBatchSettlesLiveGrantsAndKeptReports(MemoryGateway gateway) throws Exception {
        try (OncegateClient client = gateway.client()) {
            List<Grant> grants = new ArrayList<>();
            for (String seat : List.of("1A", "1B", "1C", "1D")) {
                grants.add((Grant) client.claim("seat.book", seat, Terms.NONE));
            }
            String attempt = grants.get(3).attempt();
            String kept =
                    JsonText.of(
                                    Map.of(
                                            "global_id",
                                            grants.get(3).globalId(),
                                            "attempt",
                                            attempt,
                                            "outcome",
                                            "success"))
                            .text();
            var outcomes =
                    List.of(
                            OutcomeItem.success(grants.get(0), Map.of("number", 7)),
                            OutcomeItem.failure(grants.get(1)),
                            OutcomeItem.unknown(grants.get(2)),
                            OutcomeItem.report(kept),
                            OutcomeItem.report(kept.replace(attempt, "another")));
            var ends = client.settleBatch(outcomes);
            var states = ends.stream().filter(end -> end.error() == null);
            assertEquals(
                    List.of("succeeded", "released", "unknown", "succeeded"),
                    states.map(end -> end.value().state()).toList());
            assertInstanceOf(OutcomeRefused.class, ends.get(4).error());
            var again = (Duplicate<?>) client.claim("seat.book", "1A", Terms.NONE);
            assertEquals("{\"number\":7}", again.json().text());
            assertThrows(
                    IllegalStateException.class,
                    () -> client.settleBatch(List.of(OutcomeItem.failure(grants.get(0)))));
            // Nothing is reported twice.
            grants.forEach(Grant::close);
        }
    }

    @Test
    void aBatchThatNoGatewayTakesLeavesItsGrants(MemoryGateway gateway) throws Exception {
        try (OncegateClient client =
                gateway.client(options -> options.settleWithin(Duration.ofMillis(50)))) {
            var grant = (Grant) client.claim("seat.book", "2A", Terms.NONE);
            gateway.unavailable(true);
            assertThrows(
                    Unavailable.class,
                    () -> client.settleBatch(List.of(OutcomeItem.success(grant, 1))));
            gateway.unavailable(false);
            assertEquals("succeeded", grant.succeed(1).state());
        }
    }
}
