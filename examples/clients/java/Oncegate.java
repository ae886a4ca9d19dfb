import java.math.BigDecimal;
import java.math.BigInteger;
import java.math.MathContext;
import java.math.RoundingMode;
import java.net.ConnectException;
import java.net.URI;
import java.net.UnknownHostException;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpTimeoutException;
import java.nio.channels.UnresolvedAddressException;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Collectors;
import javax.net.ssl.SSLException;

/**
 * A client for Oncegate in one file, to copy. Java 17 or later; JDK only.
 *
 * <pre>
 * var gateway = new Oncegate(List.of("http://10.0.0.5:8080", "http://10.0.0.6:8080"), new Options().credential("shop.the_secret"));
 * var answer = gateway.runOnce("order.submit", Map.of("order_id", "A-1001"), Terms.NONE, held -> place(order, held.fence));
 * </pre>
 *
 * {@code runOnce} claims the operation, renews the claim while the work runs, and reports the outcome. A duplicate is an answer
 * ({@link Duplicate}), not an exception. What to do with each answer: docs/integration.md of the gateway. JSON values are maps, lists,
 * strings, numbers, booleans and null. Safe to use from many threads.
 */
public final class Oncegate {
    /** A longer result is not sent: the default of the gateway's {@code limits.result_bytes}. */
    private static final int RESULT_BYTES_MAX = 64 * 1024;

    /** What {@link #runOnce} returns. */
    public sealed interface Answer permits Done, Duplicate, Mismatch {}

    /**
     * The work ran here, and its outcome was reported.
     *
     * @param state the state of the claim: {@code succeeded}, {@code spooled} (kept by one gateway, to be delivered), or null if
     *     nothing was recorded
     * @param degraded the outage policy that answered instead of the store, at the claim or at the outcome; duplicates may have
     *     been missed; {@code caller} is this client's own {@code proceed}
     * @param late true: the claim had ended before the outcome arrived, so another attempt may have run; null: not known
     * @param resultError why the result was not stored: it is not JSON, is too long, or was refused. The success itself was
     *     recorded; duplicates get null as their result. Null if the result was stored
     */
    public record Done(Object result, String state, String degraded, Boolean late, String resultError) implements Answer {}

    /** Another attempt is running or has completed it: {@code in_progress}, {@code succeeded} with its result, or {@code unknown}. */
    public record Duplicate(String state, Object result, Duration retryAfter, String degraded) implements Claimed, Answer {}

    /** The operation was claimed with another fingerprint, or with other contents of the same ID. */
    public record Mismatch(String code) implements Claimed, Answer {}

    /** What a claim call returns. */
    public sealed interface Claimed permits Held, Duplicate, Mismatch {}

    /**
     * Kinds of failures. {@code CONNECTION}: it was closed or broke. {@code NOT_A_GATEWAY}: something else answered, so check the
     * URL. {@code ANSWER}: the gateway answered 5xx.
     */
    public enum Kind { DNS, REFUSED, TIMEOUT, TLS, CONNECTION, NOT_A_GATEWAY, ANSWER }

    /** Why a gateway gave no usable answer. */
    public record Cause(String url, Kind kind, String detail) {
        @Override
        public String toString() {
            return url + ": " + kind.name().toLowerCase(Locale.ROOT) + ": " + detail;
        }
    }

    /** No gateway gave an answer in time. The work was not started. */
    public static final class Unavailable extends RuntimeException {
        /** The last failure of each gateway that was tried. */
        public final transient List<Cause> causes;

        Unavailable(Collection<Cause> causes) {
            super("no gateway answered: " + causes.stream().map(Cause::toString).collect(Collectors.joining("; ")));
            this.causes = List.copyOf(causes);
        }
    }

    /** A gateway refused the call: a mistake of the caller, or (429) its quota is used up. */
    public static final class Rejected extends RuntimeException {
        public final int status;
        public final String code;

        Rejected(Response response) {
            super(response.problem());
            status = response.status;
            code = response.text("code");
        }
    }

    /** Thrown by the work: it failed and certainly had no effect. The operation can be claimed again at once. */
    public static final class NothingHappened extends RuntimeException {
        public NothingHappened(String message) {
            super(message);
        }
    }

    /** The outcome was answered with 409. {@code superseded} after a success: perhaps done twice, so raise an alarm. */
    public static final class OutcomeRefused extends RuntimeException {
        public final String code;
        public final transient Object result;

        OutcomeRefused(String code, Object result) {
            super("the outcome was refused: " + code);
            this.code = code;
            this.result = result;
        }
    }

    /** No gateway has taken the outcome; the cause says why. {@code report} is text: keep it, and pass it to {@link #settle} later. */
    public static final class NotSettled extends RuntimeException {
        public final String report;
        public final transient Object result;

        NotSettled(String report, Object result, RuntimeException cause) {
            super("no gateway has taken the outcome yet: " + cause.getMessage(), cause);
            this.report = report;
            this.result = result;
        }
    }

    /** The contents would not mean the same to every reader. */
    public static final class NotCanonical extends IllegalArgumentException {
        NotCanonical(String message) {
            super(message);
        }
    }

    /** How to call. */
    public static final class Options {
        private String credential;
        private boolean proceeds;
        private Duration timeout = Duration.ofSeconds(2);
        private Duration claimWithin = Duration.ofSeconds(5);
        private Duration settleWithin = Duration.ofSeconds(30);

        /** {@code <app>.<secret>}, where apps are configured. */
        public Options credential(String credential) {
            this.credential = credential;
            return this;
        }

        /** The caller's own policy when no gateway answers: run the work unprotected. Otherwise {@link Unavailable} is thrown. */
        public Options proceed(boolean proceeds) {
            this.proceeds = proceeds;
            return this;
        }

        /** Limit of one call; longer than the gateways' deadline. */
        public Options timeout(Duration timeout) {
            this.timeout = timeout;
            return this;
        }

        /** Limit of all tries of one claim. */
        public Options claimWithin(Duration within) {
            claimWithin = within;
            return this;
        }

        /** Limit of all tries of one outcome. */
        public Options settleWithin(Duration within) {
            settleWithin = within;
            return this;
        }
    }

    /**
     * Optional fields of a claim; null is the operator's choice.
     *
     * @param fingerprint what else must be equal on a repeat, without being part of the identity
     */
    public record Terms(Object fingerprint, String lease, String retention, boolean takeOver) {
        public static final Terms NONE = new Terms(null, null, null, false);
    }

    /** Work that must not be done twice. Duplicates get what it returns. */
    public interface Work {
        Object run(Held held) throws Exception;
    }

    private final List<String> urls;
    private final Options options;
    /** Keeps connections and uses them again, since each answer is read to its end. */
    private final HttpClient http;
    /** The gateway that answered last is called first, so that one that is down costs one timeout, not one for each call. */
    private volatile int first;

    /** One or more gateways in front of the same store; any of them may answer. */
    public Oncegate(List<String> urls, Options options) {
        if (urls.isEmpty()) {
            throw new IllegalArgumentException("at least one URL");
        }
        for (String url : urls) {
            var uri = URI.create(url);
            if (uri.getHost() == null || !List.of("http", "https").contains(uri.getScheme())) {
                throw new IllegalArgumentException(
                        "not the URL of a gateway: " + url + "; expected http://HOST:PORT or https://HOST:PORT");
            }
        }
        this.urls = List.copyOf(urls);
        this.options = options;
        http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).connectTimeout(options.timeout).build();
    }

    /**
     * Runs the work unless the operation is a duplicate, and reports the outcome.
     *
     * <p>If it throws {@link NothingHappened}, the operation can be claimed again at once. Anything else may have come after the
     * effect, so the outcome is {@code unknown}. Both are thrown again.
     */
    public Answer runOnce(String operation, Object contents, Terms terms, Work work) throws Exception {
        Claimed claimed = claim(operation, contents, terms);
        if (!(claimed instanceof Held held)) {
            return (Answer) claimed;
        }
        try {
            if (!held.isOurs()) {
                throw new NothingHappened("the answer arrived after the lease had ended");
            }
            return held.succeed(work.run(held));
        } catch (Throwable thrown) {
            held.end(thrown);
            throw thrown;
        } finally {
            held.stop();
        }
    }

    /** Claims the operation. A {@link Held} is renewed until it is settled or stopped. */
    public Claimed claim(String operation, Object contents, Terms terms) throws InterruptedException {
        var fields = new LinkedHashMap<String, Object>();
        fields.put("operation", operation);
        // Fresh for each try at the operation, the same for all repeats of this call: a claim whose answer was lost is then
        // recognised as ours.
        fields.put("attempt_nonce", UUID.randomUUID().toString());
        fields.put("fingerprint", terms.fingerprint);
        fields.put("lease", terms.lease);
        fields.put("retention", terms.retention);
        fields.put("take_over", terms.takeOver ? true : null);
        // In canonical form, so that contents that would be read differently elsewhere are refused here.
        String text = canonical(contents);
        var request = new ClaimRequest(operation, text, body(fields, text, null));
        try {
            return ask(request, options.claimWithin);
        } catch (Unavailable unavailable) {
            if (!options.proceeds) {
                throw unavailable;
            }
            return new Held(this, request, null);
        }
    }

    /**
     * Repeats a report until it is taken (200 or 202) or refused (409). Safe to repeat. A result that the gateway refuses is left
     * out.
     *
     * @return the state of the claim
     */
    public String settle(String report, Duration within) throws InterruptedException {
        return send(report, within, null).text("state");
    }

    /** The global ID of this operation, computed without a gateway. */
    public String globalId(String operation, Object contents) {
        String credential = options.credential;
        String app = credential == null ? "default" : credential.substring(0, credential.lastIndexOf('.'));
        return globalId(app, operation, contents);
    }

    private Response send(String report, Duration within, Object result) throws InterruptedException {
        var fields = new LinkedHashMap<String, Object>();
        ((Map<?, ?>) readJson(report)).forEach((name, value) -> fields.put((String) name, value));
        String path = "/v1/claims/" + fields.remove("global_id") + "/outcome";
        String contents = (String) fields.remove("contents");
        String stored = (String) fields.remove("result");
        String refused = null;
        while (true) {
            Response response;
            try {
                response = call(path, body(fields, contents, stored), within);
            } catch (Unavailable unavailable) {
                throw new NotSettled(report, result, unavailable);
            } catch (Rejected rejected) {
                if (stored == null || !List.of(400, 413, 422).contains(rejected.status)) {
                    throw rejected;
                }
                // The operation has succeeded whether or not its result can be stored.
                stored = null;
                refused = rejected.getMessage();
                continue;
            }
            if (response.status == 422) {
                throw new Rejected(response);
            }
            if (response.status == 409) {
                throw new OutcomeRefused(response.text("code"), result);
            }
            if (response.status == 202) {
                response.fields.put("state", "spooled");
            }
            response.fields.put("result_error", refused);
            return response;
        }
    }

    private Claimed ask(ClaimRequest request, Duration within) throws InterruptedException {
        Response response = call("/v1/claims", request.body, within);
        if (response.status == 201) {
            return new Held(this, request, response);
        }
        if (response.status != 409) {
            return new Mismatch(response.text("code"));
        }
        var result = response.fields.get("result");
        return new Duplicate(response.text("state"), result, response.retryAfter(), response.text("degraded"));
    }

    /** Calls one gateway after the other until one has answered. */
    private Response call(String path, String body, Duration within) throws InterruptedException {
        long ends = System.nanoTime() + within.toNanos();
        var causes = new LinkedHashMap<String, Cause>();
        boolean resent = false;
        for (int tries = 1; ; tries++) {
            int at = (first + tries - 1) % urls.size();
            String url = urls.get(at);
            long left = Math.max(ends - System.nanoTime(), 1_000_000);
            Response response = null;
            try {
                response = post(url, path, body, Math.min(left, options.timeout.toNanos()));
                boolean mismatch = response.status == 422 && response.text("code").endsWith("_mismatch");
                if (List.of(200, 201, 202, 409).contains(response.status) || mismatch) {
                    first = at;
                    return response;
                }
                if (response.status >= 400 && response.status < 500 && response.status != 429) {
                    throw new Rejected(response);
                }
                causes.put(url, new Cause(url, Kind.ANSWER, response.problem()));
            } catch (NoAnswer none) {
                // A try that was cut short by `within` says nothing new.
                if (none.why.kind != Kind.TIMEOUT || left >= options.timeout.toNanos() || !causes.containsKey(url)) {
                    causes.put(url, none.why);
                }
                if (none.why.kind == Kind.CONNECTION && !resent) {
                    // Most likely a kept connection that the gateway had closed. The same call may be sent again: the nonce or
                    // the attempt in it is recognised.
                    resent = true;
                    tries--;
                    continue;
                }
            }
            boolean overQuota = response != null && response.status == 429;
            long pause = overQuota ? response.retryAfter().toMillis() : 0;
            if (tries % urls.size() == 0) {
                // Full jitter: callers that failed together do not come back together.
                long most = Math.min(1000, 50L << Math.min(tries / urls.size(), 10));
                pause = Math.max(pause, ThreadLocalRandom.current().nextLong(most + 1));
            }
            if (System.nanoTime() + pause * 1_000_000 >= ends) {
                if (overQuota) {
                    throw new Rejected(response);
                }
                throw new Unavailable(causes.values());
            }
            Thread.sleep(pause);
        }
    }

    /** One call. If there is no answer of a gateway, it is not known whether one acted on the call. */
    private Response post(String url, String path, String body, long nanos) throws InterruptedException, NoAnswer {
        var request = HttpRequest.newBuilder(URI.create(url.replaceAll("/+$", "") + path)).timeout(Duration.ofNanos(nanos));
        request.header("Content-Type", "application/json").POST(HttpRequest.BodyPublishers.ofString(body));
        if (options.credential != null) {
            request.header("Authorization", "Bearer " + options.credential);
        }
        // The lease counts from here: the answer may take long.
        long sent = System.nanoTime();
        HttpResponse<String> answer;
        try {
            // The request's own timeout ends with the head of the answer; this one covers its body too.
            answer = http.sendAsync(request.build(), HttpResponse.BodyHandlers.ofString()).get(nanos, TimeUnit.NANOSECONDS);
        } catch (ExecutionException failed) {
            throw new NoAnswer(new Cause(url, kind(failed.getCause()), String.valueOf(failed.getCause())));
        } catch (TimeoutException late) {
            throw new NoAnswer(new Cause(url, Kind.TIMEOUT, "no answer within " + nanos / 1_000_000 + " ms"));
        }
        var named = new LinkedHashMap<String, Object>();
        try {
            if (readJson(answer.body()) instanceof Map<?, ?> fields) {
                fields.forEach((name, value) -> named.put((String) name, value));
            }
        } catch (IllegalArgumentException notJson) {
            // Not from a gateway, as below.
        }
        if (!(named.get(answer.statusCode() < 300 ? "global_id" : "code") instanceof String)) {
            String type = answer.headers().firstValue("content-type").orElse("without a content type");
            throw new NoAnswer(new Cause(url, Kind.NOT_A_GATEWAY, "answered " + answer.statusCode() + ", " + type));
        }
        return new Response(answer.statusCode(), named, sent);
    }

    private static Kind kind(Throwable failure) {
        for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
            if (cause instanceof UnresolvedAddressException || cause instanceof UnknownHostException) {
                return Kind.DNS;
            }
            if (cause instanceof HttpTimeoutException) {
                return Kind.TIMEOUT;
            }
            if (cause instanceof SSLException) {
                return Kind.TLS;
            }
        }
        return failure instanceof ConnectException ? Kind.REFUSED : Kind.CONNECTION;
    }

    /** A call without an answer of a gateway. */
    private static final class NoAnswer extends Exception {
        final transient Cause why;

        NoAnswer(Cause why) {
            this.why = why;
        }
    }

    /** Contents in canonical form, and the whole request, to be repeated as it is. */
    private record ClaimRequest(String operation, String contents, String body) {}

    /** An answer of a gateway, and when its request was sent. Fields that are not known are ignored. */
    private record Response(int status, Map<String, Object> fields, long sent) {
        String text(String name) {
            return fields.get(name) instanceof String text ? text : null;
        }

        long number(String name, long otherwise) {
            return fields.get(name) instanceof Number number ? number.longValue() : otherwise;
        }

        Duration retryAfter() {
            return Duration.ofMillis(number("retry_after_ms", 1000));
        }

        long ends() {
            return sent + number("lease_ms", 0) * 1_000_000;
        }

        String problem() {
            return status + " " + text("code") + ": " + text("detail");
        }
    }

    /** The right to run one operation, until the lease ends. Renewed in the background until it is settled or stopped. */
    public static final class Held implements Claimed, AutoCloseable {
        /** Rises with every attempt at the operation; for the resource to compare. Null where the store has none. */
        public final Long fence;
        /** The outage policy that granted the claim; {@code caller} if no gateway answered. */
        public final String degraded;
        /** True if a repeat of the claim call found the claim that it had already been granted. */
        public final boolean repeated;

        private final Oncegate gateway;
        private final ClaimRequest request;
        private final Response answer;
        private final CountDownLatch stopped = new CountDownLatch(1);
        private volatile long ends;
        private volatile String lost;
        private volatile boolean settled;
        /** The outcome that is being reported: it is never replaced by another one. */
        private volatile String report;

        private Held(Oncegate gateway, ClaimRequest request, Response answer) {
            this.gateway = gateway;
            this.request = request;
            this.answer = answer;
            fence = answer != null && answer.fields.get("fence") instanceof Number number ? number.longValue() : null;
            degraded = answer == null ? "caller" : answer.text("degraded");
            repeated = answer != null && Boolean.TRUE.equals(answer.fields.get("repeated"));
            if (holds()) {
                ends = answer.ends();
                var renewing = new Thread(this::renew, "oncegate-renewal");
                renewing.setDaemon(true);
                renewing.start();
            }
        }

        /** Whether the claim still stands, to check before an effect that cannot be undone. Only the fence closes the gap. */
        public boolean isOurs() {
            return !holds() || (lost == null && ends - System.nanoTime() > 0);
        }

        /** Why the claim was lost, by the answer to a renewal: {@code lease_lost}, {@code superseded}; or {@code not_renewed}. */
        public String lost() {
            return lost;
        }

        /**
         * Reports that the work is finished and must never run again, also if the answer is "declined". Duplicates get the result.
         * If it cannot be sent, the success is reported without it: see {@link Done#resultError}.
         */
        public Done succeed(Object result) throws InterruptedException {
            String text = null;
            String error = null;
            try {
                text = result == null ? null : writeJson(result);
                int bytes = text == null ? 0 : text.getBytes(StandardCharsets.UTF_8).length;
                if (bytes > RESULT_BYTES_MAX) {
                    text = null;
                    error = "the result has " + bytes + " bytes, more than " + RESULT_BYTES_MAX;
                }
            } catch (RuntimeException | StackOverflowError notJson) {
                error = "the result is not JSON: " + notJson;
            }
            Response response = settle("success", result, text);
            String policy = degraded != null ? degraded : response.text("degraded");
            error = error != null ? error : response.text("result_error");
            return new Done(result, response.text("state"), policy, (Boolean) response.fields.get("late"), error);
        }

        /** Reports that it certainly did not happen. */
        public void fail() throws InterruptedException {
            settle("failure", null, null);
        }

        /** Reports that it is not known whether it happened. Repeats are stopped until an operator or a take-over settles it. */
        public void giveUp() throws InterruptedException {
            settle("unknown", null, null);
        }

        /** Ends the renewal, and reports {@code unknown} if nothing was reported. */
        @Override
        public void close() throws InterruptedException {
            try {
                if (!settled) {
                    giveUp();
                }
            } finally {
                stop();
            }
        }

        /** Ends the renewal. The claim itself ends with its lease, unless it is settled. */
        public void stop() {
            stopped.countDown();
        }

        /** Reports the outcome of work that threw this, unless one was reported. */
        private void end(Throwable thrown) {
            try {
                if (settled) {
                    return;
                }
                if (report != null) {
                    // Interrupted while the outcome was being reported.
                    gateway.send(report, gateway.options.settleWithin, null);
                } else if (thrown instanceof NothingHappened) {
                    fail();
                } else {
                    giveUp();
                }
            } catch (NotSettled | OutcomeRefused | Rejected unreported) {
                // The exception of the work says more; this one is added to it. The claim ends with its lease.
                thrown.addSuppressed(unreported);
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }

        /** A claim that is only observed, or was granted by the caller's own policy, has nothing to renew or lose. */
        private boolean holds() {
            return answer != null && !answer.fields.containsKey("would_be");
        }

        private Response settle(String outcome, Object result, String text) throws InterruptedException {
            Response target = answer;
            if (target == null) {
                // Granted by this client's own policy. If a gateway answers now, repeats are stopped from here on.
                Claimed late = null;
                try {
                    late = gateway.ask(request, gateway.options.timeout);
                } catch (Unavailable | Rejected still) {
                    // As before: nothing can be recorded.
                }
                if (!(late instanceof Held held)) {
                    settled = true;
                    return new Response(0, new LinkedHashMap<>(Map.of("late", late != null)), 0);
                }
                held.stop();
                target = held.answer;
            }
            var fields = new LinkedHashMap<String, Object>();
            fields.put("global_id", target.text("global_id"));
            fields.put("attempt", target.text("attempt"));
            fields.put("outcome", outcome);
            fields.put("result", text);
            // These two matter if the outcome is late: its record then has their terms, and contents to compare.
            fields.put("operation", request.operation);
            fields.put("contents", request.contents);
            report = writeJson(fields);
            try {
                Response response = gateway.send(report, gateway.options.settleWithin, result);
                settled = true;
                return response;
            } catch (NotSettled | OutcomeRefused reported) {
                settled = true;
                throw reported;
            } catch (Rejected rejected) {
                settled = true;
                throw new NotSettled(report, result, rejected);
            } finally {
                stop();
            }
        }

        /** Renews at a third of the lease, which leaves time to repeat a lost answer; stops when the lease has ended here. */
        private void renew() {
            String body = writeJson(Map.of("attempt", answer.text("attempt")));
            String path = "/v1/claims/" + answer.text("global_id") + "/renewal";
            try {
                for (long left; (left = ends - System.nanoTime()) > 0; ) {
                    if (stopped.await(left / 3, TimeUnit.NANOSECONDS)) {
                        return;
                    }
                    try {
                        Response response = gateway.call(path, body, Duration.ofNanos(Math.max(0, ends - System.nanoTime())));
                        if (stopped.getCount() == 0) {
                            return;
                        }
                        if (response.status != 200) {
                            lost = response.text("code");
                            return;
                        }
                        ends = response.ends();
                    } catch (Unavailable | Rejected unknown) {
                        // Not known: repeated for as long as the lease lasts.
                    }
                }
                lost = "not_renewed";
            } catch (InterruptedException interrupted) {
                // Only the end of the process interrupts this thread.
            }
        }
    }

    /** A JSON object of the fields that are not null, and of contents and a result that are encoded already. */
    private static String body(Map<String, Object> fields, String contents, String result) {
        var present = new LinkedHashMap<>(fields);
        present.values().removeIf(Objects::isNull);
        String head = writeJson(present);
        String tail = result == null ? "" : ",\"result\":" + result;
        return head.substring(0, head.length() - 1) + ",\"contents\":" + contents + tail + "}";
    }

    // The name of an operation. ------------------------------------------------------------------------------------------

    private static final int DEPTH_MAX = 32;
    private static final BigDecimal TWO_TO_53 = BigDecimal.valueOf(1L << 53);
    private static final BigDecimal TEN_TO_21 = new BigDecimal("1e21");

    /** MD5 of app key, operation and canonical contents, in hex: the same operation, the same ID, in every language. */
    public static String globalId(String app, String operation, Object contents) {
        byte[] named = (app + "\n" + operation + "\n" + canonical(contents)).getBytes(StandardCharsets.UTF_8);
        try {
            return String.format("%032x", new BigInteger(1, MessageDigest.getInstance("MD5").digest(named)));
        } catch (NoSuchAlgorithmException absent) {
            throw new IllegalStateException("every JDK has MD5", absent);
        }
    }

    /**
     * The one spelling of a value (RFC 8785).
     *
     * @throws NotCanonical where others would read something else
     */
    public static String canonical(Object contents) {
        var out = new StringBuilder();
        spell(contents, 0, out, true);
        if (!holdsValue(contents)) {
            throw new NotCanonical(
                "contents hold no value, only null, \"\", {} or []: give what tells this operation from others");
        }
        return out.toString();
    }

    /** Whether there is a number, a boolean or a string with a character in it: one unset id must not name every order. */
    private static boolean holdsValue(Object value) {
        if (value instanceof Map<?, ?> members) {
            return members.values().stream().anyMatch(Oncegate::holdsValue);
        }
        if (value instanceof List<?> items) {
            return items.stream().anyMatch(Oncegate::holdsValue);
        }
        return value != null && !value.equals("");
    }

    /** JSON of a value, for what needs no one spelling. */
    public static String writeJson(Object value) {
        var out = new StringBuilder();
        spell(value, 0, out, false);
        return out.toString();
    }

    /**
     * @param exact whether what others would read as something else is refused: a digit that a double would lose, half a
     *     character, too many levels
     */
    private static void spell(Object value, int depth, StringBuilder out, boolean exact) {
        if (value == null || value instanceof Boolean) {
            out.append(value);
        } else if (value instanceof String text) {
            spellText(text, out, exact);
        } else if (value instanceof Number number) {
            out.append(spelled(number, exact));
        } else if (exact && depth == DEPTH_MAX) {
            throw new NotCanonical("nested deeper than " + DEPTH_MAX + " levels: send it as text");
        } else if (value instanceof List<?> items) {
            String separator = "[";
            for (Object item : items) {
                out.append(separator);
                spell(item, depth + 1, out, exact);
                separator = ",";
            }
            out.append(items.isEmpty() ? "[]" : "]");
        } else if (value instanceof Map<?, ?> members) {
            // By UTF-16 code units, as the RFC wants, and as Java compares strings.
            var sorted = new TreeMap<String, Object>();
            members.forEach((key, member) -> sorted.put((String) key, member));
            String separator = "{";
            for (var member : sorted.entrySet()) {
                out.append(separator);
                spellText(member.getKey(), out, exact);
                out.append(':');
                spell(member.getValue(), depth + 1, out, exact);
                separator = ",";
            }
            out.append(sorted.isEmpty() ? "{}" : "}");
        } else {
            throw new NotCanonical(value.getClass().getSimpleName() + " is no JSON: send it as text");
        }
    }

    private static void spellText(String text, StringBuilder out, boolean exact) {
        if (exact && text.codePoints().anyMatch(point -> point >= 0xd800 && point <= 0xdfff)) {
            throw new NotCanonical("a text holds half of a surrogate pair");
        }
        out.append('"');
        for (char unit : text.toCharArray()) {
            int short_ = "\b\t\n\f\r\"\\".indexOf(unit);
            if (short_ >= 0) {
                out.append('\\').append("btnfr\"\\".charAt(short_));
            } else if (unit < 0x20) {
                out.append(String.format("\\u%04x", (int) unit));
            } else {
                out.append(unit);
            }
        }
        out.append('"');
    }

    /** As ECMAScript writes the double, if that says the same as the value. */
    private static String spelled(Number number, boolean exact) {
        double value = number.doubleValue();
        boolean isDouble = number instanceof Double || number instanceof Float;
        if (!exact && !isDouble) {
            return number.toString();
        }
        if (!Double.isFinite(value)) {
            throw new NotCanonical("a number is not finite: send it as text");
        }
        var decimal = isDouble ? new BigDecimal(value) : new BigDecimal(number.toString());
        // By the value and by its double: each may round up to a bound that the other keeps.
        if (exact && (isBeyond(decimal) || isBeyond(new BigDecimal(value)))) {
            throw new NotCanonical("a number is beyond 2^53 - 1, where digits get lost: send it as text");
        }
        if (!isDouble && decimal.stripTrailingZeros().precision() > 17) {
            throw new NotCanonical("a number has more than 17 significant digits: send it as text");
        }
        if (value == 0) {
            if (decimal.signum() != 0) {
                throw new NotCanonical("a number is so small that it would become 0: send it as text");
            }
            return "0";
        }
        BigDecimal shortest = shortest(Math.abs(value));
        // 0.d1d2d3... * 10^point
        String digits = shortest.unscaledValue().toString();
        int point = digits.length() - shortest.scale();
        String sign = value < 0 ? "-" : "";
        if (digits.length() <= point && point <= 21) {
            return sign + digits + "0".repeat(point - digits.length());
        }
        if (0 < point && point <= 21) {
            return sign + digits.substring(0, point) + "." + digits.substring(point);
        }
        if (-6 < point && point <= 0) {
            return sign + "0." + "0".repeat(-point) + digits;
        }
        String fraction = digits.length() > 1 ? "." + digits.substring(1) : "";
        return sign + digits.charAt(0) + fraction + "e" + (point > 0 ? "+" : "-") + Math.abs(point - 1);
    }

    private static boolean isBeyond(BigDecimal number) {
        return number.abs().compareTo(TWO_TO_53) >= 0 && number.abs().compareTo(TEN_TO_21) < 0;
    }

    /** The fewest digits that are this double, and of those the nearest. ({@code Double.toString} has too many before JDK 19.) */
    private static BigDecimal shortest(double value) {
        var exact = new BigDecimal(value);
        for (int digits = 1; ; digits++) {
            BigDecimal below = exact.round(new MathContext(digits, RoundingMode.DOWN));
            BigDecimal above = exact.round(new MathContext(digits, RoundingMode.UP));
            boolean belowIs = below.doubleValue() == value;
            boolean aboveIs = above.doubleValue() == value;
            if (belowIs || aboveIs) {
                boolean belowIsNearer = exact.subtract(below).compareTo(above.subtract(exact)) <= 0;
                return (belowIs && (belowIsNearer || !aboveIs) ? below : above).stripTrailingZeros();
            }
        }
    }

    /**
     * JSON text as a value, with nothing lost on the way: no digit of a number, no key that occurs twice.
     *
     * @throws NotCanonical if it is no JSON, or an object holds a key twice
     */
    public static Object readJson(String text) {
        var reader = new Reader(text);
        Object value = reader.value(0);
        reader.skipSpace();
        if (reader.at < text.length()) {
            throw reader.wrong();
        }
        return value;
    }

    private static final class Reader {
        private static final int LEVELS_MAX = 512;
        private final String text;
        private int at;

        Reader(String text) {
            this.text = text;
        }

        Object value(int depth) {
            skipSpace();
            if (depth > LEVELS_MAX || at == text.length()) {
                throw wrong();
            }
            switch (text.charAt(at)) {
                case '{':
                    return object(depth);
                case '[':
                    return array(depth);
                case '"':
                    return string();
                case 't':
                    return literal("true", true);
                case 'f':
                    return literal("false", false);
                case 'n':
                    return literal("null", null);
                default:
                    return number();
            }
        }

        private Map<String, Object> object(int depth) {
            var members = new LinkedHashMap<String, Object>();
            at++;
            for (boolean more = !isNext('}'); more; more = isSeparator('}')) {
                skipSpace();
                String key = string();
                if (!isNext(':')) {
                    throw wrong();
                }
                if (members.containsKey(key)) {
                    throw new NotCanonical("a key occurs twice in its object");
                }
                members.put(key, value(depth + 1));
            }
            return members;
        }

        private List<Object> array(int depth) {
            var items = new ArrayList<>();
            at++;
            for (boolean more = !isNext(']'); more; more = isSeparator(']')) {
                items.add(value(depth + 1));
            }
            return items;
        }

        private String string() {
            if (!isNext('"')) {
                throw wrong();
            }
            var out = new StringBuilder();
            while (at < text.length() && text.charAt(at) != '"') {
                char unit = text.charAt(at++);
                if (unit < 0x20) {
                    throw wrong();
                }
                out.append(unit == '\\' ? escaped() : unit);
            }
            if (at++ >= text.length()) {
                throw wrong();
            }
            return out.toString();
        }

        private char escaped() {
            int known = at < text.length() ? "\"\\/bfnrt".indexOf(text.charAt(at)) : -1;
            if (known >= 0) {
                at++;
                return "\"\\/\b\f\n\r\t".charAt(known);
            }
            if (at + 5 > text.length() || !text.substring(at, at + 5).matches("u[0-9a-fA-F]{4}")) {
                throw wrong();
            }
            at += 5;
            return (char) Integer.parseInt(text.substring(at - 4, at), 16);
        }

        private BigDecimal number() {
            int begin = at;
            while (at < text.length() && "+-.0123456789eE".indexOf(text.charAt(at)) >= 0) {
                at++;
            }
            String literal = text.substring(begin, at);
            if (!literal.matches("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?")) {
                throw wrong();
            }
            return new BigDecimal(literal);
        }

        private Object literal(String word, Object value) {
            if (!text.startsWith(word, at)) {
                throw wrong();
            }
            at += word.length();
            return value;
        }

        private boolean isSeparator(char close) {
            if (isNext(close)) {
                return false;
            }
            if (!isNext(',')) {
                throw wrong();
            }
            return true;
        }

        private boolean isNext(char wanted) {
            skipSpace();
            boolean is = at < text.length() && text.charAt(at) == wanted;
            at += is ? 1 : 0;
            return is;
        }

        void skipSpace() {
            while (at < text.length() && " \t\n\r".indexOf(text.charAt(at)) >= 0) {
                at++;
            }
        }

        NotCanonical wrong() {
            return new NotCanonical("no JSON at character " + at);
        }
    }
}
