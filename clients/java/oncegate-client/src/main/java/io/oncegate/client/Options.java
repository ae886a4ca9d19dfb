package io.oncegate.client;

import java.lang.reflect.Type;
import java.net.URI;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Objects;
import java.util.function.BiFunction;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.LongSupplier;
import java.util.function.Supplier;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/**
 * Options of a client. Each method returns a changed copy. A wrong option fails here, with what to
 * write instead.
 */
public final class Options {
    private static final Pattern CREDENTIAL =
            Pattern.compile("[a-z0-9][a-z0-9._-]{0,63}\\.[A-Za-z0-9_]{22,}");

    private static final String DEFAULT_URL = "http://127.0.0.1:8080";

    final List<String> urls;
    String credential;
    Duration timeout = Duration.ofSeconds(2);
    Duration claimWithin = Duration.ofSeconds(5);
    Duration settleWithin = Duration.ofSeconds(30);
    OnUnavailable onUnavailable = OnUnavailable.FAIL_CLOSED;
    List<Class<? extends Throwable>> releaseOn = List.of();
    boolean enabled = !isDisabled(System.getenv("ONCEGATE_DISABLED"));
    Consumer<Event> onEvent = Events::log;
    Function<Object, String> resultWriter = Json::write;
    BiFunction<JsonText, Type, Object> resultReader = PlainResults::read;
    Supplier<String> traceparent = Traces.current();
    BooleanSupplier insideTransaction = () -> false;
    LongSupplier nanoTime = System::nanoTime;
    Answerer answerer;

    /** The gateway of {@code ONCEGATE_URL}, else {@code http://127.0.0.1:8080}. */
    public Options() {
        this(System.getenv().getOrDefault("ONCEGATE_URL", DEFAULT_URL));
    }

    /** One or more gateways before the same store. */
    public Options(List<String> urls) {
        if (urls.isEmpty()) {
            throw new IllegalArgumentException(
                    "At least one URL is needed, such as http://127.0.0.1:8080");
        }
        this.urls = urls.stream().map(Options::checked).toList();
    }

    /** One or more gateways before the same store. */
    public Options(String url, String... more) {
        this(Stream.concat(Stream.of(url), Stream.of(more)).toList());
    }

    private Options(Options other) {
        urls = other.urls;
        credential = other.credential;
        timeout = other.timeout;
        claimWithin = other.claimWithin;
        settleWithin = other.settleWithin;
        onUnavailable = other.onUnavailable;
        releaseOn = other.releaseOn;
        enabled = other.enabled;
        onEvent = other.onEvent;
        resultWriter = other.resultWriter;
        resultReader = other.resultReader;
        traceparent = other.traceparent;
        insideTransaction = other.insideTransaction;
        nanoTime = other.nanoTime;
        answerer = other.answerer;
    }

    private Options with(Consumer<Options> change) {
        var copy = new Options(this);
        change.accept(copy);
        return copy;
    }

    private static String checked(String url) {
        String wrong =
                "\""
                        + url
                        + "\" is not the URL of a gateway; write http://HOST:PORT or"
                        + " https://HOST:PORT";
        URI uri;
        try {
            uri = URI.create(url);
        } catch (IllegalArgumentException malformed) {
            throw new IllegalArgumentException(wrong, malformed);
        }
        boolean isHttp = "http".equals(uri.getScheme()) || "https".equals(uri.getScheme());
        if (!isHttp
                || uri.getHost() == null
                || uri.getQuery() != null
                || uri.getUserInfo() != null) {
            throw new IllegalArgumentException(wrong);
        }
        return url.replaceAll("/+$", "");
    }

    /** Sets {@code <app_key>.<secret>}, where apps are configured. */
    public Options credential(String credential) {
        if (credential != null && !CREDENTIAL.matcher(credential).matches()) {
            // Never the value itself: it is a secret.
            throw new IllegalArgumentException(
                    "The credential is not of the form <app_key>.<secret>, with a secret of at"
                            + " least 22 letters, digits or _");
        }
        return with(copy -> copy.credential = credential);
    }

    /**
     * Sets the limit of one HTTP call, 2 s by default, without the time that it asks to wait.
     * Longer than the gateways' deadline.
     */
    public Options timeout(Duration timeout) {
        return with(copy -> copy.timeout = positive("timeout", timeout));
    }

    /** Sets the limit of all tries of one claim call, 5 s by default, in addition to its wait. */
    public Options claimWithin(Duration within) {
        return with(copy -> copy.claimWithin = positive("claimWithin", within));
    }

    /** Sets the limit of all tries of one report, 30 s by default; null: no limit. */
    public Options settleWithin(Duration within) {
        return with(
                copy ->
                        copy.settleWithin =
                                within == null
                                        ? Duration.ofDays(36_500)
                                        : positive("settleWithin", within));
    }

    /** Sets the caller's own policy when no gateway answers. */
    public Options onUnavailable(OnUnavailable policy) {
        return with(copy -> copy.onUnavailable = Objects.requireNonNull(policy, "onUnavailable"));
    }

    /**
     * Sets the errors of work that had no effect, subclasses included: the operation is released at
     * once, and the error is thrown on unchanged. Causes do not count.
     */
    public Options releaseOn(List<Class<? extends Throwable>> errors) {
        return with(copy -> copy.releaseOn = List.copyOf(errors));
    }

    /**
     * Switches the client off: all work runs, and nothing is claimed ({@code Done.degraded} is
     * {@code disabled}). {@code ONCEGATE_DISABLED=1} in the environment does the same.
     */
    public Options enabled(boolean enabled) {
        boolean isDisabled = isDisabled(System.getenv("ONCEGATE_DISABLED"));
        return with(copy -> copy.enabled = enabled && !isDisabled);
    }

    /** Returns true if {@code ONCEGATE_DISABLED} has this text and switches clients off. */
    static boolean isDisabled(String text) {
        return switch (text == null ? "" : text.toLowerCase(Locale.ROOT)) {
            case "1", "true", "yes", "on" -> true;
            case "", "0", "false", "no", "off" -> false;
            default ->
                    throw new IllegalArgumentException(
                            "ONCEGATE_DISABLED is \""
                                    + text.substring(0, Math.min(40, text.length()))
                                    + "\": write 1, true, yes or on to switch clients off, or 0,"
                                    + " false, no or off");
        };
    }

    /**
     * Sets the hook that receives each event instead of the log. It is called on the calling
     * thread: keep it quick.
     */
    public Options onEvent(Consumer<Event> hook) {
        return with(copy -> copy.onEvent = hook);
    }

    /** Adds a hook to those that receive each event. */
    public Options alsoOnEvent(Consumer<Event> hook) {
        return with(copy -> copy.onEvent = onEvent.andThen(hook));
    }

    /**
     * Sets the writer of results, such as Jackson's {@code mapper::writeValueAsString}. By default
     * maps, lists, strings, numbers and booleans are written.
     */
    public Options resultWriter(Function<Object, String> writer) {
        return with(copy -> copy.resultWriter = writer);
    }

    /**
     * Sets the reader of stored results, the counterpart of {@link #resultWriter}. By default the
     * types that the default writer takes are read.
     */
    public Options resultReader(BiFunction<JsonText, Type, Object> reader) {
        return with(copy -> copy.resultReader = reader);
    }

    /**
     * Sets the source of the current W3C {@code traceparent}; it may return null. By default that
     * of OpenTelemetry, where its API is on the class path.
     */
    public Options traceparent(Supplier<String> source) {
        return with(copy -> copy.traceparent = source);
    }

    /**
     * Sets what says that the calling thread is inside a transaction: {@code once}, {@code
     * onceAsync} and {@code claim} throw {@link IllegalStateException} there, since a success that
     * is reported before the commit would stay after a rollback. The starter sets the transactions
     * of Spring. {@code () -> false} allows them, for who reports from an outbox.
     */
    public Options insideTransaction(BooleanSupplier inside) {
        return with(copy -> copy.insideTransaction = Objects.requireNonNull(inside, "inside"));
    }

    /** Replaces the gateways, in tests. */
    public Options answerer(Answerer answerer) {
        return with(
                copy -> {
                    copy.answerer = answerer;
                    copy.nanoTime = answerer::nanoTime;
                });
    }

    /** Replaces the monotonic clock, in tests. */
    Options nanoTime(LongSupplier clock) {
        return with(copy -> copy.nanoTime = clock);
    }

    private static Duration positive(String name, Duration value) {
        if (value == null || value.isZero() || value.isNegative()) {
            throw new IllegalArgumentException(
                    name + " must be longer than zero, such as Duration.ofSeconds(2)");
        }
        return value;
    }
}
