package io.oncegate.client;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;

/** Exchanges without a waiting caller. */
class ExchangeTest {
    @Test
    void anAbandonedExchangeEndsAtItsDeadlineAlsoWithinTheBody() throws Exception {
        try (var server = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            var uri = URI.create("http://127.0.0.1:" + server.getLocalPort() + "/");
            var exchange =
                    new Exchange(HttpClient.newHttpClient(), HttpRequest.newBuilder(uri).build());
            var thread = new Thread(exchange);
            thread.start();
            try (var connection = server.accept()) {
                // A head, and a body that never ends.
                String head = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{";
                connection.getOutputStream().write(head.getBytes(StandardCharsets.US_ASCII));
                var seen = new AtomicReference<>();
                exchange.abandon(System.nanoTime() + 300_000_000L, seen::set);
                thread.join(60_000);
                assertFalse(thread.isAlive(), "its thread runs on");
                assertTrue(exchange.isCancelled());
                assertNull(seen.get());
            }
        }
    }
}
