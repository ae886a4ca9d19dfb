package io.oncegate.client;

import io.oncegate.client.Rounds.Failed;
import io.oncegate.client.Rounds.Plan;
import java.lang.reflect.Type;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Future;
import java.util.function.Function;
import java.util.function.UnaryOperator;

/**
 * A client of the gateway. Safe to use from many threads; make one and keep it.
 *
 * <pre>{@code
 * var client = new OncegateClient(new Options("http://127.0.0.1:8080"));
 * var result = client.once("seat.book", Map.of("seat", "12A"), grant -> book(seat, grant.fence()));
 * }</pre>
 */
public final class OncegateClient implements AutoCloseable {
    private static final System.Logger LOG = System.getLogger("io.oncegate.client");

    private final Context context;
    private final Reporter reporter;
    private final Claiming claiming;
    private final Batches batches;
    private final ThreadHolds holds;

    /** A client with these options; it connects when it is used. */
    public OncegateClient(Options options) {
        this(options, new Background(), new Transport(options));
        if (!options.enabled) {
            LOG.log(
                    System.Logger.Level.WARNING,
                    "Oncegate is switched off: all work runs, and nothing is claimed");
        }
    }

    private OncegateClient(Options options, Background background, Transport transport) {
        var events = new Events(options.onEvent);
        var rounds = new Rounds(transport, options, events);
        context = new Context(options, events, rounds, background, appOf(options.credential));
        reporter = new Reporter(context);
        claiming = new Claiming(context, reporter);
        batches = new Batches(context, reporter, claiming);
        holds = new ThreadHolds(new Locking(context));
    }

    /** Returns the app of a credential; {@code default} without one. */
    public static String appOf(String credential) {
        return credential == null
                ? "default"
                : credential.substring(0, credential.lastIndexOf('.'));
    }

    /**
     * Returns a client with other options, on the same connections and threads: to close one closes
     * both. URLs and the credential stay.
     */
    public OncegateClient with(UnaryOperator<Options> change) {
        Options changed = change.apply(context.options());
        boolean sameCredential = Objects.equals(changed.credential, context.options().credential);
        if (!sameCredential || !changed.urls.equals(context.options().urls)) {
            throw new IllegalArgumentException(
                    "URLs and the credential cannot be changed; make another client");
        }
        return new OncegateClient(changed, context.background(), context.rounds().transport());
    }

    /** Returns true unless the client is switched off. */
    public boolean isEnabled() {
        return context.options().enabled;
    }

    /** Sends an event to the client's hooks. */
    public void send(Event event) {
        context.events().send(event);
    }

    /** Runs the task on a daemon thread of the client after a delay. Returns what cancels it. */
    public Runnable later(Duration delay, Runnable task) {
        Future<?> scheduled = context.background().after(delay.toNanos(), task);
        return scheduled == null ? () -> {} : () -> scheduled.cancel(false);
    }

    /** Runs the work unless the operation is a duplicate, with the operator's terms. */
    public <T, E extends Exception> Result<T> once(
            String operation, Object contents, Work<T, E> work) throws E, InterruptedException {
        return once(operation, contents, Terms.NONE, work);
    }

    /**
     * Claims the operation, renews the claim while the work runs, and reports the outcome until it
     * is accepted.
     *
     * <p>If the work throws {@link NothingHappened}, the operation is released. Anything else may
     * have come after the effect, so its outcome is {@code unknown}. Both are thrown again.
     *
     * <p>Work that returns a future, stream, iterator or publisher has not ended: its outcome is
     * {@code unknown}, and the call throws {@link IllegalStateException}.
     *
     * @throws Unavailable if no gateway answered; the work was not started
     * @throws OutcomeRefused if the outcome was refused: after a success, perhaps done twice
     * @throws NotSettled if no gateway accepted the outcome
     * @throws InterruptedException if the thread was interrupted before the work; a grant that
     *     crosses it is released
     */
    public <T, E extends Exception> Result<T> once(
            String operation, Object contents, Terms terms, Work<T, E> work)
            throws E, InterruptedException {
        return once(operation, contents, terms, null, work);
    }

    /**
     * Does the same; the result of a duplicate is read as this type.
     *
     * @param type the type of the result, such as {@code Receipt.class}; null: plain JSON values
     */
    public <T, E extends Exception> Result<T> once(
            String operation, Object contents, Terms terms, Type type, Work<T, E> work)
            throws E, InterruptedException {
        requireWork(work);
        Claimed claimed = claim(operation, contents, terms);
        if (claimed instanceof Duplicate<?> duplicate) {
            return duplicate.of(type);
        }
        if (claimed instanceof Mismatch<?> mismatch) {
            return mismatch.as();
        }
        var grant = (Grant) claimed;
        // It is renewed until its outcome is reported.
        try {
            T result;
            try {
                result = Traces.within(grant.trace(), false, trace -> work.run(grant));
            } catch (Throwable thrown) {
                grant.end(thrown);
                throw thrown;
            }
            if (EndsLater.is(result)) {
                var ends = EndsLater.error(result);
                grant.end(ends);
                throw ends;
            }
            return grant.done(result);
        } finally {
            grant.stop();
        }
    }

    /**
     * Does the same for work that ends later: the outcome is reported when the stage completes. To
     * cancel the future before the grant releases it; later it cancels the stage, and the outcome
     * is {@code unknown}.
     */
    public <T> CompletableFuture<Result<T>> onceAsync(
            String operation,
            Object contents,
            Terms terms,
            Function<Grant, ? extends CompletionStage<T>> work) {
        requireWork(work);
        refuseTransaction();
        return new AsyncRun<>(() -> claim(operation, contents, terms), context, work).start();
    }

    private static void requireWork(Object work) {
        if (work == null) {
            throw new IllegalArgumentException("There is no work; write grant -> …");
        }
    }

    private void refuseTransaction() {
        if (context.options().insideTransaction.getAsBoolean()) {
            throw new IllegalStateException(
                    "The call is inside a transaction: a success reported before the commit would"
                            + " stay after a rollback. Call it outside, and begin the transaction"
                            + " in the work");
        }
    }

    /** Claims the operation. Settle or close a {@link Grant}: it is renewed until then. */
    public Claimed claim(String operation, Object contents, Terms terms)
            throws InterruptedException {
        refuseTransaction();
        ClaimRequest request = ClaimRequest.of(context, operation, contents, terms);
        Claimed claimed =
                Traces.<Claimed, RuntimeException>call(
                        "oncegate claim",
                        operation,
                        trace -> {
                            Claimed answer = claiming.claim(request);
                            note(trace, answer);
                            return answer;
                        });
        if (claimed instanceof Grant grant) {
            grant.trace(Traces.run(operation));
        }
        return claimed;
    }

    private static void note(Trace trace, Claimed answer) {
        if (answer instanceof Grant grant) {
            trace.says("granted", false, grant.degraded());
        } else if (answer instanceof Duplicate<?> duplicate) {
            trace.says(duplicate.state(), duplicate.isSucceeded(), duplicate.degraded());
        } else {
            trace.says("mismatch", null, null);
        }
    }

    /**
     * Reports what {@link NotSettled#report} kept, until it is accepted. Safe to repeat.
     *
     * @throws IllegalArgumentException if the text is not a report
     */
    public Settled settle(String report) {
        Report parsed = Report.parse(report);
        Object result = parsed.result() == null ? null : Json.read(parsed.result().text());
        return reporter.send(parsed, result, null);
    }

    /**
     * Returns the record of an operation, for people and reports; empty if there is none. It lets
     * no one go ahead: another attempt may claim right after it.
     */
    public Optional<Map<String, Object>> lookup(String globalId) throws InterruptedException {
        if (!globalId.matches("[0-9a-f]{32}")) {
            throw new IllegalArgumentException(
                    "Not a global ID: \"" + globalId + "\"; it has 32 hex digits");
        }
        var subject = new Subject(null, globalId);
        Response answer =
                run(new Call("/v1/claims/" + globalId, null, "global_id", Duration.ZERO, subject));
        if (answer.status() == 404) {
            return Optional.empty();
        }
        if (answer.status() != 200) {
            throw new Rejected(answer);
        }
        return Optional.of(answer.fields());
    }

    /**
     * Claims up to 1000 operations in one call. Not atomic: look at each item. Items that were not
     * done are sent again.
     */
    public List<BatchItem<Claimed>> claimBatch(List<ClaimItem> items) throws InterruptedException {
        return batches.claim(items);
    }

    /**
     * Reports up to 1000 outcomes, of live grants or kept reports, in one call. An item that no
     * gateway accepts is {@link NotSettled}, with its report.
     */
    public List<BatchItem<Settled>> settleBatch(List<OutcomeItem> outcomes)
            throws InterruptedException {
        return batches.settle(outcomes);
    }

    /** Returns the global ID of an operation of this client's app, computed without a gateway. */
    public String globalId(String operation, Object contents) {
        return Contents.globalId(context.app(), operation, contents);
    }

    /**
     * Returns an exclusive lock: a {@link java.util.concurrent.locks.Lock} held by threads across
     * processes.
     */
    public OncegateLock lock(String name) {
        return lock(name, LockTerms.EXCLUSIVE);
    }

    /** Returns a lock with these terms. */
    public OncegateLock lock(String name, LockTerms terms) {
        return new OncegateLock(holds, name, terms);
    }

    /** Returns a read lock and a write lock of the same name. */
    public OncegateReadWriteLock readWriteLock(String name) {
        return readWriteLock(name, LockTerms.EXCLUSIVE);
    }

    /**
     * Returns a read lock and a write lock of the same name, with the lease and fairness of these
     * terms.
     */
    public OncegateReadWriteLock readWriteLock(String name, LockTerms terms) {
        return new OncegateReadWriteLock(holds, name, terms);
    }

    /** Ends renewals in the background. Reports in progress are finished. */
    @Override
    public void close() {
        context.background().close();
    }

    private Response run(Call call) throws InterruptedException {
        try {
            var plan =
                    new Plan(
                            context.rounds().first(),
                            context.options().claimWithin,
                            true,
                            late -> {});
            return context.rounds().run(call, plan);
        } catch (Failed failed) {
            throw failed.error();
        }
    }
}
