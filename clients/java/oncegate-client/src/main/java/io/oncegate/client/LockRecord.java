package io.oncegate.client;

import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Map;

/**
 * Stored state of a lock. It is for people and reports: the lock may change right after the lookup.
 *
 * @param mode null if the lock is free and requests queue for it
 * @param limit how many holds may be at once; null if the holders have named none
 * @param fence null if the lock is free
 * @param waiting number of requests in the queue
 */
public record LockRecord(
        String name, LockMode mode, Integer limit, Long fence, List<Holder> holders, long waiting) {

    /**
     * One hold, without its attempt.
     *
     * @param hash the first 8 hex digits of the SHA-256 of the hold's nonce
     * @param lease what is left of the lease
     */
    public record Holder(String hash, LockMode mode, Instant claimedAt, Duration lease) {}

    /** Returns true if the lock was held. */
    public boolean held() {
        return mode != null;
    }

    static LockRecord of(String name, Response answer) {
        List<Holder> holders =
                answer.fields().get("holders") instanceof List<?> items
                        ? items.stream().map(item -> holder(answer, item)).toList()
                        : List.of();
        Long waiting = answer.number("waiting");
        Long limit = answer.number("limit");
        return new LockRecord(
                name,
                mode(answer),
                limit == null ? null : limit.intValue(),
                answer.number("fence"),
                holders,
                waiting == null ? 0 : waiting);
    }

    @SuppressWarnings("unchecked")
    private static Holder holder(Response answer, Object item) {
        Response holder = answer.item((Map<String, Object>) item);
        Long lease = holder.number("lease_ms");
        return new Holder(
                holder.text("hash"),
                mode(holder),
                holder.instant("claimed_at"),
                Duration.ofMillis(lease == null ? 0 : lease));
    }

    private static LockMode mode(Response answer) {
        String mode = answer.text("mode");
        if (mode == null) {
            return null;
        }
        return mode.equals("shared") ? LockMode.SHARED : LockMode.EXCLUSIVE;
    }
}
