package io.oncegate.client;

import io.oncegate.client.Rounds.Failed;
import io.oncegate.client.Rounds.Plan;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Duration;
import java.util.HexFormat;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadLocalRandom;

/**
 * Looks in the background for the grants of claim calls that ended without an answer, and gives
 * them back. Their leases end in any case.
 */
final class LostGrants {
    /** The longest time to look for one; less if {@code settleWithin} is. */
    private static final Duration WITHIN = Duration.ofSeconds(30);

    /**
     * How many are looked for at once. Those above it wait for the end of their leases: a gateway
     * that comes back has enough to do.
     */
    private static final int MOST = 64;

    private static final int PAUSE_MS = 50;

    private final Context context;
    private final Reporter reporter;
    private final Semaphore places = new Semaphore(MOST);

    LostGrants(Context context, Reporter reporter) {
        this.context = context;
        this.reporter = reporter;
    }

    void giveBack(ClaimRequest request) {
        if (places.tryAcquire()) {
            context.background()
                    .run(
                            () -> {
                                try {
                                    lookAndReport(request);
                                } catch (Failed | OncegateException | InterruptedException ended) {
                                    // Each try has sent its event.
                                } finally {
                                    places.release();
                                }
                            });
        }
    }

    private void lookAndReport(ClaimRequest request) throws Failed, InterruptedException {
        Duration settleWithin = context.options().settleWithin;
        Duration within = settleWithin.compareTo(WITHIN) < 0 ? settleWithin : WITHIN;
        String attempt = find(request, System.nanoTime() + within.toNanos());
        if (attempt != null) {
            String id = request.globalId();
            String operation = request.operation();
            var report =
                    new Report(id, attempt, "failure", operation, request.contents(), null, null);
            reporter.send(report, null, null);
        }
    }

    /**
     * Returns the attempt with the nonce of the call if it holds the claim, else null. It makes no
     * further claim: that one would take the key if it was free.
     */
    private String find(ClaimRequest request, long ends) throws Failed, InterruptedException {
        Thread.sleep(ThreadLocalRandom.current().nextInt(PAUSE_MS));
        Response record = look(request, ends);
        if (record.status() == 404) {
            // The call may still be on its way.
            Thread.sleep(context.options().timeout.toMillis());
            record = look(request, ends);
        }
        String state = record.text("state");
        if (record.status() != 200 || !("in_progress".equals(state) || "unknown".equals(state))) {
            return null;
        }
        String attempt = record.number("timestamp") + "-" + request.nonce();
        return hash(attempt).equals(record.text("attempt_hash")) ? attempt : null;
    }

    private Response look(ClaimRequest request, long ends) throws Failed, InterruptedException {
        String path = "/v1/claims/" + request.globalId();
        var call = new Call(path, null, "global_id", Duration.ZERO, request.subject());
        Duration left = Duration.ofNanos(Math.max(1, ends - System.nanoTime()));
        return context.rounds()
                .run(call, new Plan(context.rounds().first(), left, true, late -> {}));
    }

    private static String hash(String attempt) {
        try {
            byte[] digest =
                    MessageDigest.getInstance("SHA-256")
                            .digest(attempt.getBytes(StandardCharsets.UTF_8));
            return HexFormat.of().formatHex(digest, 0, 4);
        } catch (NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }
}
