package io.oncegate.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;

import io.oncegate.client.Answerer.Answer;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** A gateway that accepts no outcome until the claim is renewed: no repeat may run before. */
class ReportingTest {
    private final List<String> calls = new CopyOnWriteArrayList<>();
    private final List<String> events = new CopyOnWriteArrayList<>();
    private final String globalId = Contents.globalId("default", "order.submit", "A-1");
    private final OncegateClient client =
            new OncegateClient(
                    new Options()
                            .answerer(this::answer)
                            .settleWithin(Duration.ofSeconds(20))
                            .onEvent(event -> events.add(event.name())));
    private int renewalStatus = 200;

    @AfterEach
    void stop() {
        client.close();
    }

    private Answer answer(String path, String body) {
        String call = path.substring(path.lastIndexOf('/') + 1);
        boolean isRenewed = isRenewedWhileReporting();
        calls.add(call);
        return switch (call) {
            case "claims" -> answer(201, "\"attempt\":\"1-a\",\"lease_ms\":1500");
            case "renewal" ->
                    answer(renewalStatus, "\"code\":\"already_succeeded\",\"lease_ms\":1500");
            case "outcome" ->
                    isRenewed
                            ? answer(200, "\"state\":\"succeeded\"")
                            : answer(503, "\"code\":\"store_unavailable\"");
            default -> throw new AssertionError(call);
        };
    }

    private Answer answer(int status, String members) {
        return new Answer(status, "{\"global_id\":\"" + globalId + "\"," + members + "}");
    }

    private boolean isRenewedWhileReporting() {
        int first = calls.indexOf("outcome");
        return first >= 0 && calls.lastIndexOf("renewal") > first;
    }

    @Test
    void theClaimIsRenewedWhileItsOutcomeIsReported() throws InterruptedException {
        assertInstanceOf(Done.class, client.once("order.submit", "A-1", grant -> "done"));
        assertEquals("outcome", calls.get(calls.size() - 1));
    }

    @Test
    void aRenewalThatTheReportOvertakesLosesNothing() throws InterruptedException {
        renewalStatus = 409;
        List<String> lost = new CopyOnWriteArrayList<>();
        client.once(
                "order.submit",
                "A-1",
                grant -> {
                    grant.onLost(lost::add);
                    return "done";
                });
        assertEquals(List.of(), lost);
        assertEquals(List.of(), events.stream().filter("lost"::equals).toList());
    }
}
