package io.oncegate.client.testing;

import io.oncegate.client.Answerer.Answer;
import io.oncegate.client.JsonText;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/** The locks of a gateway in memory: exclusive and shared, re-entrant by owner, without queues. */
final class LockBook {
    private static final long LEASE_MS = 30_000;

    private final Map<String, List<Held>> locks = new LinkedHashMap<>();
    private long fence;

    private static final class Held {
        String nonce;
        String attempt;
        String owner;
        boolean shared;
        long fence;
        long leaseMs;
        long ends;
    }

    void clear() {
        locks.clear();
    }

    Answer answer(String[] path, Map<?, ?> fields, long now) {
        String name = path[2];
        List<Held> held = locks.computeIfAbsent(name, absent -> new ArrayList<>());
        held.removeIf(each -> each.ends - now <= 0);
        if (path.length == 3) {
            return held.isEmpty()
                    ? MemoryGateway.problem(404, "not_found", Map.of())
                    : new Answer(200, JsonText.of(view(name, held)).text());
        }
        return switch (path[3]) {
            case "holds" -> acquire(name, held, fields, now);
            case "renewal" -> renew(name, held, fields, now);
            default -> release(name, held, fields);
        };
    }

    private static Map<String, Object> view(String name, List<Held> held) {
        Map<String, Object> view = new LinkedHashMap<>();
        view.put("name", name);
        view.put("held", true);
        view.put("mode", held.get(0).shared ? "shared" : "exclusive");
        view.put("fence", held.get(0).fence);
        view.put("holders", List.of());
        view.put("waiting", 0);
        return view;
    }

    private Answer acquire(String name, List<Held> held, Map<?, ?> fields, long now) {
        String nonce = (String) fields.get("attempt_nonce");
        Object owner = fields.get("owner");
        boolean shared = "shared".equals(fields.get("mode"));
        Held mine = held.stream().filter(each -> each.nonce.equals(nonce)).findFirst().orElse(null);
        boolean isBusy =
                held.stream()
                        .anyMatch(
                                each ->
                                        !(shared && each.shared)
                                                && (owner == null
                                                        || !Objects.equals(each.owner, owner)));
        if (mine == null && isBusy) {
            return MemoryGateway.problem(409, "lock_held", Map.of("retry_after_ms", 20));
        }
        if (mine == null) {
            mine = new Held();
            mine.nonce = nonce;
            mine.owner = (String) owner;
            mine.shared = shared;
            mine.fence = held.isEmpty() ? ++fence : held.get(0).fence;
            mine.attempt = fence + "-" + nonce;
            mine.leaseMs = Math.max(MemoryGateway.millis(fields.get("lease")), 1);
            mine.leaseMs = mine.leaseMs == 1 ? LEASE_MS : mine.leaseMs;
            mine.ends = now + mine.leaseMs * 1_000_000;
            held.add(mine);
        }
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("name", name);
        answer.put("attempt", mine.attempt);
        answer.put("fence", mine.fence);
        answer.put("mode", shared ? "shared" : "exclusive");
        answer.put("holds", held.size());
        answer.put("lease_ms", mine.leaseMs);
        return new Answer(201, JsonText.of(answer).text());
    }

    private static Answer renew(String name, List<Held> held, Map<?, ?> fields, long now) {
        for (Held each : held) {
            if (each.attempt.equals(fields.get("attempt"))) {
                each.ends = now + each.leaseMs * 1_000_000;
                return new Answer(
                        200, JsonText.of(Map.of("name", name, "lease_ms", each.leaseMs)).text());
            }
        }
        return MemoryGateway.problem(409, "not_held", Map.of());
    }

    private static Answer release(String name, List<Held> held, Map<?, ?> fields) {
        boolean released =
                held.removeIf(
                        each ->
                                each.attempt.equals(fields.get("attempt"))
                                        || each.nonce.equals(fields.get("attempt_nonce")));
        return released || fields.get("attempt_nonce") != null
                ? new Answer(200, JsonText.of(Map.of("name", name)).text())
                : MemoryGateway.problem(409, "not_held", Map.of());
    }
}
