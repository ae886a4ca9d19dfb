package io.oncegate.client;

import java.net.URI;
import java.time.Duration;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.LongSupplier;
import java.util.function.Supplier;
import java.util.regex.Pattern;

/**
 * How to call. A wrong option fails here or in the constructor of the client, with what to write
 * instead.
 */
public final class Options {
    private static final Pattern CREDENTIAL =
            Pattern.compile("[a-z0-9][a-z0-9._-]{0,63}\\.[A-Za-z0-9_]{22,}");

    final List<String> urls;
    String credential;
    Duration timeout = Duration.ofSeconds(2);
    Duration claimWithin = Duration.ofSeconds(5);
    Duration settleWithin = Duration.ofSeconds(30);
    OnUnavailable onUnavailable = OnUnavailable.FAIL_CLOSED;
    Consumer<Event> onEvent = Events::log;
    Function<Object, String> resultWriter = Json::write;
    Supplier<String> traceparent = () -> null;
    LongSupplier nanoTime = System::nanoTime;

    /** One or more gateways before the same store. */
    public Options(List<String> urls) {
        if (urls.isEmpty()) {
            throw new IllegalArgumentException(
                    "At least one URL is needed, such as http://127.0.0.1:8080");
        }
        this.urls = urls.stream().map(Options::checked).toList();
    }

    /** One or more gateways before the same store. */
    public Options(String... urls) {
        this(List.of(urls));
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
        this.credential = credential;
        return this;
    }

    /**
     * Sets the limit of one HTTP call, 2 s by default, without the time that it asks to wait.
     * Longer than the gateways' deadline.
     */
    public Options timeout(Duration timeout) {
        this.timeout = positive("timeout", timeout);
        return this;
    }

    /** Sets the limit of all tries of one claim call, 5 s by default, beside its wait. */
    public Options claimWithin(Duration within) {
        claimWithin = positive("claimWithin", within);
        return this;
    }

    /** Sets the limit of all tries of one report, 30 s by default; null: no limit. */
    public Options settleWithin(Duration within) {
        settleWithin = within == null ? Duration.ofDays(36_500) : positive("settleWithin", within);
        return this;
    }

    /** Sets the caller's own policy when no gateway answers. */
    public Options onUnavailable(OnUnavailable policy) {
        onUnavailable = policy;
        return this;
    }

    /**
     * Sets the hook that receives each event instead of the log. It is called on the calling
     * thread: keep it quick.
     */
    public Options onEvent(Consumer<Event> hook) {
        onEvent = hook;
        return this;
    }

    /** Adds a hook to those that receive each event. */
    public Options alsoOnEvent(Consumer<Event> hook) {
        onEvent = onEvent.andThen(hook);
        return this;
    }

    /**
     * Sets the writer of results, such as Jackson's {@code mapper::writeValueAsString}. By default
     * maps, lists, strings, numbers and booleans are written.
     */
    public Options resultWriter(Function<Object, String> writer) {
        resultWriter = writer;
        return this;
    }

    /** Sets the source of the current W3C {@code traceparent}; it may return null. */
    public Options traceparent(Supplier<String> source) {
        traceparent = source;
        return this;
    }

    /** Replaces the monotonic clock, in tests. */
    Options nanoTime(LongSupplier clock) {
        nanoTime = clock;
        return this;
    }

    private static Duration positive(String name, Duration value) {
        if (value == null || value.isZero() || value.isNegative()) {
            throw new IllegalArgumentException(
                    name + " must be longer than zero, such as Duration.ofSeconds(2)");
        }
        return value;
    }
}
