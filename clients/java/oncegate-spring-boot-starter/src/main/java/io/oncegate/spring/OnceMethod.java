package io.oncegate.spring;

import io.oncegate.client.Grant;
import io.oncegate.client.Outcome;
import io.oncegate.client.Terms;
import java.lang.reflect.Method;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
import java.lang.reflect.WildcardType;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletionStage;
import org.springframework.context.expression.MethodBasedEvaluationContext;
import org.springframework.core.DefaultParameterNameDiscoverer;
import org.springframework.expression.EvaluationContext;
import org.springframework.expression.Expression;
import org.springframework.expression.spel.standard.SpelExpressionParser;
import org.springframework.util.ClassUtils;

/** A method with {@link Once}: its expressions, and how it ends. */
final class OnceMethod {
    private static final SpelExpressionParser PARSER = new SpelExpressionParser();
    private static final DefaultParameterNameDiscoverer NAMES =
            new DefaultParameterNameDiscoverer();
    private static final boolean REACTOR =
            ClassUtils.isPresent("reactor.core.publisher.Mono", OnceMethod.class.getClassLoader());

    private static final boolean COROUTINES =
            REACTOR
                    && ClassUtils.isPresent(
                            "kotlinx.coroutines.reactor.MonoKt", OnceMethod.class.getClassLoader());
    private static final boolean WEB =
            ClassUtils.isPresent(
                    "jakarta.servlet.AsyncListener", OnceMethod.class.getClassLoader());

    /** The moment at which the outcome is known. */
    enum End {
        RETURN,
        CALLABLE,
        WEB_TASK,
        STAGE,
        DEFERRED,
        SINGLE,
        SUSPEND
    }

    private final Method method;
    private final Once once;
    private final Expression key;
    private final Expression fingerprint;
    private final End end;

    OnceMethod(Method method, Once once) {
        this.method = method;
        this.once = once;
        key = PARSER.parseExpression(once.key());
        fingerprint =
                once.fingerprint().isEmpty() ? null : PARSER.parseExpression(once.fingerprint());
        end = end(method);
    }

    /** Returns true for a type whose work may still run after a method has returned it. */
    static boolean endsLater(Class<?> type) {
        return CompletionStage.class.isAssignableFrom(type)
                || Callable.class.isAssignableFrom(type)
                || (REACTOR && LaterTypes.isSingle(type))
                || (WEB && (WebTypes.isDeferred(type) || WebTypes.isTask(type)))
                || LaterTypes.contains(type);
    }

    private static End end(Method method) {
        Class<?> type = method.getReturnType();
        if (CompletionStage.class.isAssignableFrom(type)) {
            return End.STAGE;
        }
        if (LaterTypes.isSuspending(method) && COROUTINES && !LaterTypes.contains(type)) {
            return End.SUSPEND;
        }
        if (REACTOR && LaterTypes.isSingle(type)) {
            return End.SINGLE;
        }
        if (WEB && WebTypes.isDeferred(type)) {
            return End.DEFERRED;
        }
        if (WEB && WebTypes.isTask(type)) {
            return End.WEB_TASK;
        }
        if (Callable.class.isAssignableFrom(type)) {
            return End.CALLABLE;
        }
        if (LaterTypes.contains(type) || LaterTypes.isSuspending(method)) {
            throw new IllegalStateException(
                    "@Once on "
                            + method
                            + " returns before its work ends, and it is not known when that has"
                            + " ended; return a value, a CompletionStage, a Mono or a"
                            + " Callable");
        }
        return End.RETURN;
    }

    Method method() {
        return method;
    }

    String operation() {
        return once.operation();
    }

    End end() {
        return end;
    }

    /** Returns the type of the value: that of the method, or that of its future or publisher. */
    Type valueType() {
        Type type = method.getGenericReturnType();
        if (end == End.RETURN) {
            return type;
        }
        if (end == End.SUSPEND) {
            // The last parameter is a Continuation<? super T>.
            Type[] parameters = method.getGenericParameterTypes();
            return parameters[parameters.length - 1] instanceof ParameterizedType continuation
                            && continuation.getActualTypeArguments()[0] instanceof WildcardType of
                            && of.getLowerBounds().length == 1
                    ? of.getLowerBounds()[0]
                    : Object.class;
        }
        return type instanceof ParameterizedType holder
                ? holder.getActualTypeArguments()[0]
                : Object.class;
    }

    boolean isDetached() {
        return once.detached();
    }

    /** Marks the outcome of an error that is an exception to the harmless ones. */
    void mark(Grant grant, Throwable thrown) {
        for (Class<? extends Throwable> type : once.noReleaseOn()) {
            if (type.isInstance(thrown)) {
                grant.mark(Outcome.UNKNOWN);
            }
        }
    }

    EvaluationContext context(Object target, Object[] arguments) {
        return new MethodBasedEvaluationContext(target, method, arguments, NAMES);
    }

    Object contents(EvaluationContext context) {
        return key.getValue(context);
    }

    Terms terms(EvaluationContext context) {
        Object mark = fingerprint == null ? null : fingerprint.getValue(context);
        return new Terms(
                mark,
                orNull(once.lease()),
                orNull(once.retention()),
                false,
                orNull(once.waitFor()),
                List.of(once.releaseOn()),
                false);
    }

    private static String orNull(String text) {
        return text.isEmpty() ? null : text;
    }
}
