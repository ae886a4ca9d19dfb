package io.oncegate.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** A gateway that takes no outcome until the claim is renewed: no repeat may run meanwhile. */
class ReportingTest {
    private final List<String> calls = new CopyOnWriteArrayList<>();
    private final List<String> events = new CopyOnWriteArrayList<>();
    private HttpServer gateway;
    private OncegateClient client;
    private String globalId;
    private int renewalStatus = 200;

    @BeforeEach
    void start() throws IOException {
        gateway = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        gateway.createContext("/v1/claims", this::answer);
        gateway.start();
        client =
                new OncegateClient(
                        new Options("http://127.0.0.1:" + gateway.getAddress().getPort())
                                .settleWithin(Duration.ofSeconds(20))
                                .onEvent(event -> events.add(event.name())));
        globalId = Contents.globalId("default", "order.submit", "A-1");
    }

    @AfterEach
    void stop() {
        client.close();
        gateway.stop(0);
    }

    private void answer(HttpExchange exchange) throws IOException {
        String path = exchange.getRequestURI().getPath();
        exchange.getRequestBody().readAllBytes();
        String call = path.substring(path.lastIndexOf('/') + 1);
        boolean isRenewed = isRenewedWhileReporting();
        calls.add(call);
        String members = "\"global_id\":\"" + globalId + "\",";
        switch (call) {
            case "claims" -> send(exchange, 201, members + "\"attempt\":\"1-a\",\"lease_ms\":1500");
            case "renewal" ->
                    send(
                            exchange,
                            renewalStatus,
                            members + "\"code\":\"already_succeeded\",\"lease_ms\":1500");
            case "outcome" ->
                    send(
                            exchange,
                            isRenewed ? 200 : 503,
                            isRenewed
                                    ? members + "\"state\":\"succeeded\""
                                    : "\"code\":\"store_unavailable\"");
            default -> throw new AssertionError(call);
        }
    }

    private boolean isRenewedWhileReporting() {
        int first = calls.indexOf("outcome");
        return first >= 0 && calls.lastIndexOf("renewal") > first;
    }

    private static void send(HttpExchange exchange, int status, String members) throws IOException {
        byte[] content = ("{" + members + "}").getBytes(StandardCharsets.UTF_8);
        String type = status < 400 ? "application/json" : "application/problem+json";
        exchange.getResponseHeaders().add("content-type", type);
        exchange.sendResponseHeaders(status, content.length);
        exchange.getResponseBody().write(content);
        exchange.close();
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
