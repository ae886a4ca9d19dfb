package io.oncegate.client;

import java.util.Iterator;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Flow;
import java.util.concurrent.Future;
import java.util.stream.BaseStream;

/** Results that represent unfinished work. */
final class EndsLater {
    private static final List<Class<?>> TYPES =
            List.of(
                    CompletionStage.class,
                    Future.class,
                    Flow.Publisher.class,
                    BaseStream.class,
                    Iterator.class);

    /** Of libraries that may be absent. */
    private static final Set<String> NAMES =
            Set.of(
                    "org.reactivestreams.Publisher",
                    "kotlinx.coroutines.flow.Flow",
                    "kotlinx.coroutines.Job",
                    "io.reactivex.rxjava3.core.ObservableSource",
                    "io.reactivex.rxjava3.core.SingleSource",
                    "io.reactivex.rxjava3.core.MaybeSource",
                    "io.smallrye.mutiny.Uni");

    private EndsLater() {}

    static boolean is(Object result) {
        return result != null
                && (TYPES.stream().anyMatch(type -> type.isInstance(result))
                        || isNamed(result.getClass()));
    }

    static IllegalStateException error(Object result) {
        return new IllegalStateException(
                "The work returned a "
                        + result.getClass().getName()
                        + ", which has not ended, so its outcome is unknown. Wait for it in the"
                        + " work, and return its result; onceAsync takes a CompletionStage");
    }

    private static boolean isNamed(Class<?> type) {
        if (type == null || type.getName().startsWith("java.")) {
            return false;
        }
        if (NAMES.contains(type.getName()) || isNamed(type.getSuperclass())) {
            return true;
        }
        for (Class<?> each : type.getInterfaces()) {
            if (isNamed(each)) {
                return true;
            }
        }
        return false;
    }
}
