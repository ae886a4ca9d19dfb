package io.oncegate.client.http;

import io.oncegate.client.Grant;
import io.oncegate.client.NothingHappened;
import io.oncegate.client.OncegateException;
import io.oncegate.client.Outcome;
import java.io.ByteArrayOutputStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/**
 * One run of a handler: it records the response, judges the outcome, and reports it. It keeps
 * copies: layers outside change what they are given.
 */
public final class Run {
    private static final System.Logger LOG = System.getLogger("io.oncegate.client");

    private final Idempotency<?> rules;
    private final Grant grant;
    private final Running running;

    /** Cancels the end of the renewal, which else keeps this run in memory until then. */
    private final Runnable cancelLimit;

    private final StatusRules statuses;
    private final ByteArrayOutputStream body = new ByteArrayOutputStream();
    private boolean tooLong;
    private int status;
    private List<Field> fields = List.of();
    private List<Field> trailers = List.of();

    /** Values that the handler sets in {@code Oncegate-Outcome}, line by line. */
    private final List<String> said = new ArrayList<>();

    private boolean harmless;
    private boolean ended;

    Run(Idempotency<?> rules, Grant grant, Running running, Runnable cancelLimit) {
        this.cancelLimit = cancelLimit;
        this.rules = rules;
        this.grant = grant;
        this.running = running;
        statuses = new StatusRules(rules.store, rules.release, rules.on5xx);
        running.began();
    }

    /** Returns the grant under which the handler runs. */
    public Grant grant() {
        return grant;
    }

    /** Returns the operation. */
    public String operation() {
        return rules.operation;
    }

    /**
     * Returns true for a field of the response that is never sent on; takes what its lines say.
     *
     * @param isAdded the lines leave those before them
     */
    public synchronized boolean takes(String name, List<String> lines, boolean isAdded) {
        if (!isOwn(name)) {
            return false;
        }
        if (name.equalsIgnoreCase(Fields.OUTCOME)) {
            if (!isAdded) {
                said.clear();
            }
            said.addAll(lines);
        }
        return true;
    }

    /** Returns true for a field that a handler cannot send, before or after the body. */
    public static boolean isOwn(String name) {
        return Fields.isOwn(name);
    }

    private Outcome outcome() {
        String text = String.join(", ", said).strip();
        for (Outcome each : Outcome.values()) {
            if (each.name().toLowerCase(Locale.ROOT).equals(text)) {
                return each;
            }
        }
        LOG.log(
                System.Logger.Level.WARNING,
                "{0}: Oncegate-Outcome is \"{1}\"; write success, failure or unknown. It counts as"
                        + " unknown",
                rules.operation,
                text);
        return Outcome.UNKNOWN;
    }

    /** Takes the head of the response while it is sent. */
    public synchronized void head(int status, List<Field> fields) {
        this.status = status;
        this.fields = List.copyOf(fields);
    }

    /** Takes a piece of the body. */
    public synchronized void body(byte[] bytes, int from, int length) {
        if (tooLong || body.size() + length > rules.responseBytes) {
            tooLong = true;
            body.reset();
        } else {
            body.write(bytes, from, length);
        }
    }

    /** Says that the body cannot be recorded. */
    public synchronized void bodyNotRecorded() {
        tooLong = true;
        body.reset();
    }

    /** Takes the fields after the body. */
    public synchronized void trailers(List<Field> trailers) {
        this.trailers = List.copyOf(trailers);
    }

    /** Forgets what the fields of the handler said: they were removed. */
    public synchronized void resetFields() {
        said.clear();
    }

    /** Forgets the response: another one takes its place. */
    public synchronized void reset() {
        body.reset();
        tooLong = false;
        trailers = List.of();
    }

    /** Takes an error of the handler, also one that the framework answers. */
    public synchronized void thrown(Throwable thrown) {
        harmless |= thrown instanceof NothingHappened || rules.releaseOn.test(thrown);
    }

    /** Reports the outcome of a complete response. What follows changes nothing. */
    public void complete() {
        end(true);
    }

    /** Reports the outcome of a response that broke off, or never came. */
    public void broken() {
        end(false);
    }

    /**
     * Reports the outcome of an error that a layer outside of the middleware has answered, such as
     * Spring Security. Its answer is the response, and is not stored.
     */
    public void answeredOutside(int status) {
        if (isRefusal(status)) {
            head(status, List.of());
            bodyNotRecorded();
            complete();
        } else {
            broken();
        }
    }

    /**
     * Returns true for a status that only an answer has. Servers give 5xx to errors that nobody
     * answers, and a redirect says nothing about the work.
     */
    public static boolean isRefusal(int status) {
        return status >= 400 && status < 500;
    }

    /** Runs the task after a delay, on a thread of the client. */
    public void later(Duration delay, Runnable task) {
        rules.client.later(delay, task);
    }

    /** Returns true once the outcome was reported. */
    public synchronized boolean hasEnded() {
        return ended;
    }

    private void end(boolean isComplete) {
        StoredResponse stored;
        Outcome outcome;
        synchronized (this) {
            if (ended) {
                return;
            }
            ended = true;
            outcome = judge(isComplete);
            stored = outcome == Outcome.SUCCESS ? stored(isComplete) : null;
        }
        try {
            report(outcome, stored);
        } catch (OncegateException unreported) {
            // An event reports it; the caller gets the response of the work.
            LOG.log(
                    System.Logger.Level.WARNING,
                    rules.operation + ": the outcome was not recorded",
                    unreported);
        } finally {
            cancelLimit.run();
            grant.stopRenewal();
            running.ended();
        }
    }

    private void report(Outcome outcome, StoredResponse stored) {
        switch (outcome) {
            case SUCCESS -> grant.succeed(stored.json(), stored.tombstone().json());
            case FAILURE -> grant.fail();
            case UNKNOWN -> grant.giveUp();
        }
    }

    private Outcome judge(boolean isComplete) {
        if (status != 0 && !said.isEmpty()) {
            Outcome outcome = outcome();
            // A success in the head is one of the whole response.
            return outcome == Outcome.SUCCESS && !isComplete ? Outcome.UNKNOWN : outcome;
        }
        if (grant.marked().isPresent()) {
            return grant.marked().get();
        }
        if (harmless) {
            return Outcome.FAILURE;
        }
        if (!isComplete) {
            return Outcome.UNKNOWN;
        }
        return switch (statuses.meaning(status)) {
            case STORE -> Outcome.SUCCESS;
            case RELEASE -> Outcome.FAILURE;
            case UNKNOWN -> Outcome.UNKNOWN;
        };
    }

    private StoredResponse stored(boolean isComplete) {
        long now = System.currentTimeMillis() / 1000;
        var head = Fields.stored(fields, rules.storeWith, rules.storeWithout);
        var rest = Fields.stored(trailers, rules.storeWith, rules.storeWithout);
        var stored = StoredResponse.of(status, now, head, rest, body.toByteArray());
        boolean isPrivate =
                !rules.storePrivate && Fields.hasDirective(fields, "Cache-Control", "no-store");
        return !isComplete || tooLong || isPrivate ? stored.tombstone() : stored;
    }
}
