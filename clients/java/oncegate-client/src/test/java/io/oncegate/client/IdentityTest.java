package io.oncegate.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assertions.fail;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** A gateway that grants another identity than the client computes: nothing runs. */
class IdentityTest {
    private static final String THEIRS = "0".repeat(29) + "bad";

    private final BlockingQueue<String> outcomes = new LinkedBlockingQueue<>();
    private HttpServer gateway;
    private OncegateClient client;

    @BeforeEach
    void start() throws IOException {
        gateway = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        gateway.createContext("/v1/claims", this::answer);
        gateway.start();
        String url = "http://127.0.0.1:" + gateway.getAddress().getPort();
        client =
                new OncegateClient(
                        new Options(url).credential("shop.c2VjcmV0X29mX3RoZV92ZWN0b3Jz"));
    }

    @AfterEach
    void stop() {
        client.close();
        gateway.stop(0);
    }

    private void answer(HttpExchange exchange) throws IOException {
        String path = exchange.getRequestURI().getPath();
        String body = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
        String grant =
                "{\"status\":201,\"global_id\":\""
                        + THEIRS
                        + "\",\"attempt\":\"1-a\",\"lease_ms\":30000}";
        int status = 200;
        String answer;
        if (path.endsWith("/outcome")) {
            outcomes.add(body.contains("\"outcome\":\"failure\"") ? path : "not a failure");
            answer = "{\"global_id\":\"" + THEIRS + "\",\"state\":\"released\"}";
        } else if (path.endsWith("/batch")) {
            answer = "{\"items\":[" + grant + "]}";
        } else {
            status = 201;
            answer = grant;
        }
        byte[] content = answer.getBytes(StandardCharsets.UTF_8);
        exchange.getResponseHeaders().add("content-type", "application/json");
        exchange.sendResponseHeaders(status, content.length);
        exchange.getResponseBody().write(content);
        exchange.close();
    }

    private void assertDiffers(OncegateException thrown) throws InterruptedException {
        var rejected = assertInstanceOf(Rejected.class, thrown);
        assertEquals("identity_differs", rejected.code());
        assertTrue(rejected.detail().contains(THEIRS), rejected.detail());
        assertEquals("/v1/claims/" + THEIRS + "/outcome", outcomes.poll(20, TimeUnit.SECONDS));
    }

    @Test
    void workDoesNotRunUnderAnotherIdentity() throws Exception {
        assertDiffers(
                assertThrows(
                        Rejected.class,
                        () -> client.once("order.submit", "A-1", grant -> fail("it ran"))));
        CompletableFuture<Result<Object>> later =
                client.onceAsync("order.submit", "A-1", Terms.NONE, grant -> fail("it ran"));
        var ended = assertThrows(ExecutionException.class, () -> later.get(20, TimeUnit.SECONDS));
        assertDiffers(assertInstanceOf(Rejected.class, ended.getCause()));
    }

    @Test
    void noCallHandsOutAGrantOfAnotherIdentity() throws Exception {
        assertDiffers(
                assertThrows(
                        Rejected.class, () -> client.claim("order.submit", "A-1", Terms.NONE)));
        var items = client.claimBatch(List.of(new ClaimItem("order.submit", "A-1", Terms.NONE)));
        assertDiffers(items.get(0).error());
    }
}
