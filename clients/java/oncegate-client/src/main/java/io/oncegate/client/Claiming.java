package io.oncegate.client;

import io.oncegate.client.Rounds.Failed;
import io.oncegate.client.Rounds.Plan;
import java.time.Duration;
import java.util.List;

/**
 * Claim calls: waits, answers as values, the caller's own policy, and grants whose caller no longer
 * waits.
 */
final class Claiming {
    /** A longer wait is several calls with the same nonce. */
    private static final Duration WAIT_MAX = Duration.ofSeconds(20);

    /** A shorter rest of a wait is not worth a call. */
    private static final Duration WAIT_MIN = Duration.ofMillis(5);

    private final Context context;
    private final Reporter reporter;
    private final LostGrants lost;

    Claiming(Context context, Reporter reporter) {
        this.context = context;
        this.reporter = reporter;
        lost = new LostGrants(context, reporter);
    }

    Claimed claim(ClaimRequest request) throws InterruptedException {
        if (Thread.interrupted()) {
            throw new InterruptedException("interrupted before the claim call");
        }
        if (!context.options().enabled) {
            return Grant.disabled(context, reporter, request);
        }
        Asked asked;
        try {
            asked = ask(request);
        } catch (Failed failed) {
            return proceed(request, failed.error(), failed.uncertain);
        }
        Response answer = asked.answer();
        Claimed claimed = read(request, answer);
        if (asked.waited() && claimed instanceof Duplicate<?> duplicate) {
            return duplicate.afterWait();
        }
        if (claimed instanceof Grant grant) {
            if (!grant.isLive()) {
                release(grant);
                String url = context.options().urls.get(answer.gateway());
                return proceed(
                        request,
                        new Unavailable(List.of(Cause.tooLate(url, "grant")), false),
                        false);
            }
            Rejected differs = grant.identityDiffers();
            if (differs != null) {
                release(grant);
                throw differs;
            }
            grant.start();
        }
        return claimed;
    }

    /**
     * The answer to a claim.
     *
     * @param waited true if one of its calls has waited for another attempt
     */
    private record Asked(Response answer, boolean waited) {}

    private Asked ask(ClaimRequest request) throws Failed, InterruptedException {
        Duration wait = request.terms().waiting();
        long start = System.nanoTime();
        Duration rest = wait;
        boolean waited = false;
        while (true) {
            Duration part = rest.compareTo(WAIT_MAX) < 0 ? rest : WAIT_MAX;
            Duration within = context.options().claimWithin;
            var plan =
                    new Plan(
                            context.rounds().first(), within, true, late -> abandon(request, late));
            Response answer = context.rounds().run(request.call(part), plan);
            waited |= answer.hasWaited();
            rest = wait.minusNanos(System.nanoTime() - start);
            if (answer.status() != 409
                    || !"in_progress".equals(answer.text("state"))
                    || rest.compareTo(WAIT_MIN) < 0) {
                return new Asked(answer, waited);
            }
            Duration pause = Pauses.after(answer, part);
            Pauses.sleep(pause.compareTo(rest) < 0 ? pause : rest, true);
            rest = wait.minusNanos(System.nanoTime() - start);
            if (rest.compareTo(WAIT_MIN) < 0) {
                return new Asked(answer, waited);
            }
        }
    }

    /**
     * Reads the answer to a claim call; throws {@link Rejected} on any other. A grant is not
     * renewed before it is started.
     */
    Claimed read(ClaimRequest request, Response answer) {
        String code = answer.text("code");
        String id =
                answer.text("global_id") == null ? request.globalId() : answer.text("global_id");
        if (answer.status() == 201) {
            var grant = new Grant(context, reporter, request, answer);
            grant.granted();
            return grant;
        }
        if (answer.status() == 409 && answer.text("state") != null) {
            context.events().send("duplicate", request.subject(), "state", answer.text("state"));
            return new Duplicate<>(answer, id, context.options().resultReader, null, false);
        }
        if (answer.status() == 422 && code.endsWith("_mismatch")) {
            context.events().send("mismatch", request.subject(), "code", code);
            return new Mismatch<>(code, id);
        }
        throw new Rejected(answer);
    }

    private Grant proceed(ClaimRequest request, OncegateException error, boolean uncertain) {
        if (!(error instanceof Unavailable unavailable)) {
            if (uncertain) {
                lost.giveBack(request);
            }
            throw error;
        }
        boolean proceeds = context.options().onUnavailable == OnUnavailable.PROCEED;
        context.events()
                .send(
                        proceeds ? "proceeded" : "unavailable",
                        request.subject(),
                        "causes",
                        unavailable.causes());
        if (!proceeds) {
            if (uncertain) {
                lost.giveBack(request);
            }
            throw unavailable;
        }
        // The event says that nothing was granted.
        return new Grant(context, reporter, request, null);
    }

    /** Releases a grant that crossed the caller's cancellation, or whose answer never came. */
    private void abandon(ClaimRequest request, Response answer) {
        if (answer == null || (!answer.isFinal() && Cause.of("", answer).mayHaveActed())) {
            lost.giveBack(request);
        } else if (answer.status() == 201) {
            context.background()
                    .run(
                            () -> {
                                var grant = new Grant(context, reporter, request, answer);
                                grant.granted();
                                release(grant);
                            });
        }
    }

    static void release(Grant grant) {
        try {
            grant.fail();
        } catch (OncegateException unreported) {
            // An event reports it; the claim ends with its lease.
        }
    }
}
