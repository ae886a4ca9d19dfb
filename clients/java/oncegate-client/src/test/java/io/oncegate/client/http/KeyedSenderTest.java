package io.oncegate.client.http;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.net.httpserver.HttpServer;
import io.oncegate.client.JsonText;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.ZoneOffset;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Deque;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import okhttp3.MediaType;
import okhttp3.OkHttpClient;
import okhttp3.Request;
import okhttp3.RequestBody;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Repeats of a sender, and their keys. */
class KeyedSenderTest {
    private static final String IN_PROGRESS = "{\"code\":\"duplicate\",\"state\":\"in_progress\"}";

    private final List<String> seen = Collections.synchronizedList(new ArrayList<>());
    private final Deque<Object[]> answers = new ArrayDeque<>();
    private HttpServer server;

    @BeforeEach
    void start() throws IOException {
        server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.createContext(
                "/",
                exchange -> {
                    String body =
                            new String(
                                    exchange.getRequestBody().readAllBytes(),
                                    StandardCharsets.UTF_8);
                    String key = exchange.getRequestHeaders().getFirst("Idempotency-Key");
                    seen.add(key + " " + body);
                    Object[] answer = answers.poll();
                    if (answer == null) {
                        // No answer: the connection is closed.
                        exchange.close();
                        return;
                    }
                    byte[] bytes = ((String) answer[1]).getBytes(StandardCharsets.UTF_8);
                    if (answer.length > 2) {
                        exchange.getResponseHeaders().add("Retry-After", (String) answer[2]);
                    }
                    exchange.sendResponseHeaders((int) answer[0], bytes.length);
                    exchange.getResponseBody().write(bytes);
                    exchange.close();
                });
        server.start();
    }

    @AfterEach
    void stop() {
        server.stop(0);
    }

    /** The ways to send: both follow the same rules. */
    private enum Way {
        JDK,
        OKHTTP
    }

    /** Sends a request; the limit of all tries may be null for the default. */
    private int send(Way way, Duration within) throws IOException, InterruptedException {
        var uri = URI.create("http://127.0.0.1:" + server.getAddress().getPort() + "/seats");
        if (way == Way.JDK) {
            var request =
                    HttpRequest.newBuilder(uri)
                            .POST(HttpRequest.BodyPublishers.ofString("12A"))
                            .build();
            var client = HttpClient.newHttpClient();
            var sender = within == null ? new KeyedSender(client) : new KeyedSender(client, within);
            return sender.send(request).statusCode();
        }
        var keys = within == null ? new KeyedInterceptor() : new KeyedInterceptor(within);
        var client = new OkHttpClient.Builder().addInterceptor(keys).build();
        var request =
                new Request.Builder()
                        .url(uri.toString())
                        .post(RequestBody.create("12A", MediaType.get("text/plain")))
                        .build();
        try (var response = client.newCall(request).execute()) {
            return response.code();
        }
    }

    private void answer(int status, String body) {
        answers.add(new Object[] {status, body});
    }

    @ParameterizedTest
    @EnumSource
    void aRequestIsRepeatedUnderItsKeyUntilItIsAnswered(Way way) throws Exception {
        answer(503, "");
        answer(409, IN_PROGRESS);
        answer(201, "booked");
        assertEquals(201, send(way, Duration.ofSeconds(30)));
        assertEquals(3, seen.size());
        assertEquals(1, new HashSet<>(seen).size(), seen.toString());
        answer(201, "booked");
        send(way, Duration.ofSeconds(30));
        assertEquals(2, new HashSet<>(seen).size(), "another operation has another key");
    }

    @ParameterizedTest
    @EnumSource
    void aDateOfRetryAfterIsObeyed(Way way) throws Exception {
        var at = ZonedDateTime.now(ZoneOffset.UTC).plusSeconds(3);
        answers.add(new Object[] {503, "", DateTimeFormatter.RFC_1123_DATE_TIME.format(at)});
        answer(201, "booked");
        long sent = System.nanoTime();
        assertEquals(201, send(way, Duration.ofSeconds(30)));
        assertTrue(System.nanoTime() - sent >= 1_500_000_000L, "it was repeated too early");
        // One that is too late for all tries is the answer.
        var hour = DateTimeFormatter.RFC_1123_DATE_TIME.format(at.plusHours(1));
        answers.add(new Object[] {503, "", hour});
        assertEquals(503, send(way, Duration.ofSeconds(30)));
    }

    @ParameterizedTest
    @EnumSource
    void answersAreRepeatedAsInEveryLanguage(Way way) throws Exception {
        var file = Path.of(System.getProperty("oncegate.root"), "clients/vectors/shared.json");
        var shared = (Map<?, ?>) new JsonText(Files.readString(file)).value();
        var sending = (Map<?, ?>) shared.get("sending");
        assertEquals(Tries.WITHIN.toSeconds(), ((Number) sending.get("within_s")).longValue());
        for (Object each : (List<?>) sending.get("answers")) {
            var vector = (Map<?, ?>) each;
            int status = ((Number) vector.get("status")).intValue();
            var body = (String) (vector.get("body") == null ? "" : vector.get("body"));
            boolean isRepeated = (Boolean) vector.get("repeated");
            seen.clear();
            answers.clear();
            answers.add(
                    vector.get("retry_after") == null
                            ? new Object[] {status, body}
                            : new Object[] {status, body, vector.get("retry_after")});
            answer(201, "booked");
            assertEquals(isRepeated ? 201 : status, send(way, null), vector.toString());
            assertEquals(isRepeated ? 2 : 1, seen.size(), vector.toString());
        }
    }

    @ParameterizedTest
    @EnumSource
    void aServerThatNeverAnswersIsAnErrorInTime(Way way) {
        assertThrows(IOException.class, () -> send(way, Duration.ofMillis(300)));
    }

    @Test
    void okHttpKeepsAKeyAndGivesNoneToASafeRequest() throws Exception {
        var client =
                new OkHttpClient.Builder()
                        .addInterceptor(new KeyedInterceptor(Duration.ofSeconds(30)))
                        .build();
        var to = "http://127.0.0.1:" + server.getAddress().getPort() + "/seats";
        answer(200, "");
        client.newCall(new Request.Builder().url(to).build()).execute().close();
        answer(503, "");
        answer(201, "booked");
        var kept =
                new Request.Builder()
                        .url(to)
                        .header("Idempotency-Key", "invoice-7")
                        .post(RequestBody.create("12A", MediaType.get("text/plain")))
                        .build();
        client.newCall(kept).execute().close();
        assertEquals(List.of("null ", "invoice-7 12A", "invoice-7 12A"), seen);
    }

    @Test
    void aCallOfOkHttpThatIsCancelledEnds() throws Exception {
        var client =
                new OkHttpClient.Builder()
                        .addInterceptor(new KeyedInterceptor(Duration.ofHours(1)))
                        .build();
        answers.add(new Object[] {503, "", "600"});
        var call =
                client.newCall(
                        new Request.Builder()
                                .url("http://127.0.0.1:" + server.getAddress().getPort() + "/")
                                .post(RequestBody.create("12A", MediaType.get("text/plain")))
                                .build());
        var canceller =
                new Thread(
                        () -> {
                            while (seen.isEmpty()) {
                                Thread.onSpinWait();
                            }
                            call.cancel();
                        });
        canceller.start();
        assertThrows(IOException.class, () -> call.execute().close());
        canceller.join();
        assertEquals(1, seen.size());
    }
}
