package io.oncegate.client.testing;

import io.oncegate.client.Answerer;
import io.oncegate.client.JsonText;
import io.oncegate.client.OncegateClient;
import io.oncegate.client.Options;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.UnaryOperator;

/**
 * A gateway in the memory of a test: no port, no process, and a clock that the test moves. It
 * answers claims, outcomes, renewals, lookups, batches and exclusive locks as a real one does.
 */
public final class MemoryGateway implements Answerer {
    private static final int RETRY_MS = 20;

    private final ClaimBook claims = new ClaimBook();

    /** The locks of each app. */
    private final Map<String, LockBook> locks = new HashMap<>();

    private long advanced;
    private int failures;
    private boolean unavailable;

    /** Returns a client of this gateway, with short limits of time. */
    public OncegateClient client() {
        return client(options -> options);
    }

    /** Returns a client of this gateway with other options. */
    public OncegateClient client(UnaryOperator<Options> change) {
        Options options =
                new Options("http://memory.invalid")
                        .answerer(this)
                        .enabled(true)
                        .claimWithin(Duration.ofMillis(300))
                        .settleWithin(Duration.ofMillis(300));
        return new OncegateClient(change.apply(options));
    }

    /** Returns the live claims, in the order of their arrival. */
    public synchronized List<StoredClaim> claims() {
        return claims.stored(nanoTime());
    }

    /** Moves the clock: leases and retentions end. */
    public synchronized void advance(Duration time) {
        advanced += time.toNanos();
        notifyAll();
    }

    /** Makes operations unknown when their lease ends; by default they are released. */
    public synchronized void unknownOnLeaseEnd() {
        claims.unknownOnLeaseEnd();
    }

    /** Answers this many of the next calls with 503; clients repeat them. */
    public synchronized void failNext(int calls) {
        failures = calls;
    }

    /** Answers nothing from here on, or answers again. */
    public synchronized void unavailable(boolean unavailable) {
        this.unavailable = unavailable;
    }

    /** Forgets everything. */
    public synchronized void clear() {
        claims.clear();
        locks.clear();
        failures = 0;
        unavailable = false;
    }

    @Override
    public synchronized long nanoTime() {
        return System.nanoTime() + advanced;
    }

    @Override
    public Answer answer(String path, String body) throws InterruptedException {
        return answer(path, body, null);
    }

    @Override
    public synchronized Answer answer(String path, String body, String credential)
            throws InterruptedException {
        if (unavailable) {
            return null;
        }
        if (failures > 0) {
            failures--;
            return Answers.problem(503, "store_unavailable", Map.of("retry_after_ms", RETRY_MS));
        }
        Map<?, ?> fields = body == null ? Map.of() : (Map<?, ?>) new JsonText(body).value();
        String app = OncegateClient.appOf(credential);
        return path.endsWith("/batch") ? batch(app, path, fields) : waited(app, path, fields);
    }

    /** Waits for an attempt in progress, by the time of the test's machine. */
    private Answer waited(String app, String path, Map<?, ?> fields) throws InterruptedException {
        long ends = System.nanoTime() + Answers.millis(fields.get("wait")) * 1_000_000;
        while (true) {
            Answer answer = once(app, path, fields);
            long left = (ends - System.nanoTime()) / 1_000_000;
            boolean isBusy =
                    answer.status() == 409
                            && (answer.body().contains("in_progress")
                                    || answer.body().contains("lock_held"));
            if (!isBusy || left <= 0) {
                notifyAll();
                return answer;
            }
            wait(left);
        }
    }

    private Answer once(String app, String path, Map<?, ?> fields) {
        String[] parts = path.substring(1).split("/");
        if (parts[1].equals("locks")) {
            return locks.computeIfAbsent(app, none -> new LockBook())
                    .answer(parts, fields, nanoTime());
        }
        return parts.length == 2
                ? claims.claim(app, fields, nanoTime())
                : claims.ofOne(parts, fields, nanoTime());
    }

    private Answer batch(String app, String path, Map<?, ?> fields) {
        List<Object> items = new ArrayList<>();
        for (Object each : (List<?>) fields.get("items")) {
            var item = (Map<?, ?>) each;
            String own =
                    path.startsWith("/v1/claims")
                            ? "/v1/claims"
                            : "/v1/claims/" + item.get("global_id") + "/outcome";
            Answer answer = once(app, own, item);
            Map<Object, Object> members = new LinkedHashMap<>();
            ((Map<?, ?>) new JsonText(answer.body()).value()).forEach(members::put);
            members.put("status", answer.status());
            items.add(members);
        }
        return new Answer(200, JsonText.of(Map.of("items", items)).text());
    }
}
