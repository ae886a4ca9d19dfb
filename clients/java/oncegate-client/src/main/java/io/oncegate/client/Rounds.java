package io.oncegate.client;

import io.oncegate.client.Cause.Kind;
import io.oncegate.client.Transport.NoAnswer;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.Consumer;

/**
 * Repeats a call at one gateway after the other until one has answered: the rules of a call in the
 * README of the clients.
 */
final class Rounds {
    private static final long PAUSE_MS = 50;
    private static final long PAUSE_MAX_MS = 1000;

    /** Least time for a try after the time is over: the first round is always completed. */
    private static final long TRY_MIN_NANOS = Duration.ofMillis(250).toNanos();

    private final Transport transport;
    private final Options options;
    private final Events events;

    /**
     * The gateway that answered last is called first. So a gateway that is down costs one timeout,
     * not one for each call.
     */
    private volatile int first;

    Rounds(Transport transport, Options options, Events events) {
        this.transport = transport;
        this.options = options;
        this.events = events;
    }

    Transport transport() {
        return transport;
    }

    int first() {
        return first;
    }

    /**
     * The tries of one call.
     *
     * @param from the gateway to begin with
     * @param within the limit of all tries
     * @param interruptible false: an interrupt is remembered, and the call continues
     * @param abandoned receives, after an interrupt, the answer that still arrives, or null if none
     *     does; not called if no try may have had an effect
     */
    record Plan(int from, Duration within, boolean interruptible, Consumer<Response> abandoned) {}

    /** No gateway answered: {@code uncertain} is true if one may have acted on the call. */
    static final class Failed extends Exception {
        final transient Map<Integer, Cause> causes;
        final boolean uncertain;

        /** The last answer, if it was 429. */
        final transient Response quota;

        Failed(Map<Integer, Cause> causes, boolean uncertain, Response quota) {
            super(null, null, false, false);
            this.causes = causes;
            this.uncertain = uncertain;
            this.quota = quota;
        }

        OncegateException error() {
            return quota != null
                    ? new Rejected(quota)
                    : new Unavailable(causes.values(), uncertain);
        }
    }

    /** Returns the first final answer. */
    Response run(Call call, Plan plan) throws Failed, InterruptedException {
        int count = transport.gateways();
        var tries = new Tries(System.nanoTime() + plan.within.toNanos());
        for (int round = 1; ; round++) {
            long shortest = Long.MAX_VALUE;
            long pause = 0;
            for (int member = 0; member < count; member++) {
                int gateway = (plan.from + member) % count;
                Response answer = attempt(call, plan, gateway, tries);
                if (answer != null && answer.isFinal()) {
                    first = gateway;
                    return answer;
                }
                boolean says = answer != null && answer.number("retry_after_ms") != null;
                shortest = says ? Math.min(shortest, answer.retryAfter().toMillis()) : 0;
                if (tries.quota != null) {
                    pause = tries.quota.retryAfter().toMillis();
                    if (member + 1 < count) {
                        rest(pause, plan, tries);
                    }
                }
            }
            long most = Math.min(PAUSE_MAX_MS, PAUSE_MS << Math.min(round, 10));
            // Full jitter: callers that failed together do not come back together.
            long jitter = ThreadLocalRandom.current().nextLong(most + 1);
            rest(
                    Math.max(jitter, Math.max(pause, shortest == Long.MAX_VALUE ? 0 : shortest)),
                    plan,
                    tries);
        }
    }

    /**
     * Sends the call once to each gateway at most, within the time; for renewals, which have their
     * own rhythm.
     */
    Response once(Call call, Plan plan) throws Failed, InterruptedException {
        int count = transport.gateways();
        var tries = new Tries(System.nanoTime() + plan.within.toNanos());
        tries.least = 1_000_000;
        for (int member = 0; member < count && System.nanoTime() < tries.ends; member++) {
            Response answer = attempt(call, plan, (plan.from + member) % count, tries);
            if (answer != null && answer.isFinal()) {
                return answer;
            }
        }
        throw new Failed(tries.causes, tries.uncertain, tries.quota);
    }

    /** Results of the tries of one call so far. */
    private static final class Tries {
        final Map<Integer, Cause> causes = new LinkedHashMap<>();
        boolean resent;
        boolean uncertain;
        Response quota;
        long least = TRY_MIN_NANOS;

        /** Time that the call asked to wait for is not counted. */
        long ends;

        Tries(long ends) {
            this.ends = ends;
        }
    }

    /**
     * Sends the call to one gateway, twice if its connection broke for the first time. Returns null
     * without an answer.
     */
    private Response attempt(Call call, Plan plan, int gateway, Tries tries)
            throws InterruptedException {
        while (true) {
            long timeout = options.timeout.toNanos();
            long left = Math.max(tries.ends - System.nanoTime(), Math.min(timeout, tries.least));
            long nanos = Math.min(left, timeout) + call.waits().toNanos();
            tries.quota = null;
            long start = System.nanoTime();
            try {
                Response answer =
                        transport.send(call, gateway, nanos, plan.interruptible, plan.abandoned);
                if (answer.isFinal()) {
                    return answer;
                }
                String url = options.urls.get(gateway);
                failed(call, gateway, Cause.of(url, answer), tries);
                tries.quota = answer.status() == 429 ? answer : null;
                return answer;
            } catch (NoAnswer none) {
                Kind kind = none.why.kind();
                // A try that was cut short adds no information.
                boolean cut =
                        kind == Kind.TIMEOUT && left < timeout && tries.causes.containsKey(gateway);
                failed(call, gateway, cut ? tries.causes.get(gateway) : none.why, tries);
                if (kind != Kind.CONNECTION || tries.resent) {
                    return null;
                }
                // Most likely a kept connection that the gateway had closed. The nonce or the
                // attempt in the call is recognised.
                tries.resent = true;
            } finally {
                tries.ends += Math.min(System.nanoTime() - start, call.waits().toNanos());
            }
        }
    }

    private void failed(Call call, int gateway, Cause cause, Tries tries) {
        tries.causes.put(gateway, cause);
        tries.uncertain |= cause.mayHaveActed();
        events.send("retry", call.subject(), "cause", cause);
    }

    private static void rest(long millis, Plan plan, Tries tries)
            throws Failed, InterruptedException {
        if (System.nanoTime() + millis * 1_000_000 >= tries.ends) {
            throw new Failed(tries.causes, tries.uncertain, tries.quota);
        }
        try {
            Pauses.sleep(Duration.ofMillis(millis), plan.interruptible);
        } catch (InterruptedException interrupted) {
            if (tries.uncertain) {
                plan.abandoned.accept(null);
            }
            throw interrupted;
        }
    }
}
