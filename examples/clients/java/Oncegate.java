import java.io.IOException;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.math.RoundingMode;
import java.math.MathContext;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

/**
 * A client of Oncegate in one file, to be copied. Java 17 or later, nothing but the JDK.
 *
 * <pre>
 * var gateway = new Oncegate(List.of("http://10.0.0.5:8080", "http://10.0.0.6:8080"), new Options().credential("shop.the_secret"));
 * var answer = gateway.runOnce("order.submit", Map.of("order_id", "A-1001"), Terms.NONE, held -> place(order, held.fence));
 * </pre>
 *
 * {@code runOnce} claims the operation, renews the claim while the work runs, and reports what became of it. That somebody else
 * does it or did it is an answer ({@link Duplicate}), not an exception. What to do with each: docs/callers.md of the gateway.
 * JSON values are maps, lists, strings, numbers, booleans and null. May be used by many threads at once.
 */
public final class Oncegate {
    /** What came of asking. */
    public sealed interface Answer permits Done, Duplicate, Mismatch {}

    /**
     * The work ran here, and its end is recorded.
     *
     * @param state what stands now: {@code succeeded}, {@code spooled} (kept by one gateway, to be delivered), or null if nothing
     *     could be recorded
     * @param degraded the policy that answered in the store's place, at the claim or at the outcome: repeats may not have been
     *     noticed; {@code caller} is this client's own {@code proceed}
     * @param late true: the claim was gone when the outcome came, so somebody else may have done it as well; null: cannot be told
     */
    public record Done(Object result, String state, String degraded, Boolean late) implements Answer {}

    /** Somebody else does it or did it: {@code in_progress}, {@code succeeded} with its result, or {@code unknown}. */
    public record Duplicate(String state, Object result, Duration retryAfter, String degraded) implements Claimed, Answer {}

    /** The same operation was claimed with another fingerprint, or with other contents of the same ID. */
    public record Mismatch(String code) implements Claimed, Answer {}

    /** What a claim is answered with. */
    public sealed interface Claimed permits Held, Duplicate, Mismatch {}

    /** No gateway could tell in time. The work was not begun. */
    public static final class Unavailable extends RuntimeException {
        Unavailable(String message) {
            super(message);
        }
    }

    /** A gateway refuses this call as it is: a mistake of the caller, or (429) more than its quota. */
    public static final class Rejected extends RuntimeException {
        public final int status;
        public final String code;

        Rejected(Told told) {
            super(told.status + " " + told.text("code") + ": " + told.text("detail"));
            status = told.status;
            code = told.text("code");
        }
    }

    /** Thrown by the work: it failed, and certainly had no effect. It can be claimed again at once. */
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

    /** No gateway took the outcome in time. {@code report} is text: keep it, and give it to {@link #settle} later. */
    public static final class NotSettled extends RuntimeException {
        public final String report;
        public final transient Object result;

        NotSettled(String report, Object result) {
            super("no gateway has taken the outcome yet");
            this.report = report;
            this.result = result;
        }
    }

    /** These contents would not mean the same to every reader. */
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

        /** The caller's own policy when no gateway can tell: run the work unprotected. Otherwise {@link Unavailable} is thrown. */
        public Options proceed(boolean proceeds) {
            this.proceeds = proceeds;
            return this;
        }

        /** Of one call; longer than the gateways' deadline. */
        public Options timeout(Duration timeout) {
            this.timeout = timeout;
            return this;
        }

        /** Of all tries of one claim. */
        public Options claimWithin(Duration within) {
            claimWithin = within;
            return this;
        }

        /** Of all tries of one outcome. */
        public Options settleWithin(Duration within) {
            settleWithin = within;
            return this;
        }
    }

    /**
     * What is asked for beside operation and contents; null is the operator's choice.
     *
     * @param fingerprint what else must be equal on a repeat, without being part of the identity
     */
    public record Terms(Object fingerprint, String lease, String retention, boolean takeOver) {
        public static final Terms NONE = new Terms(null, null, null, false);
    }

    /** What must not be done twice. What it returns is the result that repeats are told. */
    public interface Work {
        Object run(Held held) throws Exception;
    }

    private final List<String> urls;
    private final Options options;
    private final HttpClient http;
    /** The gateway that answered last is asked first, so that one that is gone costs one timeout, not one a call. */
    private volatile int first;

    /** Gateways in front of one store: it does not matter which of them is asked. */
    public Oncegate(List<String> urls, Options options) {
        if (urls.isEmpty()) {
            throw new IllegalArgumentException("at least one URL");
        }
        this.urls = urls.stream().map(url -> url.replaceAll("/+$", "")).toList();
        this.options = options;
        http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).connectTimeout(options.timeout).build();
    }

    /**
     * Runs the work if nobody else has, and reports its end.
     *
     * <p>If it throws {@link NothingHappened}, the operation can be claimed again at once; anything else may have come after the
     * effect, so the outcome is {@code unknown}. Both are thrown again.
     */
    public Answer runOnce(String operation, Object contents, Terms terms, Work work) throws Exception {
        Claimed claimed = claim(operation, contents, terms);
        if (!(claimed instanceof Held held)) {
            return (Answer) claimed;
        }
        try {
            if (!held.isOurs()) {
                throw new NothingHappened("the answer came when the lease was over");
            }
            return held.succeed(work.run(held));
        } catch (Throwable thrown) {
            held.end(thrown);
            throw thrown;
        } finally {
            held.stop();
        }
    }

    /** Asks whether to go ahead. What it holds is renewed until it is settled or stopped. */
    public Claimed claim(String operation, Object contents, Terms terms) throws InterruptedException {
        var fields = new LinkedHashMap<String, Object>();
        fields.put("operation", operation);
        // Fresh for each try at the operation, the same for all repeats of this one question: so a claim whose answer was lost is
        // recognised as ours.
        fields.put("attempt_nonce", UUID.randomUUID().toString());
        fields.put("fingerprint", terms.fingerprint);
        fields.put("lease", terms.lease);
        fields.put("retention", terms.retention);
        fields.put("take_over", terms.takeOver ? true : null);
        // In their one spelling, so that what would be read differently elsewhere is refused here.
        String spelled = canonical(contents);
        var question = new Question(operation, spelled, body(fields, spelled));
        try {
            return ask(question, options.claimWithin);
        } catch (Unavailable unavailable) {
            if (!options.proceeds) {
                throw unavailable;
            }
            return new Held(this, question, null);
        }
    }

    /** Repeats a report until it is taken (200 or 202) or refused (409). Repeating it does no harm. Tells what stands now. */
    public String settle(String report, Duration within) throws InterruptedException {
        return settled(report, within, null).text("state");
    }

    /** What the gateway will call this operation, computed here. */
    public String globalId(String operation, Object contents) {
        String credential = options.credential;
        String app = credential == null ? "default" : credential.substring(0, credential.lastIndexOf('.'));
        return globalId(app, operation, contents);
    }

    private Told settled(String report, Duration within, Object result) throws InterruptedException {
        var parts = (List<?>) readJson(report);
        Told told;
        try {
            told = call("/v1/claims/" + parts.get(0) + "/outcome", (String) parts.get(1), within);
        } catch (Unavailable unavailable) {
            throw new NotSettled(report, result);
        }
        if (told.status == 409) {
            throw new OutcomeRefused(told.text("code"), result);
        }
        if (told.status == 202) {
            told.fields.put("state", "spooled");
        }
        return told;
    }

    private Claimed ask(Question question, Duration within) throws InterruptedException {
        Told told = call("/v1/claims", question.body, within);
        if (told.status == 201) {
            return new Held(this, question, told);
        }
        if (told.status != 409) {
            return new Mismatch(told.text("code"));
        }
        return new Duplicate(told.text("state"), told.fields.get("result"), told.retryAfter(), told.text("degraded"));
    }

    /** Asks one gateway after the other until one of them has answered. */
    private Told call(String path, String body, Duration within) throws InterruptedException {
        long ends = System.nanoTime() + within.toNanos();
        for (int tries = 1; ; tries++) {
            int at = (first + tries - 1) % urls.size();
            long left = Math.max(ends - System.nanoTime(), 1_000_000);
            Told told = post(urls.get(at) + path, body, Math.min(left, options.timeout.toNanos()));
            boolean mismatch = told.status == 422 && String.valueOf(told.text("code")).endsWith("_mismatch");
            if (List.of(200, 201, 202, 409).contains(told.status) || mismatch) {
                first = at;
                return told;
            }
            if (told.status >= 400 && told.status < 500 && told.status != 429) {
                throw new Rejected(told);
            }
            long pause = told.status == 429 ? told.retryAfter().toMillis() : 0;
            if (tries % urls.size() == 0) {
                // Full jitter: those who failed together do not come back together.
                long most = Math.min(1000, 50L << Math.min(tries / urls.size(), 10));
                pause = Math.max(pause, ThreadLocalRandom.current().nextLong(most + 1));
            }
            if (System.nanoTime() + pause * 1_000_000 >= ends) {
                if (told.status == 429) {
                    throw new Rejected(told);
                }
                throw new Unavailable("no gateway could tell; the last one said " + told.status + " " + told.text("code"));
            }
            Thread.sleep(pause);
        }
    }

    /** One call. Status 0 if there was no answer, or not one of a gateway: then nobody knows whether it was taken. */
    private Told post(String url, String body, long nanos) throws InterruptedException {
        var request = HttpRequest.newBuilder(URI.create(url)).timeout(Duration.ofNanos(nanos));
        request.header("Content-Type", "application/json").POST(HttpRequest.BodyPublishers.ofString(body));
        if (options.credential != null) {
            request.header("Authorization", "Bearer " + options.credential);
        }
        // The lease counts from here: the answer may be long on its way.
        long sent = System.nanoTime();
        try {
            // Its own timeout ends with the head of the answer; a body may be held back as well.
            var answer = http.sendAsync(request.build(), HttpResponse.BodyHandlers.ofString()).get(nanos, TimeUnit.NANOSECONDS);
            if (readJson(answer.body()) instanceof Map<?, ?> fields) {
                var named = new LinkedHashMap<String, Object>();
                fields.forEach((name, value) -> named.put((String) name, value));
                return new Told(answer.statusCode(), named, sent);
            }
        } catch (java.util.concurrent.ExecutionException | java.util.concurrent.TimeoutException | IllegalArgumentException lost) {
            // As if nothing had come.
        }
        return new Told(0, new LinkedHashMap<>(), sent);
    }

    /** The contents in their one spelling, and the whole question, to be repeated as it is. */
    private record Question(String operation, String contents, String body) {}

    /** What a gateway said, and when it was asked. Fields that are not known are ignored. */
    private record Told(int status, Map<String, Object> fields, long sent) {
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
    }

    /** The right to do one operation, until the lease ends. It is renewed in the background until it is settled or stopped. */
    public static final class Held implements Claimed, AutoCloseable {
        /** Rises with every attempt at the operation; for the resource to compare. Null where the store has none. */
        public final Long fence;
        /** The policy that granted in the store's place; {@code caller} if none was asked. */
        public final String degraded;
        /** True if a repeat of the question found the claim that it had already been given. */
        public final boolean repeated;

        private final Oncegate gateway;
        private final Question question;
        private final Told answer;
        private final CountDownLatch stopped = new CountDownLatch(1);
        private volatile long ends;
        private volatile String lost;
        private volatile boolean settled;

        private Held(Oncegate gateway, Question question, Told answer) {
            this.gateway = gateway;
            this.question = question;
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

        /** Whether to go ahead with what cannot be undone. It narrows the gap after a pause; only the fence closes it. */
        public boolean isOurs() {
            return !holds() || (lost == null && ends - System.nanoTime() > 0);
        }

        /** Why the claim was lost, once a renewal was told so: {@code lease_lost}, {@code superseded}; or {@code not_renewed}. */
        public String lost() {
            return lost;
        }

        /** It is finished and must never run again, also if the answer is "declined". Repeats are told the result. */
        public Done succeed(Object result) throws InterruptedException {
            Told told = settle("success", result);
            String policy = degraded != null ? degraded : told.text("degraded");
            return new Done(result, told.text("state"), policy, (Boolean) told.fields.get("late"));
        }

        /** It certainly did not happen. */
        public void fail() throws InterruptedException {
            settle("failure", null);
        }

        /** Nobody knows whether it happened. Repeats are stopped until somebody has looked. */
        public void giveUp() throws InterruptedException {
            settle("unknown", null);
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

        /** Reports how the work ended that threw this, unless that is done. */
        private void end(Throwable thrown) {
            try {
                if (!settled && thrown instanceof NothingHappened) {
                    fail();
                } else if (!settled) {
                    giveUp();
                }
            } catch (NotSettled | OutcomeRefused | Rejected unreported) {
                // What the work threw says more; this is kept with it. The claim ends with its lease.
                thrown.addSuppressed(unreported);
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }

        /** One that is observed only, or was never asked for, holds nothing that could be renewed or lost. */
        private boolean holds() {
            return answer != null && !answer.fields.containsKey("would_be");
        }

        private Told settle(String outcome, Object result) throws InterruptedException {
            Told target = answer;
            if (target == null) {
                // Nobody was asked before. Perhaps somebody answers now: then repeats are stopped at least from here on.
                Claimed late = null;
                try {
                    late = gateway.ask(question, gateway.options.timeout);
                } catch (Unavailable | Rejected still) {
                    // As before: nothing can be recorded.
                }
                if (!(late instanceof Held held)) {
                    settled = true;
                    return new Told(0, new LinkedHashMap<>(Map.of("late", late != null)), 0);
                }
                held.stop();
                target = held.answer;
            }
            var fields = new LinkedHashMap<String, Object>();
            fields.put("attempt", target.text("attempt"));
            fields.put("outcome", outcome);
            fields.put("result", result);
            // This and the contents matter if it comes late: they tell its terms, and let its contents be compared.
            fields.put("operation", question.operation);
            String report = writeJson(List.of(target.text("global_id"), body(fields, question.contents)));
            try {
                Told told = gateway.settled(report, gateway.options.settleWithin, result);
                settled = true;
                return told;
            } catch (NotSettled | OutcomeRefused reported) {
                settled = true;
                throw reported;
            } finally {
                // After any other failure it is not reported yet, and still held.
                if (settled) {
                    stop();
                }
            }
        }

        /** At a third of the lease, so that a lost answer leaves time to ask again; until it is over by our own count. */
        private void renew() {
            String body = writeJson(Map.of("attempt", answer.text("attempt")));
            String path = "/v1/claims/" + answer.text("global_id") + "/renewal";
            try {
                for (long left; (left = ends - System.nanoTime()) > 0; ) {
                    if (stopped.await(left / 3, TimeUnit.NANOSECONDS)) {
                        return;
                    }
                    try {
                        Told told = gateway.call(path, body, Duration.ofNanos(Math.max(0, ends - System.nanoTime())));
                        if (stopped.getCount() == 0) {
                            return;
                        }
                        if (told.status != 200) {
                            lost = told.text("code");
                            return;
                        }
                        ends = told.ends();
                    } catch (Unavailable | Rejected unknown) {
                        // Asked again, as long as there is something to renew.
                    }
                }
                lost = "not_renewed";
            } catch (InterruptedException interrupted) {
                // Nobody but the process's end interrupts this thread.
            }
        }
    }

    /** JSON of what is there, with contents that are spelled already. */
    private static String body(Map<String, Object> fields, String contents) {
        fields.values().removeIf(Objects::isNull);
        String head = writeJson(fields);
        return head.substring(0, head.length() - 1) + ",\"contents\":" + contents + "}";
    }

    // The name of an operation. ------------------------------------------------------------------------------------------

    private static final int DEPTH_MAX = 32;
    private static final BigDecimal TWO_TO_53 = BigDecimal.valueOf(1L << 53);
    private static final BigDecimal TEN_TO_21 = new BigDecimal("1e21");

    /** MD5 of app key, operation and canonical contents, in hex: the same operation, the same ID, whoever computes it. */
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
        if (contents == null || contents.equals("")) {
            throw new NotCanonical("contents must not be null or \"\": give what tells this operation from others");
        }
        var out = new StringBuilder();
        spell(contents, 0, out, true);
        return out.toString();
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
