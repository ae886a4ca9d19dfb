package io.oncegate.spring;

import java.util.concurrent.CompletableFuture;
import java.util.function.Supplier;
import reactor.core.publisher.Mono;

/** What needs Reactor on the class path. */
final class Reactive {
    private Reactive() {}

    static boolean isMono(Class<?> type) {
        return Mono.class.isAssignableFrom(type);
    }

    /** Begins on subscription; a cancelled subscription cancels the run. */
    static Object mono(Supplier<CompletableFuture<Object>> run) {
        return Mono.fromFuture(run, false);
    }

    static CompletableFuture<Object> future(Object mono) {
        return ((Mono<?>) mono).map(Object.class::cast).toFuture();
    }
}
