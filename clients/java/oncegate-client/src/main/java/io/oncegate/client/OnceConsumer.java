package io.oncegate.client;

import java.time.Duration;
import java.util.concurrent.Callable;
import java.util.function.Consumer;
import java.util.function.Function;

/**
 * Handles each message once. It derives the contents (never the id of a delivery: the same payout
 * sent again has another), runs {@link OncegateClient#once}, and returns a {@link Decision} that a
 * thin adapter for each broker carries out.
 *
 * @param <M> the type of a message
 */
public final class OnceConsumer<M> {
    private final OncegateClient client;
    private final String operation;
    private final Function<M, ?> contents;
    private Terms terms = Terms.NONE;
    private int maxFailures = 3;
    private Duration redeliverAfter = Duration.ofSeconds(5);
    private Consumer<String> keepReport;

    /** A consumer that derives contents so. */
    public OnceConsumer(OncegateClient client, String operation, Function<M, ?> contents) {
        // The transaction of a broker around a listener looks the same as one of a database.
        this.client = client.with(options -> options.insideTransaction(() -> false));
        this.operation = operation;
        this.contents = contents;
    }

    /** Sets the terms of each claim. */
    public OnceConsumer<M> terms(Terms terms) {
        this.terms = terms;
        return this;
    }

    /**
     * Sets after how many runs that ended with {@link NothingHappened} a message is poison; 3 by
     * default.
     */
    public OnceConsumer<M> maxFailures(int maxFailures) {
        this.maxFailures = maxFailures;
        return this;
    }

    /** Sets the delay of redeliveries for which the answer gives none; 5 s by default. */
    public OnceConsumer<M> redeliverAfter(Duration delay) {
        redeliverAfter = delay;
        return this;
    }

    /**
     * Sets an outbox for reports that no gateway accepted. The message is acknowledged then; a job
     * passes them to {@link OncegateClient#settle}.
     */
    public OnceConsumer<M> keepReport(Consumer<String> outbox) {
        keepReport = outbox;
        return this;
    }

    /**
     * Handles a message.
     *
     * @param failures earlier runs of this message that ended with {@link NothingHappened}
     * @throws InterruptedException if the consumer is being stopped: do not acknowledge
     */
    public Decision handle(M message, int failures, Callable<?> work) throws InterruptedException {
        Decision decision = decide(message, failures, work);
        boolean delays = decision.kind() == Decision.Kind.REDELIVER && decision.delay() == null;
        return delays
                ? new Decision(decision.kind(), redeliverAfter, decision.reason(), decision.error())
                : decision;
    }

    private Decision decide(M message, int failures, Callable<?> work) throws InterruptedException {
        Object derived;
        try {
            derived = contents.apply(message);
        } catch (RuntimeException wrong) {
            return Decision.of(new ContentsNotDerived(wrong), failures, maxFailures, false);
        }
        try {
            return Decision.of(client.once(operation, derived, terms, grant -> work.call()));
        } catch (InterruptedException stopped) {
            throw stopped;
        } catch (NotSettled unsettled) {
            return Decision.of(unsettled, failures, maxFailures, isKept(unsettled.report()));
        } catch (Exception error) {
            return Decision.of(error, failures, maxFailures, false);
        }
    }

    private boolean isKept(String report) {
        if (keepReport != null) {
            keepReport.accept(report);
        }
        return keepReport != null;
    }
}
