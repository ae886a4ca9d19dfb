package io.oncegate.client.http;

import io.oncegate.client.OnUnavailable;
import io.oncegate.client.OncegateClient;
import io.oncegate.client.Terms;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashSet;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Predicate;

/**
 * Rules for requests with an {@code Idempotency-Key}. Each method returns a changed copy; a wrong
 * value fails at once.
 *
 * <pre>{@code
 * new Idempotency<HttpServletRequest>(client, "seat.book").principal(HttpServletRequest::getRemoteUser)
 * }</pre>
 *
 * @param <R> the framework's request
 */
public final class Idempotency<R> {
    static final List<String> STORE = List.of("2xx", "301", "302", "303", "4xx");
    static final List<String> RELEASE =
            List.of("307", "308", "401", "403", "405", "407", "408", "413", "421", "425", "429");
    private static final Duration WAIT_MAX = Duration.ofHours(1);
    private static final Set<String> SAFE =
            Set.of("GET", "HEAD", "OPTIONS", "TRACE", "CONNECT", "QUERY");

    final OncegateClient client;
    final String operation;
    Function<R, String> principal;
    boolean sharedKeys;
    Set<String> methods;
    Predicate<R> when = request -> true;
    boolean required;
    Set<FingerprintPart> fingerprint = EnumSet.complementOf(EnumSet.of(FingerprintPart.BODY_JSON));
    List<String> store = STORE;
    List<String> release = RELEASE;
    On5xx on5xx = On5xx.UNKNOWN;
    Predicate<Throwable> releaseOn = thrown -> false;
    // A run that is killed, or whose outcome no gateway takes in time, may have had its effect.
    Terms terms = Terms.NONE.unknownOnLeaseEnd();
    int bodyBytes = 1024 * 1024;
    int responseBytes = 45 * 1024;
    Set<String> storeWith = Set.of();
    Set<String> storeWithout = Set.of();
    boolean storePrivate;
    Duration exchangeMax = Duration.ofMinutes(5);
    Duration claimWithin;
    Duration settleWithin;
    boolean stopWhenGone;
    Function<Problem, Reply> render = Problem::reply;
    OnUnavailable onUnavailable;
    boolean observe;
    boolean enabled = true;

    /**
     * Rules for an operation. Set {@link #principal} too.
     *
     * @param operation the kind of operation, such as {@code seat.book}; services must not share it
     */
    public Idempotency(OncegateClient client, String operation) {
        this.client = Objects.requireNonNull(client, "client");
        if (operation == null || operation.isBlank()) {
            throw new IllegalArgumentException(
                    "operation has no name; write one such as \"seat.book\"");
        }
        this.operation = operation;
    }

    private Idempotency(Idempotency<R> other) {
        client = other.client;
        operation = other.operation;
        principal = other.principal;
        sharedKeys = other.sharedKeys;
        methods = other.methods;
        when = other.when;
        required = other.required;
        fingerprint = other.fingerprint;
        store = other.store;
        release = other.release;
        on5xx = other.on5xx;
        releaseOn = other.releaseOn;
        terms = other.terms;
        bodyBytes = other.bodyBytes;
        responseBytes = other.responseBytes;
        storeWith = other.storeWith;
        storeWithout = other.storeWithout;
        storePrivate = other.storePrivate;
        exchangeMax = other.exchangeMax;
        claimWithin = other.claimWithin;
        settleWithin = other.settleWithin;
        stopWhenGone = other.stopWhenGone;
        render = other.render;
        onUnavailable = other.onUnavailable;
        observe = other.observe;
        enabled = other.enabled;
    }

    private Idempotency<R> with(Consumer<Idempotency<R>> change) {
        var copy = new Idempotency<>(this);
        change.accept(copy);
        return copy;
    }

    /**
     * Sets what makes two callers different, such as the user name. It is called where the filter
     * stands: put the filter behind the authentication. Null or empty: the request is refused.
     */
    public Idempotency<R> principal(Function<R, String> principal) {
        return with(copy -> copy.principal = Objects.requireNonNull(principal, "principal"));
    }

    /** Says that all callers share their keys; without it a principal is required. */
    public Idempotency<R> sharedKeys() {
        return with(copy -> copy.sharedKeys = true);
    }

    /** Protects only these methods; by default all but the safe ones. */
    public Idempotency<R> methods(String... methods) {
        if (methods.length == 0) {
            throw new IllegalArgumentException(
                    "methods is empty, so nothing is protected; name one, such as POST");
        }
        for (String method : methods) {
            if (SAFE.contains(method)) {
                throw new IllegalArgumentException(
                        "methods has " + method + ", which has no effect to protect; leave it out");
            }
            if (!method.matches("[A-Z][A-Z-]*")) {
                throw new IllegalArgumentException(
                        "methods has \"" + method + "\"; write methods in capitals, such as POST");
            }
        }
        return with(copy -> copy.methods = Set.of(methods));
    }

    /** Protects only requests for which this is true. */
    public Idempotency<R> when(Predicate<R> when) {
        return with(copy -> copy.when = Objects.requireNonNull(when, "when"));
    }

    /** Refuses requests without a key. */
    public Idempotency<R> required() {
        return with(copy -> copy.required = true);
    }

    /** Sets the parts of a request that must be the same on a repeat. */
    public Idempotency<R> fingerprint(FingerprintPart... parts) {
        if (parts.length == 0) {
            throw new IllegalArgumentException("fingerprint is empty; name a part, such as BODY");
        }
        Set<FingerprintPart> chosen = EnumSet.copyOf(List.of(parts));
        if (chosen.containsAll(Set.of(FingerprintPart.BODY, FingerprintPart.BODY_JSON))) {
            throw new IllegalArgumentException("fingerprint has BODY and BODY_JSON; write one");
        }
        return with(copy -> copy.fingerprint = chosen);
    }

    /**
     * Sets the statuses whose responses are stored, such as {@code 2xx} and {@code 404}. A status
     * that one list names leaves the default of the other.
     */
    public Idempotency<R> store(String... statuses) {
        List<String> rules = StatusRules.checked("store", List.of(statuses));
        return with(copy -> copy.store = rules);
    }

    /** Sets the statuses of responses without an effect: the key is free again. */
    public Idempotency<R> release(String... statuses) {
        List<String> rules = StatusRules.checked("release", List.of(statuses));
        return with(copy -> copy.release = rules);
    }

    /** Sets the meaning of a 5xx response. */
    public Idempotency<R> on5xx(On5xx meaning) {
        return with(copy -> copy.on5xx = Objects.requireNonNull(meaning, "on5xx"));
    }

    /**
     * Sets errors of the handler that had no effect, subclasses included: the key is released, and
     * the error is answered as ever.
     */
    @SafeVarargs
    public final Idempotency<R> releaseOn(Class<? extends Throwable>... errors) {
        List<Class<? extends Throwable>> types = new ArrayList<>();
        for (Class<? extends Throwable> error : errors) {
            types.add(error);
        }
        return releaseOn(thrown -> types.stream().anyMatch(type -> type.isInstance(thrown)));
    }

    /** Sets which errors of the handler had no effect. */
    public Idempotency<R> releaseOn(Predicate<Throwable> errors) {
        return with(copy -> copy.releaseOn = Objects.requireNonNull(errors, "releaseOn"));
    }

    /** Sets the lease of a claim, such as {@code 30s}. It is renewed while the handler runs. */
    public Idempotency<R> lease(String lease) {
        return with(copy -> copy.terms = terms.lease(lease));
    }

    /** Sets the lease of a claim. */
    public Idempotency<R> lease(Duration lease) {
        return with(copy -> copy.terms = terms.lease(lease));
    }

    /** Sets the time for which a key blocks, such as {@code 24h}. */
    public Idempotency<R> retention(String retention) {
        return with(copy -> copy.terms = terms.retention(retention));
    }

    /** Sets the time that a repeat waits for a first request that still runs; at most an hour. */
    public Idempotency<R> waitFor(Duration wait) {
        if (wait.compareTo(WAIT_MAX) > 0) {
            throw new IllegalArgumentException("waitFor is " + wait + ": at most an hour");
        }
        return with(copy -> copy.terms = terms.waitFor(wait));
    }

    /** Sets the longest body of a request with a key, 1 MiB by default; longer: 413. */
    public Idempotency<R> bodyBytes(int bytes) {
        return with(copy -> copy.bodyBytes = positive("bodyBytes", bytes));
    }

    /** Sets the longest body of a response that is stored, 45 KiB by default. */
    public Idempotency<R> responseBytes(int bytes) {
        return with(copy -> copy.responseBytes = positive("responseBytes", bytes));
    }

    /** Stores these fields of a response too, such as {@code Set-Cookie}. */
    public Idempotency<R> storeWith(String... names) {
        for (String name : names) {
            String why = Fields.notStorable(name);
            if (why != null) {
                throw new IllegalArgumentException(
                        "storeWith has \"" + name + "\", " + why + "; leave it out");
            }
        }
        return with(copy -> copy.storeWith = lower(names));
    }

    /** Does not store these fields of a response. */
    public Idempotency<R> storeWithout(String... names) {
        return with(copy -> copy.storeWithout = lower(names));
    }

    private static Set<String> lower(String... names) {
        return new HashSet<>(Arrays.stream(names).map(Fields::lower).toList());
    }

    /** Stores responses with {@code Cache-Control: no-store} too. */
    public Idempotency<R> storePrivate() {
        return with(copy -> copy.storePrivate = true);
    }

    /** Sets how long a claim is renewed, 5 minutes by default. */
    public Idempotency<R> exchangeMax(Duration most) {
        return with(copy -> copy.exchangeMax = positive("exchangeMax", most));
    }

    /** Sets the limit of all tries of a claim; by default the client's. */
    public Idempotency<R> claimWithin(Duration within) {
        return with(copy -> copy.claimWithin = positive("claimWithin", within));
    }

    /** Sets how long the end of a response waits for its report; by default the client's. */
    public Idempotency<R> settleWithin(Duration within) {
        return with(copy -> copy.settleWithin = positive("settleWithin", within));
    }

    /**
     * Lets a handler see a disconnected caller, as without the filter; its outcome is unknown then.
     */
    public Idempotency<R> stopWhenGone() {
        return with(copy -> copy.stopWhenGone = true);
    }

    /** Sets the form of refusals; by default a problem document. */
    public Idempotency<R> render(Function<Problem, Reply> render) {
        return with(copy -> copy.render = Objects.requireNonNull(render, "render"));
    }

    /** Sets what happens without a gateway; by default the client's choice. */
    public Idempotency<R> onUnavailable(OnUnavailable policy) {
        return with(copy -> copy.onUnavailable = policy);
    }

    /** Refuses and replays nothing, but counts what enforcing would refuse or replay. */
    public Idempotency<R> observe() {
        return with(copy -> copy.observe = true);
    }

    /** Switches it off: every request passes. {@code ONCEGATE_DISABLED=1} does the same. */
    public Idempotency<R> enabled(boolean enabled) {
        return with(copy -> copy.enabled = enabled);
    }

    boolean isProtected(String method, R request) {
        return (methods == null ? !SAFE.contains(method) : methods.contains(method))
                && when.test(request);
    }

    boolean isSafe(String method) {
        return SAFE.contains(method);
    }

    /** Checks what only the whole can tell. */
    void check() {
        if (principal == null && !sharedKeys) {
            throw new IllegalArgumentException(
                    "principal is not set: two callers could get each other's responses. Set"
                            + " principal(request -> …), or sharedKeys() if all callers are one");
        }
        List<String> both = StatusRules.both(store, release);
        if (!both.isEmpty()) {
            throw new IllegalArgumentException(
                    "store and release both have " + both + "; write each status once");
        }
    }

    private static int positive(String name, int value) {
        if (value <= 0) {
            throw new IllegalArgumentException(name + " must be more than zero");
        }
        return value;
    }

    private static Duration positive(String name, Duration value) {
        if (value == null || value.isZero() || value.isNegative()) {
            throw new IllegalArgumentException(
                    name + " must be longer than zero, such as Duration.ofSeconds(2)");
        }
        return value;
    }
}
