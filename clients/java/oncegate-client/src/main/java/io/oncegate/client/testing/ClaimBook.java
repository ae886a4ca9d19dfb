package io.oncegate.client.testing;

import io.oncegate.client.Answerer.Answer;
import io.oncegate.client.Contents;
import io.oncegate.client.JsonText;
import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/** The claims of a gateway in memory. */
final class ClaimBook {
    private static final long LEASE_MS = 30_000;
    private static final long RETENTION_MS = 86_400_000L;
    private static final int RETRY_MS = 250;

    private final Map<String, Entry> claims = new LinkedHashMap<>();
    private boolean unknownOnLeaseEnd;
    private long fence;

    private static final class Entry {
        String operation;
        JsonText contents;
        String fingerprint;
        String nonce;
        String attempt;
        String state = "in_progress";
        JsonText result;
        long fence;
        long leaseMs;
        long retentionMs;
        long ends;
        boolean unknownOnLeaseEnd;
        final Instant claimedAt = Instant.now();
    }

    void unknownOnLeaseEnd() {
        unknownOnLeaseEnd = true;
    }

    void clear() {
        claims.clear();
    }

    List<StoredClaim> stored(long now) {
        expire(now);
        return claims.values().stream()
                .map(
                        each ->
                                new StoredClaim(
                                        each.operation, each.contents, each.state, each.result))
                .toList();
    }

    private void expire(long now) {
        claims.values()
                .removeIf(
                        claim -> {
                            if (claim.ends - now > 0) {
                                return false;
                            }
                            boolean isUnknown = unknownOnLeaseEnd || claim.unknownOnLeaseEnd;
                            if (isUnknown && claim.state.equals("in_progress")) {
                                claim.state = "unknown";
                                // It has no end.
                                claim.ends = now + 36_500L * RETENTION_MS * 1_000_000;
                                return false;
                            }
                            return true;
                        });
    }

    Answer claim(String app, Map<?, ?> fields, long now) {
        expire(now);
        String operation = (String) fields.get("operation");
        JsonText contents = JsonText.of(fields.get("contents"));
        String id = Contents.globalId(app, operation, contents);
        String mark =
                fields.get("fingerprint") == null
                        ? null
                        : JsonText.of(fields.get("fingerprint")).canonical();
        Entry claim = claims.get(id);
        String nonce = (String) fields.get("attempt_nonce");
        boolean isSame = claim == null || Objects.equals(claim.fingerprint, mark);
        if (!isSame) {
            return Answers.problem(422, "fingerprint_mismatch", Map.of("global_id", id));
        }
        boolean isRepeated =
                claim != null && claim.nonce.equals(nonce) && claim.state.equals("in_progress");
        boolean takesOver =
                claim != null
                        && claim.state.equals("unknown")
                        && Boolean.TRUE.equals(fields.get("take_over"));
        if (claim != null && !isRepeated && !takesOver) {
            return Answers.problem(409, "duplicate", view(id, claim, now));
        }
        if (!isRepeated) {
            claim = new Entry();
            claim.operation = operation;
            claim.contents = new JsonText(contents.canonical());
            claim.fingerprint = mark;
            claim.nonce = nonce;
            claim.fence = ++fence;
            claim.attempt = fence + "-" + nonce;
            claim.leaseMs = orElse(Answers.millis(fields.get("lease")), LEASE_MS);
            boolean isForever = "forever".equals(fields.get("retention"));
            claim.retentionMs =
                    isForever
                            ? 36_500L * RETENTION_MS
                            : orElse(Answers.millis(fields.get("retention")), RETENTION_MS);
            claim.ends = now + claim.leaseMs * 1_000_000;
            claim.unknownOnLeaseEnd = "unknown".equals(fields.get("on_lease_end"));
            claims.put(id, claim);
        }
        Map<String, Object> grant = new LinkedHashMap<>();
        grant.put("global_id", id);
        grant.put("attempt", claim.attempt);
        grant.put("fence", claim.fence);
        grant.put("state", "in_progress");
        grant.put("lease_ms", (claim.ends - now) / 1_000_000);
        grant.put("repeated", isRepeated);
        grant.put("taken_over", takesOver);
        return new Answer(201, JsonText.of(grant).text());
    }

    private static long orElse(long millis, long otherwise) {
        return millis == 0 ? otherwise : millis;
    }

    private static Map<String, Object> view(String id, Entry claim, long now) {
        Map<String, Object> view = new LinkedHashMap<>();
        view.put("global_id", id);
        view.put("state", claim.state);
        view.put("claimed_at", claim.claimedAt.toString());
        view.put("expires_at", Instant.now().plusNanos(claim.ends - now).toString());
        if (claim.result != null) {
            view.put("result", claim.result);
        }
        if (claim.state.equals("in_progress")) {
            view.put("retry_after_ms", RETRY_MS);
        }
        return view;
    }

    /** Answers an outcome, a renewal or a lookup. */
    Answer ofOne(String[] path, Map<?, ?> fields, long now) {
        expire(now);
        String id = path[2];
        Entry claim = claims.get(id);
        if (path.length == 3) {
            return claim == null
                    ? Answers.problem(404, "not_found", Map.of())
                    : new Answer(200, JsonText.of(view(id, claim, now)).text());
        }
        boolean isHeld = claim != null && claim.attempt.equals(fields.get("attempt"));
        if (path[3].equals("renewal")) {
            return isHeld && claim.state.equals("in_progress")
                    ? renewed(id, claim, fields, now)
                    : Answers.problem(409, claim == null ? "lease_lost" : "superseded", Map.of());
        }
        if (claim != null && !isHeld) {
            String code = claim.state.equals("succeeded") ? "already_succeeded" : "superseded";
            return Answers.problem(409, code, Map.of("global_id", id));
        }
        return settled(id, claim, fields, now);
    }

    private static Answer renewed(String id, Entry claim, Map<?, ?> fields, long now) {
        long lease = orElse(Answers.millis(fields.get("lease")), claim.leaseMs);
        claim.ends = now + lease * 1_000_000;
        return new Answer(200, JsonText.of(Map.of("global_id", id, "lease_ms", lease)).text());
    }

    private Answer settled(String id, Entry held, Map<?, ?> fields, long now) {
        String outcome = (String) fields.get("outcome");
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("global_id", id);
        answer.put("late", held == null);
        if (outcome.equals("failure")) {
            claims.remove(id);
            answer.put("state", "released");
            return new Answer(200, JsonText.of(answer).text());
        }
        Entry claim = held;
        if (claim == null) {
            // A late outcome brings the operation and its contents with it.
            claim = new Entry();
            claim.operation = (String) fields.get("operation");
            claim.contents = JsonText.of(fields.get("contents"));
            claim.attempt = (String) fields.get("attempt");
            claim.nonce = "";
            claim.retentionMs = RETENTION_MS;
            claims.put(id, claim);
        }
        if (!claim.state.equals("succeeded")) {
            claim.state = outcome.equals("success") ? "succeeded" : "unknown";
            claim.result = fields.get("result") == null ? null : JsonText.of(fields.get("result"));
            claim.ends = now + claim.retentionMs * 1_000_000;
        }
        answer.put("state", claim.state);
        return new Answer(200, JsonText.of(answer).text());
    }
}
