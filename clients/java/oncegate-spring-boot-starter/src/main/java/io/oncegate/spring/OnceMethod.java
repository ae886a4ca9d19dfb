package io.oncegate.spring;

import io.oncegate.client.Terms;
import java.lang.reflect.Method;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
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

    /** The moment at which the outcome is known. */
    enum End {
        RETURN,
        CALLABLE,
        STAGE,
        MONO
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

    private static End end(Method method) {
        Class<?> type = method.getReturnType();
        if (CompletionStage.class.isAssignableFrom(type)) {
            return End.STAGE;
        }
        if (REACTOR && Reactive.isMono(type)) {
            return End.MONO;
        }
        if (Callable.class.isAssignableFrom(type)) {
            return End.CALLABLE;
        }
        if (LaterTypes.contains(type) || LaterTypes.isSuspending(method)) {
            throw new IllegalStateException(
                    "@Once on "
                            + method
                            + " returns before its work ends, and it is not known when that has"
                            + " ended; return a value, a CompletionStage, a Mono or a Callable");
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

    /** Returns the type of the value: that of the method, or what its holder is to bring. */
    Type valueType() {
        Type type = method.getGenericReturnType();
        if (end == End.RETURN) {
            return type;
        }
        return type instanceof ParameterizedType holder
                ? holder.getActualTypeArguments()[0]
                : Object.class;
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
                List.of(once.releaseOn()));
    }

    private static String orNull(String text) {
        return text.isEmpty() ? null : text;
    }
}
