package io.oncegate.client.testing;

import io.oncegate.client.Answerer.Answer;
import io.oncegate.client.JsonText;
import java.time.Instant;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/** The locks of a gateway in memory, without queues. */
final class LockBook {
    private static final long LEASE_MS = 30_000;

    private final Map<String, Locked> locks = new LinkedHashMap<>();
    private long fences;
    private long attempts;

    private static final class Locked {
        // The fence is for this mode.
        boolean shared;
        long fence;
        // Named by all holds, or null.
        Number limit;
        final List<Held> holds = new ArrayList<>();

        long count(Object owner) {
            return holds.stream().filter(hold -> hold.isOf(owner)).count();
        }
    }

    private static final class Held {
        String nonce;
        String attempt;
        Object owner;
        boolean shared;
        Instant claimedAt;
        long leaseMs;
        long ends;

        boolean isOf(Object owner) {
            return owner != null && owner.equals(this.owner);
        }

        long leftMs(long now) {
            return (ends - now) / 1_000_000;
        }
    }

    void clear() {
        locks.clear();
    }

    Answer answer(String[] path, Map<?, ?> fields, long now) {
        String name = path[2];
        Locked lock = live(name, now);
        if (path.length == 3) {
            return lock.holds.isEmpty()
                    ? Answers.problem(404, "not_found", Map.of())
                    : new Answer(200, JsonText.of(view(name, lock, now)).text());
        }
        return switch (path[3]) {
            case "holds" -> acquire(name, lock, fields, now);
            case "renewal" -> renew(name, lock, fields, now);
            default -> release(name, lock, fields, now);
        };
    }

    /** Ends holds, and assigns a fence if the lock is held now in another mode. */
    private Locked live(String name, long now) {
        Locked lock = locks.computeIfAbsent(name, absent -> new Locked());
        lock.holds.removeIf(each -> each.ends - now <= 0);
        if (lock.holds.isEmpty()) {
            lock.fence = 0;
            lock.limit = null;
            return lock;
        }
        boolean shared = lock.holds.stream().allMatch(each -> each.shared);
        if (lock.fence == 0 || lock.shared != shared) {
            lock.shared = shared;
            lock.fence = ++fences;
        }
        return lock;
    }

    private static Map<String, Object> view(String name, Locked lock, long now) {
        Map<String, Object> view = new LinkedHashMap<>();
        view.put("name", name);
        view.put("mode", mode(lock.shared));
        view.put("fence", lock.fence);
        view.put("holders", lock.holds.stream().map(each -> holder(each, now)).toList());
        view.put("waiting", 0);
        if (lock.limit != null) {
            view.put("limit", lock.limit);
        }
        return view;
    }

    private static Map<String, Object> holder(Held each, long now) {
        return Map.of(
                // As many digits as those of a real gateway.
                "hash", String.format("%08x", each.nonce.hashCode()),
                "mode", mode(each.shared),
                "claimed_at", each.claimedAt.toString(),
                "lease_ms", each.leftMs(now));
    }

    private Answer acquire(String name, Locked lock, Map<?, ?> fields, long now) {
        Object nonce = fields.get("attempt_nonce");
        for (Held each : lock.holds) {
            if (each.nonce.equals(nonce)) {
                return granted(name, lock, each, true, now);
            }
        }
        Answer refused = refused(lock, fields);
        if (refused != null) {
            return refused;
        }
        long leaseMs = Answers.millis(fields.get("lease"));
        Held mine = new Held();
        mine.nonce = (String) nonce;
        mine.owner = fields.get("owner");
        mine.shared = "shared".equals(fields.get("mode"));
        mine.attempt = ++attempts + "-" + nonce;
        mine.claimedAt = Instant.now();
        mine.leaseMs = leaseMs == 0 ? LEASE_MS : leaseMs;
        mine.ends = now + mine.leaseMs * 1_000_000;
        lock.holds.add(mine);
        lock.limit = (Number) fields.get("limit");
        return granted(name, live(name, now), mine, false, now);
    }

    private static Answer refused(Locked lock, Map<?, ?> fields) {
        if (lock.holds.isEmpty()) {
            return null;
        }
        Number limit = (Number) fields.get("limit");
        Object owner = fields.get("owner");
        boolean shared = "shared".equals(fields.get("mode"));
        List<Held> others = lock.holds.stream().filter(each -> !each.isOf(owner)).toList();
        boolean isBusy = others.stream().anyMatch(each -> !(shared && each.shared));
        if (limit != null && lock.limit != null && !limit.equals(lock.limit)) {
            return Answers.problem(409, "limit_differs", Map.of("limit", lock.limit));
        }
        if (!Objects.equals(limit, lock.limit)) {
            isBusy = true;
        } else if (limit != null) {
            isBusy = lock.holds.size() >= limit.longValue();
        } else if (isBusy && !shared && others.size() < lock.holds.size()) {
            return Answers.problem(409, "upgrade_refused", Map.of());
        }
        Map<String, Object> more =
                Map.of(
                        "mode",
                        mode(lock.shared),
                        "holders",
                        lock.holds.size(),
                        "retry_after_ms",
                        20);
        return isBusy ? Answers.problem(409, "lock_held", more) : null;
    }

    private static Answer granted(String name, Locked lock, Held hold, boolean repeated, long now) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("name", name);
        answer.put("mode", mode(hold.shared));
        answer.put("attempt", hold.attempt);
        answer.put("fence", lock.fence);
        answer.put("holds", Math.max(1, lock.count(hold.owner)));
        answer.put("lease_ms", hold.leftMs(now));
        answer.put("repeated", repeated);
        return new Answer(201, JsonText.of(answer).text());
    }

    private static Answer renew(String name, Locked lock, Map<?, ?> fields, long now) {
        for (Held each : lock.holds) {
            if (each.attempt.equals(fields.get("attempt"))) {
                long leaseMs = Answers.millis(fields.get("lease"));
                each.leaseMs = leaseMs == 0 ? each.leaseMs : leaseMs;
                each.ends = Math.max(each.ends, now + each.leaseMs * 1_000_000);
                Map<String, Object> answer = Map.of("name", name, "lease_ms", each.leftMs(now));
                return new Answer(200, JsonText.of(answer).text());
            }
        }
        return Answers.problem(409, "not_held", Map.of());
    }

    private Answer release(String name, Locked lock, Map<?, ?> fields, long now) {
        for (Held each : lock.holds) {
            if (each.attempt.equals(fields.get("attempt"))
                    || each.nonce.equals(fields.get("attempt_nonce"))) {
                lock.holds.remove(each);
                Map<String, Object> answer =
                        Map.of("name", name, "holds", live(name, now).count(each.owner));
                return new Answer(200, JsonText.of(answer).text());
            }
        }
        return Answers.problem(409, "not_held", Map.of());
    }

    private static String mode(boolean shared) {
        return shared ? "shared" : "exclusive";
    }
}
