package io.oncegate.client.http;

import io.oncegate.client.Claimed;
import io.oncegate.client.Duplicate;
import io.oncegate.client.Event;
import io.oncegate.client.Grant;
import io.oncegate.client.Mismatch;
import io.oncegate.client.OncegateClient;
import io.oncegate.client.OncegateException;
import io.oncegate.client.Options;
import io.oncegate.client.Rejected;
import io.oncegate.client.Terms;
import io.oncegate.client.Unavailable;
import io.oncegate.client.http.Answer.Answered;
import io.oncegate.client.http.Answer.Granted;
import io.oncegate.client.http.Answer.Keyed;
import io.oncegate.client.http.Answer.Pass;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/**
 * Steps of a request with a key, for the adapters of frameworks: {@link #enter}, then the body,
 * then {@link #claim}, then a {@link Run} that records the response.
 *
 * @param <R> the framework's request
 */
public final class Engine<R> {
    private static final System.Logger LOG = System.getLogger("io.oncegate.client");
    private static final Pattern WAIT = Pattern.compile("\"?([0-9]{1,9})\"?");

    /** The longest wait that a caller may ask for, unless the service itself waits longer. */
    private static final Duration WAIT_MAX = Duration.ofSeconds(20);

    private final Idempotency<R> rules;
    private final OncegateClient client;
    private final Running running = new Running();

    /** Checks the rules. */
    public Engine(Idempotency<R> rules) {
        rules.check();
        this.rules = rules;
        client = rules.client.with(this::options);
        if (!isEnabled()) {
            LOG.log(
                    System.Logger.Level.WARNING,
                    "The idempotency filter of {0} is switched off: every request passes",
                    rules.operation);
        }
    }

    private Options options(Options options) {
        Options own = options;
        own = rules.claimWithin == null ? own : own.claimWithin(rules.claimWithin);
        own = rules.settleWithin == null ? own : own.settleWithin(rules.settleWithin);
        return rules.onUnavailable == null ? own : own.onUnavailable(rules.onUnavailable);
    }

    private boolean isEnabled() {
        return rules.enabled && client.isEnabled();
    }

    /** Decides by the head of a request. */
    public Answer enter(RequestHead head, R request) {
        if (!isEnabled()) {
            return Pass.ON;
        }
        List<String> lines = head.lines(IdempotencyKey.NAME);
        if (rules.isSafe(head.method())) {
            boolean isDoubtful =
                    !lines.isEmpty()
                            && Fingerprint.overridesMethod(head)
                            && rules.when.test(request);
            String detail =
                    "The request has a key and a safe method that a field overrides. Send it with"
                            + " the method that is meant.";
            return isDoubtful
                    ? refuse(Problem.of(400, "ambiguous_target", detail), "refused")
                    : Pass.ON;
        }
        if (!rules.isProtected(head.method(), request)) {
            if (!lines.isEmpty()) {
                count("unprotected");
            }
            return Pass.ON;
        }
        try {
            String key = IdempotencyKey.of(lines);
            if (key == null) {
                if (!rules.required) {
                    count("unprotected");
                    return Pass.ON;
                }
                throw IdempotencyKey.invalid(
                        IdempotencyKey.NAME
                                + " is required; send a fresh random value for each operation,"
                                + " such as a UUID.");
            }
            if (isConversation(head)) {
                String detail =
                        "A request with an Idempotency-Key cannot become a WebSocket or a gRPC"
                                + " call; send it without the key.";
                return refuse(Problem.of(501, "not_supported", detail), "refused");
            }
            return new Keyed(key);
        } catch (Problem.Refused refused) {
            return refuse(refused.problem, lines.isEmpty() ? "no_key" : "refused");
        }
    }

    /** Returns the principal of a request; null if keys are shared. What it throws is passed on. */
    public String principal(R request) {
        return rules.principal == null ? null : rules.principal.apply(request);
    }

    /** Returns the answer to a request without a principal; null if it has one. */
    public Answer withoutPrincipal(String principal) {
        boolean missing = !rules.sharedKeys && (principal == null || principal.isEmpty());
        String detail =
                "It is not known who calls: authenticate, then send the request with its key"
                        + " again.";
        return missing ? refuse(Problem.of(400, "principal_missing", detail), "refused") : null;
    }

    /** Returns the longest body of a request with a key. */
    public int bodyBytes() {
        return rules.bodyBytes;
    }

    /** Returns true if nothing is refused. */
    public boolean isObserving() {
        return rules.observe;
    }

    /** Returns true if a handler sees that its caller has disconnected. */
    public boolean isStoppedWhenGone() {
        return rules.stopWhenGone;
    }

    /** Refuses a request whose body cannot be taken. */
    public Answer refuse(Problem problem) {
        if (problem.status() == 500) {
            LOG.log(
                    System.Logger.Level.ERROR,
                    "{0}: {1}: {2}",
                    rules.operation,
                    problem.code(),
                    problem.detail());
        }
        return refuse(problem, "refused");
    }

    private Answer refuse(Problem problem, String result) {
        count(result);
        return rules.observe ? Pass.ON : new Answered(rules.render.apply(problem));
    }

    /** Claims a request by its key, principal and fingerprint. */
    public Answer claim(Keyed keyed, String principal, RequestHead head, byte[] body)
            throws InterruptedException {
        String who = principal == null ? "" : principal;
        byte[] digest = Fingerprint.sha256().digest(who.getBytes(StandardCharsets.UTF_8));
        var contents = Map.of("key", keyed.key(), "principal", Fingerprint.hex(digest));
        Terms terms = rules.terms.fingerprint(Fingerprint.of(rules.fingerprint, head, body));
        Duration preferred = preferredWait(head);
        if (preferred != null) {
            terms = preferred.isZero() ? terms.waitFor((String) null) : terms.waitFor(preferred);
        }
        if (rules.observe) {
            terms = terms.waitFor((String) null);
        }
        Claimed claimed;
        try {
            claimed = client.claim(rules.operation, contents, terms);
        } catch (OncegateException failed) {
            return unavailable(failed);
        }
        if (claimed instanceof Grant grant) {
            count("forwarded");
            Runnable cancel = client.later(rules.exchangeMax, grant::stopRenewal);
            return new Granted(new Run(rules, grant, running, cancel));
        }
        if (claimed instanceof Mismatch<?>) {
            String detail =
                    "This key was used with another request; send a fresh key for each operation.";
            return refuse(Problem.of(422, "fingerprint_mismatch", detail), "mismatch");
        }
        var duplicate = (Duplicate<?>) claimed;
        Answer repeated = repeat(duplicate);
        return preferred != null && duplicate.hasWaited() ? applied(repeated, preferred) : repeated;
    }

    /** Says that the repeat waited as its caller prefers (RFC 7240). */
    private static Answer applied(Answer answer, Duration wait) {
        if (!(answer instanceof Answered answered)) {
            return answer;
        }
        Reply reply = answered.reply();
        List<Field> fields = new ArrayList<>(reply.fields());
        fields.add(new Field("Preference-Applied", "wait=" + wait.toSeconds()));
        return new Answered(new Reply(reply.status(), fields, reply.body(), reply.trailers()));
    }

    private Answer repeat(Duplicate<?> duplicate) {
        if (duplicate.isInProgress()) {
            String detail = "The first request with this key is still running.";
            var problem = Problem.of(409, "duplicate", detail).state("in_progress");
            long after = duplicate.retryAfter().toMillis();
            return refuse(degraded(problem.retryAfter(after), duplicate), "in_progress");
        }
        if (!duplicate.isSucceeded()) {
            String detail =
                    "The outcome of the first request with this key is not known. It is not run"
                            + " again: look up its effect, or send a fresh key if a second effect"
                            + " does no harm.";
            var problem = Problem.of(409, "duplicate", detail).state("unknown");
            return refuse(degraded(problem, duplicate), "unknown");
        }
        StoredResponse stored = StoredResponse.read(duplicate.json());
        if (stored != null && stored.body() != null) {
            count("replayed");
            if (rules.observe) {
                return Pass.ON;
            }
            long now = System.currentTimeMillis() / 1000;
            Reply reply = stored.replay(now, rules.storeWith, rules.storeWithout);
            if (duplicate.degraded() != null) {
                reply.fields().add(new Field(Fields.DEGRADED, duplicate.degraded()));
            }
            return new Answered(reply);
        }
        String detail =
                "The first request with this key is done, but its response was not stored."
                        + " `response_status` is its status; `Location` and `ETag` are its own.";
        var problem = Problem.of(409, "response_not_stored", detail).state("succeeded");
        if (stored != null) {
            problem = problem.ofResponse(stored.status());
            for (Field field : stored.tombstone().fields()) {
                problem = problem.field(field.name(), field.value());
            }
        }
        return refuse(degraded(problem, duplicate), "not_stored");
    }

    private static Problem degraded(Problem problem, Duplicate<?> duplicate) {
        return duplicate.degraded() == null
                ? problem
                : problem.field("Oncegate-Degraded", duplicate.degraded());
    }

    private Answer unavailable(OncegateException failed) {
        boolean isQuota = failed instanceof Rejected rejected && rejected.status() == 429;
        if (!isQuota && !(failed instanceof Unavailable)) {
            // A mistake of this service, not of its caller.
            LOG.log(System.Logger.Level.ERROR, rules.operation + ": no claim", failed);
        }
        Problem problem = Problem.of(failed);
        return refuse(
                problem == null ? Problem.unavailable(false) : problem,
                isQuota ? "refused" : "unavailable");
    }

    /** Returns the wait that the caller prefers (RFC 7240); null without one. */
    private Duration preferredWait(RequestHead head) {
        for (String line : head.lines("Prefer")) {
            for (String preference : line.split(",")) {
                String[] pair = preference.split(";")[0].split("=", 2);
                if (pair.length == 2 && pair[0].strip().equalsIgnoreCase("wait")) {
                    Matcher seconds = WAIT.matcher(pair[1].strip());
                    return seconds.matches()
                            ? bounded(Duration.ofSeconds(Integer.parseInt(seconds.group(1))))
                            : null;
                }
            }
        }
        return null;
    }

    private Duration bounded(Duration preferred) {
        Duration own = rules.terms.waiting();
        Duration longest = own.compareTo(WAIT_MAX) > 0 ? own : WAIT_MAX;
        return preferred.compareTo(longest) < 0 ? preferred : longest;
    }

    /** Returns true if the response to a request cannot be recorded: WebSocket and gRPC. */
    private static boolean isConversation(RequestHead head) {
        // Other offers to upgrade are ignored: the JDK's client offers h2c with each request.
        boolean isWebSocket =
                head.lines("Upgrade").stream()
                        .flatMap(line -> Stream.of(line.split(",")))
                        .anyMatch(offer -> offer.strip().equalsIgnoreCase("websocket"));
        List<String> type = head.lines("Content-Type");
        return isWebSocket
                || (!type.isEmpty() && Fields.lower(type.get(0)).startsWith("application/grpc"));
    }

    /** Waits until no handler runs; returns false if some still ran at the end of the time. */
    public boolean drain(Duration within) throws InterruptedException {
        return running.drain(within);
    }

    private void count(String result) {
        client.send(new Event("request", rules.operation, null, Map.of("result", result)));
    }
}
