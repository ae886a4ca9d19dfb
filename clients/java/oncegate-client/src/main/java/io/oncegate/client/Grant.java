package io.oncegate.client;

import io.oncegate.client.Rounds.Failed;
import io.oncegate.client.Rounds.Plan;
import java.time.Duration;
import java.util.Locale;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;
import java.util.stream.Stream;

/**
 * The right to run one operation until its lease ends. It is renewed in the background until it is
 * settled or closed.
 */
public final class Grant implements Claimed, AutoCloseable {
    private final Context context;
    private final Reporter reporter;
    private final ClaimRequest request;

    /** Null if no gateway answered, and the caller's own policy is to proceed. */
    private final Response answer;

    private final Lease lease;
    private final CompletableFuture<Void> callerGone = new CompletableFuture<>();
    private final boolean disabled;
    private volatile Outcome marked;
    private volatile Settled settled;
    private volatile boolean reported;

    /** The span of the run, from the grant to the end of its report. */
    private volatile Trace trace = Trace.NONE;

    Grant(Context context, Reporter reporter, ClaimRequest request, Response answer) {
        this(context, reporter, request, answer, false);
    }

    private Grant(
            Context context,
            Reporter reporter,
            ClaimRequest request,
            Response answer,
            boolean disabled) {
        this.disabled = disabled;
        this.context = context;
        this.reporter = reporter;
        this.request = request;
        this.answer = answer;
        lease =
                holds()
                        ? new Lease(
                                context, renewal(null), answer.gateway(), answer.leaseEnd(), "lost")
                        : null;
    }

    /** Returns the grant of a client that is switched off: nothing is claimed or reported. */
    static Grant disabled(Context context, Reporter reporter, ClaimRequest request) {
        return new Grant(context, reporter, request, null, true);
    }

    /** Returns the ID of the operation. */
    public String globalId() {
        return answer == null ? request.globalId() : answer.text("global_id");
    }

    /**
     * Returns the proof of holding the claim, null if no gateway answered. Keep it like a secret.
     */
    public String attempt() {
        return answer == null ? null : answer.text("attempt");
    }

    /**
     * Returns a number that rises with every attempt at the operation, for the resource to compare;
     * null where the store has none.
     */
    public Long fence() {
        return answer == null ? null : answer.number("fence");
    }

    /**
     * Returns true if a repeat of the claim call found the claim that it had been granted already.
     */
    public boolean repeated() {
        return answer != null && answer.flag("repeated", false);
    }

    /** Returns true if it was taken over from an attempt with an unknown outcome. */
    public boolean takenOver() {
        return answer != null && answer.flag("taken_over", false);
    }

    /**
     * Returns the outage policy that granted it, {@code caller} if no gateway answered, {@code
     * disabled} if the client is switched off, or null.
     */
    public String degraded() {
        if (answer == null) {
            return disabled ? "disabled" : "caller";
        }
        return answer.text("degraded");
    }

    /** Returns in observe mode the answer that enforcing would have given, else null. */
    public String wouldBe() {
        return answer == null ? null : answer.text("would_be");
    }

    /**
     * Returns true while the lease lasts by this clock. Check it before an effect that cannot be
     * undone; only the fence closes the gap.
     */
    public boolean isLive() {
        return lease == null || lease.isLive();
    }

    /**
     * Returns the reason for the loss: {@code lease_lost}, {@code superseded}, {@code
     * already_succeeded}, {@code not_renewed}; null if it is not lost.
     */
    public String lost() {
        return lease == null ? null : lease.lost();
    }

    /** Calls the observer with the reason once the claim is lost. */
    public void onLost(Consumer<String> observer) {
        if (lease != null) {
            lease.onLost(observer);
        }
    }

    /**
     * Renews now, by the given lease (null: the claim's own). Returns false if the claim is lost.
     */
    public boolean renew(String lease) throws InterruptedException {
        return this.lease == null || this.lease.renewNow(renewal(lease));
    }

    /**
     * Marks the outcome that is reported when the work ends, independent of its result or
     * exception. In a request it overrides the status of the response.
     */
    public void mark(Outcome outcome) {
        marked = Objects.requireNonNull(outcome, "outcome");
    }

    /** Returns the outcome that the work has marked. */
    public Optional<Outcome> marked() {
        return Optional.ofNullable(marked);
    }

    /**
     * Returns a future that completes once the caller of the request is known to have disconnected.
     * The work continues: a repeat of the request gets its response.
     */
    public CompletableFuture<Void> callerGone() {
        return callerGone;
    }

    /** Ends the renewal in the background: without an outcome the claim ends with its lease. */
    public void stopRenewal() {
        stop();
    }

    /**
     * Reports that the work is finished and must never run again, also if the business answer is
     * "declined". Duplicates get the result.
     */
    public Settled succeed(Object result) {
        Reporter.Written written = reporter.write(result);
        return settle("success", result, written.text(), written.omitted(), null);
    }

    /** Reports success with this result, or with the other one if the gateway refuses it. */
    public Settled succeed(JsonText result, JsonText otherwise) {
        return settle("success", result, result, null, otherwise);
    }

    /** Reports that nothing happened: the operation is released at once. */
    public Settled fail() {
        return settle("failure", null, null, null, null);
    }

    /**
     * Reports that it is not known whether it happened. Repeats are stopped until a take-over or an
     * operator settles it.
     */
    public Settled giveUp() {
        return settle("unknown", null, null, null, null);
    }

    /** Ends the renewal, and reports {@code unknown} unless an outcome was reported. */
    @Override
    public void close() {
        if (!reported) {
            giveUp();
        }
        stop();
    }

    /** Begins to renew; a lease that has ended already is lost. */
    void start() {
        if (lease != null) {
            lease.start();
        }
    }

    /** Returns an error if the gateway granted another identity than this client computes. */
    Rejected identityDiffers() {
        return globalId().equals(request.globalId())
                ? null
                : Rejected.identityDiffers(globalId(), request.globalId());
    }

    void granted() {
        context.events()
                .send(
                        "granted",
                        request.subject(),
                        "repeated",
                        repeated(),
                        "taken_over",
                        takenOver(),
                        "degraded",
                        degraded(),
                        "would_be",
                        wouldBe());
    }

    void stop() {
        if (lease != null) {
            lease.stop();
        }
        trace.close();
    }

    Trace trace() {
        return trace;
    }

    void trace(Trace run) {
        run.says(null, false, degraded());
        trace = run;
    }

    /** Reports success, unless the work reported an outcome itself. */
    <T> Done<T> done(T result) {
        Settled end = reported ? settled : settleAs(marked, result);
        String degraded = degraded() != null || end == null ? degraded() : end.degraded();
        String state = end == null ? null : end.state();
        Boolean late = end == null ? null : end.late();
        return new Done<>(
                result,
                state,
                degraded,
                late,
                wouldBe(),
                end == null ? null : end.resultOmitted(),
                globalId());
    }

    private Settled settleAs(Outcome outcome, Object result) {
        if (outcome == Outcome.FAILURE) {
            return fail();
        }
        return outcome == Outcome.UNKNOWN ? giveUp() : succeed(result);
    }

    /** Returns true for an error of work that had no effect. */
    boolean isHarmless(Throwable thrown) {
        return thrown instanceof NothingHappened
                || Stream.concat(
                                request.terms().releaseOn().stream(),
                                context.options().releaseOn.stream())
                        .anyMatch(type -> type.isInstance(thrown));
    }

    /**
     * Reports the outcome of work that threw this, unless one was reported. The error of the work
     * is not hidden.
     */
    void end(Throwable thrown) {
        if (reported) {
            return;
        }
        try {
            Outcome otherwise = isHarmless(thrown) ? Outcome.FAILURE : Outcome.UNKNOWN;
            settleAs(marked == null ? otherwise : marked, null);
        } catch (OncegateException unreported) {
            thrown.addSuppressed(unreported);
        }
    }

    /**
     * A claim that is only observed, or was granted by the caller's own policy, has nothing to
     * renew or lose.
     */
    private boolean holds() {
        return answer != null && wouldBe() == null;
    }

    private Call renewal(String lease) {
        String more = lease == null ? "" : ",\"lease\":" + Json.write(lease);
        String body = "{\"attempt\":" + Json.write(attempt()) + more + "}";
        return Call.post("/v1/claims/" + globalId() + "/renewal", body, request.subject());
    }

    private Settled settle(
            String outcome, Object result, JsonText text, String omitted, JsonText otherwise) {
        if (reported) {
            throw new IllegalStateException(
                    "The outcome of this claim was reported already; report each claim once");
        }
        reported = true;
        if (lease != null) {
            lease.reporting();
        }
        try {
            return report(outcome, result, text, omitted, otherwise);
        } finally {
            stop();
        }
    }

    private Settled report(
            String outcome, Object result, JsonText text, String omitted, JsonText otherwise) {
        Response granted = answer == null && !disabled ? claimAgain() : answer;
        if (granted == null || granted.status() != 201) {
            // Nothing can be recorded. It is late if another attempt was found.
            settled = new Settled(null, granted == null ? null : true, null, omitted, globalId());
            return settled;
        }
        Report report = reportOf(granted, outcome, text);
        settled =
                otherwise == null
                        ? reporter.send(report, result, omitted)
                        : reporter.send(report, result, omitted, otherwise);
        return settled;
    }

    private Report reportOf(Response granted, String outcome, JsonText result) {
        return new Report(
                granted.text("global_id"),
                granted.text("attempt"),
                outcome,
                request.operation(),
                request.contents(),
                result,
                context.options().urls.get(granted.gateway()));
    }

    /** Returns the report of an outcome in a batch. */
    Report reportOf(Outcome outcome, JsonText result) {
        if (reported) {
            throw new IllegalStateException(
                    "The outcome of this claim was reported already; report each claim once");
        }
        if (answer == null) {
            throw new IllegalArgumentException("A batch of outcomes needs grants of a gateway");
        }
        return reportOf(answer, outcome.name().toLowerCase(Locale.ROOT), result);
    }

    boolean isDisabled() {
        return disabled;
    }

    /** Takes the end of a report in a batch; null if it was refused, or not accepted in time. */
    void reported(Settled end) {
        reported = true;
        settled = end;
        stop();
    }

    /**
     * Claims with the same nonce after unprotected work: if a gateway answers now, repeats are
     * stopped from here on.
     */
    private Response claimAgain() {
        try {
            var plan =
                    new Plan(
                            context.rounds().first(), context.options().timeout, false, late -> {});
            Response late = context.rounds().once(request.call(Duration.ZERO), plan);
            if (late.status() == 201) {
                new Grant(context, reporter, request, late).granted();
            } else if (late.status() == 409) {
                context.events().send("duplicate", request.subject(), "state", late.text("state"));
            } else {
                context.events().send("mismatch", request.subject(), "code", late.text("code"));
            }
            return late;
        } catch (Failed | InterruptedException none) {
            return null;
        }
    }
}
