package io.oncegate.spring;

import java.lang.reflect.Method;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.Flow;
import java.util.concurrent.Future;
import java.util.stream.BaseStream;
import org.springframework.core.ReactiveAdapter;
import org.springframework.core.ReactiveAdapterRegistry;
import org.springframework.util.ClassUtils;

/** Types whose work may still run after a method has returned them, and whose end is not seen. */
final class LaterTypes {
    private static final String WEB = "org.springframework.web.";

    /** Optional libraries, by name. */
    private static final List<String> NAMES =
            List.of(
                    "org.reactivestreams.Publisher",
                    "kotlinx.coroutines.flow.Flow",
                    "io.reactivex.rxjava3.core.Observable",
                    "io.smallrye.mutiny.Multi",
                    WEB + "servlet.mvc.method.annotation.StreamingResponseBody",
                    WEB + "servlet.mvc.method.annotation.ResponseBodyEmitter");

    private static final List<Class<?>> TYPES =
            List.of(Future.class, Flow.Publisher.class, BaseStream.class, Iterator.class);

    private LaterTypes() {}

    static boolean contains(Class<?> type) {
        return TYPES.stream().anyMatch(each -> each.isAssignableFrom(type))
                || NAMES.stream().anyMatch(name -> isA(type, name));
    }

    /** Returns true for a Kotlin suspend function: its last parameter is its continuation. */
    static boolean isSuspending(Method method) {
        Class<?>[] parameters = method.getParameterTypes();
        return parameters.length > 0
                && parameters[parameters.length - 1]
                        .getName()
                        .equals("kotlin.coroutines.Continuation");
    }

    /**
     * Returns true for a type of at most one value: {@code Mono}, RxJava's {@code Single}, … Needs
     * Reactor on the class path.
     */
    static boolean isSingle(Class<?> type) {
        ReactiveAdapter adapter = ReactiveAdapterRegistry.getSharedInstance().getAdapter(type);
        return adapter != null && !adapter.isMultiValue();
    }

    private static boolean isA(Class<?> type, String name) {
        ClassLoader loader = type.getClassLoader();
        return ClassUtils.isPresent(name, loader)
                && ClassUtils.resolveClassName(name, loader).isAssignableFrom(type);
    }
}
