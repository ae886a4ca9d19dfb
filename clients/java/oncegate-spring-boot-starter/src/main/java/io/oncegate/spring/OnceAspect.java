package io.oncegate.spring;

import io.oncegate.client.CurrentGrant;
import io.oncegate.client.Done;
import io.oncegate.client.Duplicate;
import io.oncegate.client.Grant;
import io.oncegate.client.JsonText;
import io.oncegate.client.Mismatch;
import io.oncegate.client.NotSettled;
import io.oncegate.client.OncegateClient;
import io.oncegate.client.OncegateException;
import io.oncegate.client.OutcomeRefused;
import io.oncegate.client.Result;
import io.oncegate.client.Terms;
import java.lang.reflect.Method;
import java.lang.reflect.UndeclaredThrowableException;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Supplier;
import org.aopalliance.intercept.MethodInterceptor;
import org.aopalliance.intercept.MethodInvocation;
import org.springframework.aop.ProxyMethodInvocation;
import org.springframework.aop.support.AopUtils;
import org.springframework.aop.support.StaticMethodMatcherPointcutAdvisor;
import org.springframework.beans.factory.SmartInitializingSingleton;
import org.springframework.core.Ordered;
import org.springframework.core.annotation.AnnotatedElementUtils;

/**
 * Runs methods with {@link Once}, also where the annotation is on the method of an interface. It
 * stands outside the aspect of transactions.
 */
public class OnceAspect extends StaticMethodMatcherPointcutAdvisor
        implements MethodInterceptor, SmartInitializingSingleton {
    private static final long serialVersionUID = 1;

    private final transient Supplier<OncegateClient> client;
    private final transient UnsettledReports reports;
    private final transient Results results;
    private volatile boolean hasMethods;
    private final transient Map<Method, OnceMethod> methods = new ConcurrentHashMap<>();

    /** Client and mapper are fetched on the first call, so that no bean is made too early. */
    public OnceAspect(
            Supplier<OncegateClient> client,
            Supplier<ResultMapper> mapper,
            UnsettledReports reports) {
        this.client = client;
        this.reports = reports;
        results = new Results(mapper);
        setAdvice(this);
        // Outside transactions, retries and caches, which stand at the lowest precedence.
        setOrder(Ordered.HIGHEST_PRECEDENCE + 1000);
    }

    @Override
    public boolean matches(Method method, Class<?> target) {
        boolean matches = once(AopUtils.getMostSpecificMethod(method, target)) != null;
        hasMethods |= matches;
        return matches;
    }

    /** Ends the start of an application whose results could not be stored. */
    @Override
    public void afterSingletonsInstantiated() {
        if (hasMethods) {
            results.check();
        }
    }

    private static Once once(Method method) {
        return AnnotatedElementUtils.findMergedAnnotation(method, Once.class);
    }

    /** Runs the method, or returns the result of its earlier run. */
    @Override
    public Object invoke(MethodInvocation call) throws Throwable {
        Method specific =
                AopUtils.getMostSpecificMethod(call.getMethod(), call.getThis().getClass());
        OnceMethod method =
                methods.computeIfAbsent(specific, each -> new OnceMethod(each, once(each)));
        var context = method.context(call.getThis(), call.getArguments());
        Object contents = method.contents(context);
        Terms terms = method.terms(context);
        return switch (method.end()) {
            case RETURN -> run(method, contents, terms, () -> proceed(call));
            case CALLABLE -> {
                // Spring MVC calls it on another thread: the work is the call.
                Object[] arguments = call.getArguments().clone();
                var later = ((ProxyMethodInvocation) call).invocableClone(arguments);
                yield (Callable<Object>)
                        () ->
                                run(
                                        method,
                                        contents,
                                        terms,
                                        () -> ((Callable<?>) proceed(later)).call());
            }
            case WEB_TASK ->
                    WebTypes.task(proceed(call), work -> run(method, contents, terms, work));
            case STAGE -> {
                refuseTransaction(method);
                yield async(method, contents, terms, () -> stage(proceed(call)));
            }
            case DEFERRED -> {
                refuseTransaction(method);
                yield WebTypes.deferred(
                        async(method, contents, terms, () -> WebTypes.stage(proceed(call))));
            }
            case SINGLE, SUSPEND -> {
                refuseTransaction(method);
                yield Reactive.single(
                        method,
                        () ->
                                async(
                                        method,
                                        contents,
                                        terms,
                                        () -> Reactive.future(method, proceed(call))));
            }
        };
    }

    private static void refuseTransaction(OnceMethod method) {
        if (Transactions.isInside()) {
            throw new IllegalStateException(
                    "@Once on "
                            + method.method()
                            + " runs inside a transaction: a success reported before the commit"
                            + " would stay after a rollback. Put @Once on the caller that begins"
                            + " the transaction");
        }
    }

    private Object run(OnceMethod method, Object contents, Terms terms, Callable<Object> work)
            throws Exception {
        refuseTransaction(method);
        var returned = new Returned();
        try {
            Result<JsonText> result =
                    client.get()
                            .once(
                                    method.operation(),
                                    contents,
                                    terms,
                                    grant -> {
                                        Object value = watched(method, grant, work);
                                        returned.set(value);
                                        return written(method, value);
                                    });
            return ended(method, result, returned.value);
        } catch (NotSettled | OutcomeRefused unreported) {
            return returned.despite(unreported, reports);
        }
    }

    /** Result of the method, before its outcome was reported. */
    private static final class Returned {
        volatile Object value;
        volatile boolean is;

        void set(Object value) {
            this.value = value;
            is = true;
        }

        /** The work is done: an error of its report does not replace its result. */
        Object despite(OncegateException unreported, UnsettledReports reports) {
            if (!is) {
                throw unreported;
            }
            if (unreported instanceof NotSettled unsettled) {
                reports.keep(unsettled);
            }
            return value;
        }
    }

    private static <T> T watched(OnceMethod method, Grant grant, Callable<T> work)
            throws Exception {
        try {
            return under(grant, work);
        } catch (Throwable thrown) {
            method.mark(grant, thrown);
            throw thrown;
        }
    }

    private CompletableFuture<Object> async(
            OnceMethod method,
            Object contents,
            Terms terms,
            Callable<CompletionStage<Object>> work) {
        var returned = new Returned();
        CompletableFuture<Result<JsonText>> run =
                client.get()
                        .onceAsync(
                                method.operation(),
                                contents,
                                terms,
                                grant -> begin(method, grant, work, returned));
        CompletableFuture<Object> ended = new CompletableFuture<>();
        ended.whenComplete((value, thrown) -> run.cancel(true));
        run.whenComplete(
                (result, thrown) -> {
                    try {
                        if (thrown == null) {
                            ended.complete(ended(method, result, returned.value));
                            return;
                        }
                        Throwable cause = cause(thrown);
                        if (cause instanceof NotSettled || cause instanceof OutcomeRefused) {
                            var unreported = (OncegateException) cause;
                            ended.complete(returned.despite(unreported, reports));
                        } else {
                            ended.completeExceptionally(cause);
                        }
                    } catch (RuntimeException refused) {
                        ended.completeExceptionally(refused);
                    }
                });
        return ended;
    }

    /** Begins the work. To cancel what is returned cancels the work too. */
    private CompletableFuture<JsonText> begin(
            OnceMethod method,
            Grant grant,
            Callable<CompletionStage<Object>> work,
            Returned returned) {
        try {
            CompletionStage<Object> stage = watched(method, grant, work);
            CompletableFuture<JsonText> written =
                    stage.thenApply(
                                    value -> {
                                        returned.set(value);
                                        return written(method, value);
                                    })
                            .toCompletableFuture();
            stage.whenComplete(
                    (value, thrown) -> {
                        if (thrown != null) {
                            method.mark(grant, cause(thrown));
                        }
                    });
            written.whenComplete(
                    (value, thrown) -> {
                        if (written.isCancelled()) {
                            stage.toCompletableFuture().cancel(true);
                        }
                    });
            return written;
        } catch (Exception thrown) {
            return CompletableFuture.failedFuture(thrown);
        }
    }

    private static Throwable cause(Throwable thrown) {
        return thrown instanceof CompletionException && thrown.getCause() != null
                ? thrown.getCause()
                : thrown;
    }

    private static CompletionStage<Object> stage(Object stage) {
        return ((CompletionStage<?>) stage).thenApply(value -> value);
    }

    /** Returns the stored form of the result; throws for a result whose work has not ended. */
    private JsonText written(OnceMethod method, Object value) {
        boolean isLater = value != null && OnceMethod.endsLater(value.getClass());
        if (isLater) {
            throw new IllegalStateException(
                    "@Once on "
                            + method.method()
                            + " returned a "
                            + value.getClass().getName()
                            + ", whose work may not have ended: its outcome is unknown. Declare"
                            + " the type that the method returns");
        }
        return results.write(method.operation(), value);
    }

    private static <T> T under(Grant grant, Callable<T> work) throws Exception {
        try (var scope = CurrentGrant.open(grant)) {
            return work.call();
        }
    }

    private static Object proceed(MethodInvocation call) throws Exception {
        try {
            return call instanceof ProxyMethodInvocation proxied
                    ? proxied.invocableClone().proceed()
                    : call.proceed();
        } catch (Exception | Error thrown) {
            throw thrown;
        } catch (Throwable thrown) {
            throw new UndeclaredThrowableException(thrown);
        }
    }

    private Object ended(OnceMethod method, Result<JsonText> result, Object returned) {
        if (result instanceof Done<JsonText>) {
            return returned;
        }
        if (result instanceof Duplicate<JsonText> duplicate) {
            if (duplicate.isSucceeded()) {
                return results.read(method.operation(), duplicate, method.valueType());
            }
            throw new DuplicateOperation(duplicate);
        }
        throw new OperationMismatch((Mismatch<JsonText>) result);
    }
}
