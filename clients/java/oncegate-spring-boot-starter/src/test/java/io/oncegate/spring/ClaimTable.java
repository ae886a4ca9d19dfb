package io.oncegate.spring;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import io.oncegate.client.Contents;
import io.oncegate.client.JsonText;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/** A gateway that models the table of claims in memory, by operation and contents. */
public final class ClaimTable implements AutoCloseable {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final HttpServer server;
    private final Map<String, Claim> claims = new HashMap<>();
    private final List<String> outcomes = new ArrayList<>();
    private String traceparent;
    private int calls;
    private boolean refusesOutcomes;
    private final CountDownLatch outcomeArrived = new CountDownLatch(1);
    private volatile CountDownLatch held = new CountDownLatch(0);

    private static final class Claim {
        String attempt;
        String state = "in_progress";
        JsonNode fingerprint;
        JsonNode result;
    }

    public ClaimTable() throws IOException {
        server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.setExecutor(Executors.newCachedThreadPool());
        server.createContext("/v1/claims", this::handle);
        server.start();
    }

    public String url() {
        return "http://127.0.0.1:" + server.getAddress().getPort();
    }

    /** Returns the outcomes so far, such as {@code success}. */
    public synchronized List<String> outcomes() {
        return List.copyOf(outcomes);
    }

    /** Returns the number of claim calls so far. */
    public synchronized int claims() {
        return calls;
    }

    public synchronized String traceparent() {
        return traceparent;
    }

    private void handle(HttpExchange exchange) throws IOException {
        JsonNode body = JSON.readTree(exchange.getRequestBody());
        if (exchange.getRequestURI().getPath().endsWith("/outcome")) {
            outcomeArrived.countDown();
            awaitRelease();
        }
        ObjectNode answer = JSON.createObjectNode();
        int status;
        synchronized (this) {
            traceparent = exchange.getRequestHeaders().getFirst("traceparent");
            status =
                    exchange.getRequestURI().getPath().endsWith("/outcome")
                            ? outcome(body, answer)
                            : claim(body, answer);
        }
        byte[] content = JSON.writeValueAsBytes(answer);
        exchange.getResponseHeaders().add("content-type", "application/json");
        exchange.sendResponseHeaders(status, content.length);
        exchange.getResponseBody().write(content);
        exchange.close();
    }

    private int claim(JsonNode body, ObjectNode answer) {
        calls++;
        String key = body.get("operation") + " " + body.get("contents");
        String operation = body.get("operation").asText();
        var contents = new JsonText(body.get("contents").toString());
        answer.put("global_id", Contents.globalId("default", operation, contents));
        Claim claim = claims.get(key);
        if (claim == null) {
            claim = new Claim();
            claim.attempt = "1-" + body.get("attempt_nonce").asText();
            claim.fingerprint = body.get("fingerprint");
            claims.put(key, claim);
            answer.put("attempt", claim.attempt)
                    .put("fence", claims.size())
                    .put("lease_ms", 30_000)
                    .put("state", "in_progress");
            return 201;
        }
        boolean same =
                claim.fingerprint == null
                        ? body.get("fingerprint") == null
                        : claim.fingerprint.equals(body.get("fingerprint"));
        if (!same) {
            answer.put("code", "fingerprint_mismatch");
            return 422;
        }
        answer.put("code", "duplicate").put("state", claim.state).put("retry_after_ms", 70);
        answer.set("result", claim.result);
        return 409;
    }

    /** Answers outcomes with 503 from here on. */
    public synchronized void refuseOutcomes() {
        refusesOutcomes = true;
    }

    private int outcome(JsonNode body, ObjectNode answer) {
        if (refusesOutcomes) {
            answer.put("code", "store_unavailable");
            return 503;
        }
        String outcome = body.get("outcome").asText();
        outcomes.add(outcome);
        answer.put("global_id", "0".repeat(32)).put("late", false);
        for (String key : List.copyOf(claims.keySet())) {
            Claim claim = claims.get(key);
            if (!claim.attempt.equals(body.get("attempt").asText())) {
                continue;
            }
            if (outcome.equals("failure")) {
                claims.remove(key);
            } else {
                claim.state = outcome.equals("success") ? "succeeded" : "unknown";
                claim.result = body.get("result");
            }
            answer.put("state", claim.state);
        }
        return 200;
    }

    /** Answers no outcome until {@link #answerOutcomes}. */
    public void holdOutcomes() {
        held = new CountDownLatch(1);
    }

    public void answerOutcomes() {
        held.countDown();
    }

    public void awaitOutcome() throws InterruptedException {
        if (!outcomeArrived.await(20, TimeUnit.SECONDS)) {
            throw new AssertionError("no outcome was reported");
        }
    }

    private void awaitRelease() {
        try {
            held.await();
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }

    @Override
    public void close() {
        answerOutcomes();
        server.stop(0);
    }
}
