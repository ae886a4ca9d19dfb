package io.oncegate.client;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * A gateway that models the table of locks in memory: exclusive and shared, re-entrant by owner,
 * fair or not, with waits and leases.
 */
final class LockTable implements AutoCloseable {
    private static final long LEASE_MS = 30_000;

    private final HttpServer server;
    private final ExecutorService workers = Executors.newCachedThreadPool();
    private final Map<String, Lock> locks = new HashMap<>();
    private long fence;

    /** Calls so far, by their last path segment. */
    private final Map<String, Integer> calls = new HashMap<>();

    private record Held(String nonce, String owner, boolean exclusive, long end) {}

    private static final class Lock {
        final List<Held> holds = new ArrayList<>();

        /** Nonces of fair requests, in the order in which they first asked. */
        final List<String> queue = new ArrayList<>();

        final List<String> withdrawn = new ArrayList<>();
        long fence;
    }

    LockTable() throws IOException {
        server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.setExecutor(workers);
        server.createContext("/v1/locks/", this::handle);
        server.start();
    }

    String url() {
        return "http://127.0.0.1:" + server.getAddress().getPort();
    }

    synchronized int calls(String kind) {
        return calls.getOrDefault(kind, 0);
    }

    /** Returns how many requests wait in a queue. */
    synchronized int queued(String name) {
        return lock(name).queue.size();
    }

    /** Takes all holds away, as an operator or the end of a lease does. */
    synchronized void drop(String name) {
        lock(name).holds.clear();
        notifyAll();
    }

    private Lock lock(String name) {
        return locks.computeIfAbsent(name, absent -> new Lock());
    }

    private void handle(HttpExchange exchange) throws IOException {
        String[] path = exchange.getRequestURI().getPath().split("/");
        var body =
                Vectors.object(
                        Json.read(
                                new String(
                                        exchange.getRequestBody().readAllBytes(),
                                        StandardCharsets.UTF_8)));
        Map<String, Object> answer;
        try {
            answer = answer(path[3], path[4], body);
        } catch (InterruptedException stopped) {
            return;
        }
        int status = ((Number) answer.remove("http")).intValue();
        byte[] content = Json.write(answer).getBytes(StandardCharsets.UTF_8);
        exchange.getResponseHeaders().add("content-type", "application/json");
        exchange.sendResponseHeaders(status, content.length);
        exchange.getResponseBody().write(content);
        exchange.close();
    }

    private synchronized Map<String, Object> answer(
            String name, String call, Map<String, Object> body) throws InterruptedException {
        calls.merge(call, 1, Integer::sum);
        Lock lock = lock(name);
        return switch (call) {
            case "holds" -> acquire(name, lock, body);
            case "release" -> release(name, lock, body);
            default -> renew(name, lock, body);
        };
    }

    private static Map<String, Object> map(Object... namesAndValues) {
        var map = new HashMap<String, Object>();
        for (int at = 0; at < namesAndValues.length; at += 2) {
            map.put((String) namesAndValues[at], namesAndValues[at + 1]);
        }
        return map;
    }

    private static void expire(Lock lock) {
        lock.holds.removeIf(hold -> hold.end - System.nanoTime() <= 0);
    }

    private Map<String, Object> acquire(String name, Lock lock, Map<String, Object> body)
            throws InterruptedException {
        String nonce = (String) body.get("attempt_nonce");
        String owner = Vectors.text(body.get("owner"), nonce);
        boolean exclusive = "exclusive".equals(body.get("mode"));
        boolean fair = Boolean.TRUE.equals(body.get("fair"));
        long wait =
                body.get("wait") == null
                        ? 0
                        : Durations.parse("wait", (String) body.get("wait")).toNanos();
        long lease =
                body.get("lease") == null
                        ? LEASE_MS
                        : Durations.parse("lease", (String) body.get("lease")).toMillis();
        long ends = System.nanoTime() + wait;
        if (fair && !lock.queue.contains(nonce)) {
            lock.queue.add(nonce);
        }
        while (true) {
            expire(lock);
            if (lock.withdrawn.contains(nonce)) {
                return map("http", 409, "code", "withdrawn");
            }
            boolean owns = lock.holds.stream().anyMatch(hold -> hold.owner.equals(owner));
            boolean othersShare = lock.holds.stream().anyMatch(hold -> !hold.owner.equals(owner));
            boolean othersExclude =
                    lock.holds.stream()
                            .anyMatch(hold -> !hold.owner.equals(owner) && hold.exclusive);
            boolean first = lock.queue.isEmpty() || lock.queue.get(0).equals(nonce);
            boolean free = exclusive ? !othersShare : !othersExclude;
            if (free && (owns || first)) {
                lock.queue.remove(nonce);
                if (!owns) {
                    lock.fence = ++fence;
                }
                lock.holds.add(
                        new Held(nonce, owner, exclusive, System.nanoTime() + lease * 1_000_000));
                notifyAll();
                return map(
                        "http",
                        201,
                        "name",
                        name,
                        "mode",
                        body.get("mode"),
                        "attempt",
                        "1-" + nonce,
                        "fence",
                        lock.fence,
                        "holds",
                        lock.holds.stream().filter(hold -> hold.owner.equals(owner)).count(),
                        "lease_ms",
                        lease,
                        "repeated",
                        false);
            }
            if (owns && exclusive) {
                lock.queue.remove(nonce);
                return map("http", 409, "code", "upgrade_refused", "detail", "others share it");
            }
            long left = (ends - System.nanoTime()) / 1_000_000;
            if (left <= 0) {
                return map(
                        "http", 409, "code", "lock_held", "detail", "held", "retry_after_ms", 10);
            }
            wait(Math.min(left, 50));
        }
    }

    private Map<String, Object> release(String name, Lock lock, Map<String, Object> body) {
        notifyAll();
        expire(lock);
        if (body.get("attempt_nonce") instanceof String nonce) {
            lock.queue.remove(nonce);
            lock.withdrawn.add(nonce);
            lock.holds.removeIf(hold -> hold.nonce.equals(nonce));
            return map("http", 200, "name", name, "holds", 0, "late", null);
        }
        boolean held = lock.holds.removeIf(hold -> ("1-" + hold.nonce).equals(body.get("attempt")));
        return held
                ? map("http", 200, "name", name, "holds", 0)
                : map("http", 409, "code", "not_held");
    }

    private static Map<String, Object> renew(String name, Lock lock, Map<String, Object> body) {
        expire(lock);
        for (int at = 0; at < lock.holds.size(); at++) {
            Held hold = lock.holds.get(at);
            if (("1-" + hold.nonce).equals(body.get("attempt"))) {
                lock.holds.set(
                        at,
                        new Held(
                                hold.nonce,
                                hold.owner,
                                hold.exclusive,
                                System.nanoTime() + LEASE_MS * 1_000_000));
                return map("http", 200, "name", name, "lease_ms", LEASE_MS);
            }
        }
        return map("http", 409, "code", "not_held");
    }

    @Override
    public void close() {
        server.stop(0);
        workers.shutdownNow();
    }
}
