package io.oncegate.spring;

import io.oncegate.client.Terms;
import java.lang.reflect.Method;
import java.util.Iterator;
import java.util.concurrent.CompletionStage;
import java.util.stream.BaseStream;
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
        boolean streams =
                BaseStream.class.isAssignableFrom(type)
                        || Iterator.class.isAssignableFrom(type)
                        || (REACTOR && Reactive.isPublisher(type));
        if (streams) {
            throw new IllegalStateException(
                    "@Once on "
                            + method
                            + " returns a stream of values, and it is not known when that has"
                            + " ended; return a value, a CompletionStage or a Mono");
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
                orNull(once.waitFor()));
    }

    private static String orNull(String text) {
        return text.isEmpty() ? null : text;
    }
}
