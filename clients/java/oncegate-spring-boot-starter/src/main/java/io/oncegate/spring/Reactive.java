package io.oncegate.spring;

import java.util.concurrent.CompletableFuture;
import java.util.function.Supplier;
import org.springframework.core.ReactiveAdapterRegistry;
import reactor.core.publisher.Mono;

/** Code that needs Reactor on the class path. */
final class Reactive {
    private Reactive() {}

    /**
     * Begins on subscription. A cancelled subscription does not cancel the run, unless the method
     * allows it.
     */
    static Object single(OnceMethod method, Supplier<CompletableFuture<Object>> run) {
        Mono<Object> mono = Mono.fromFuture(run, method.isDetached());
        Class<?> type = method.method().getReturnType();
        return method.end() == OnceMethod.End.SUSPEND || Mono.class.isAssignableFrom(type)
                ? mono
                : ReactiveAdapterRegistry.getSharedInstance().getAdapter(type).fromPublisher(mono);
    }

    static CompletableFuture<Object> future(OnceMethod method, Object single) {
        if (!(single instanceof Mono<?>) && method.end() == OnceMethod.End.SUSPEND) {
            throw new IllegalStateException(
                    "@Once on "
                            + method.method()
                            + " needs kotlinx-coroutines-reactor, which tells when a suspend"
                            + " function has ended");
        }
        Mono<?> mono =
                single instanceof Mono<?> same
                        ? same
                        : Mono.from(
                                ReactiveAdapterRegistry.getSharedInstance()
                                        .getAdapter(method.method().getReturnType())
                                        .toPublisher(single));
        return mono.map(Object.class::cast).toFuture();
    }
}
