package io.oncegate.spring;

import com.fasterxml.jackson.databind.JavaType;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.oncegate.client.Done;
import io.oncegate.client.Duplicate;
import io.oncegate.client.Grant;
import io.oncegate.client.Mismatch;
import io.oncegate.client.OncegateClient;
import io.oncegate.client.Result;
import io.oncegate.client.Terms;
import java.lang.reflect.Method;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
import java.lang.reflect.UndeclaredThrowableException;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Supplier;
import org.aspectj.lang.ProceedingJoinPoint;
import org.aspectj.lang.annotation.Around;
import org.aspectj.lang.annotation.Aspect;
import org.aspectj.lang.reflect.MethodSignature;
import org.springframework.aop.support.AopUtils;
import org.springframework.core.Ordered;
import org.springframework.transaction.support.TransactionSynchronizationManager;
import org.springframework.util.ClassUtils;

/** Runs methods with {@link Once}. It stands outside the aspect of transactions. */
@Aspect
public class OnceAspect implements Ordered {
    private static final boolean TRANSACTIONS =
            ClassUtils.isPresent(
                    "org.springframework.transaction.support.TransactionSynchronizationManager",
                    OnceAspect.class.getClassLoader());

    private final Supplier<OncegateClient> client;
    private final Supplier<ObjectMapper> mapper;
    private final Map<Method, OnceMethod> methods = new ConcurrentHashMap<>();

    /** Client and mapper are fetched on the first call, so that no bean is made too early. */
    public OnceAspect(Supplier<OncegateClient> client, Supplier<ObjectMapper> mapper) {
        this.client = client;
        this.mapper = mapper;
    }

    /** Outside transactions, retries and caches, which stand at the lowest precedence. */
    @Override
    public int getOrder() {
        return Ordered.HIGHEST_PRECEDENCE + 1000;
    }

    /** Runs the method, or returns the result of its earlier run. */
    @Around("@annotation(once)")
    public Object run(ProceedingJoinPoint point, Once once) throws Throwable {
        Method declared = ((MethodSignature) point.getSignature()).getMethod();
        Method specific = AopUtils.getMostSpecificMethod(declared, point.getTarget().getClass());
        OnceMethod method = methods.computeIfAbsent(specific, each -> new OnceMethod(each, once));
        if (TRANSACTIONS && TransactionSynchronizationManager.isActualTransactionActive()) {
            throw new IllegalStateException(
                    "@Once on "
                            + specific
                            + " runs inside a transaction: a success reported before the commit"
                            + " would stay after a rollback. Put @Once on the caller that begins"
                            + " the transaction");
        }
        var context = method.context(point.getTarget(), point.getArgs());
        Object contents = method.contents(context);
        Terms terms = method.terms(context);
        return switch (method.end()) {
            case RETURN ->
                    ended(
                            method,
                            client.get()
                                    .once(
                                            method.operation(),
                                            contents,
                                            terms,
                                            grant -> proceed(point, grant)));
            case STAGE -> async(method, contents, terms, grant -> stage(proceed(point, grant)));
            case MONO ->
                    Reactive.mono(
                            () ->
                                    async(
                                            method,
                                            contents,
                                            terms,
                                            grant -> Reactive.future(proceed(point, grant))));
        };
    }

    /** Work that ends later. */
    private interface Later {
        CompletionStage<Object> begin(Grant grant) throws Exception;
    }

    private CompletableFuture<Object> async(
            OnceMethod method, Object contents, Terms terms, Later work) {
        CompletableFuture<Result<Object>> run =
                client.get()
                        .onceAsync(
                                method.operation(),
                                contents,
                                terms,
                                grant -> {
                                    try {
                                        return work.begin(grant);
                                    } catch (Exception thrown) {
                                        return CompletableFuture.failedFuture(thrown);
                                    }
                                });
        CompletableFuture<Object> ended = new CompletableFuture<>();
        ended.whenComplete((value, thrown) -> run.cancel(true));
        run.whenComplete(
                (result, thrown) -> {
                    try {
                        if (thrown != null) {
                            ended.completeExceptionally(
                                    thrown instanceof CompletionException
                                            ? thrown.getCause()
                                            : thrown);
                        } else {
                            ended.complete(ended(method, result));
                        }
                    } catch (RuntimeException refused) {
                        ended.completeExceptionally(refused);
                    }
                });
        return ended;
    }

    private static CompletionStage<Object> stage(Object stage) {
        return ((CompletionStage<?>) stage).thenApply(value -> value);
    }

    private static Object proceed(ProceedingJoinPoint point, Grant grant) throws Exception {
        Grant before = CurrentGrant.swap(grant);
        try {
            return point.proceed();
        } catch (Exception | Error thrown) {
            throw thrown;
        } catch (Throwable thrown) {
            throw new UndeclaredThrowableException(thrown);
        } finally {
            CurrentGrant.swap(before);
        }
    }

    private Object ended(OnceMethod method, Result<Object> result) {
        if (result instanceof Done<Object> done) {
            return done.result();
        }
        if (result instanceof Duplicate<Object> duplicate) {
            if (duplicate.isSucceeded()) {
                return stored(method, duplicate.result());
            }
            throw new DuplicateOperation(duplicate);
        }
        throw new OperationMismatch((Mismatch<Object>) result);
    }

    /**
     * Returns the stored result as the type that the method returns, or that its stage or mono
     * holds.
     */
    private Object stored(OnceMethod method, Object result) {
        Type type = method.method().getGenericReturnType();
        if (method.end() != OnceMethod.End.RETURN) {
            type =
                    type instanceof ParameterizedType holder
                            ? holder.getActualTypeArguments()[0]
                            : Object.class;
        }
        if (result == null || type == void.class || type == Void.class) {
            return null;
        }
        JavaType target = mapper.get().getTypeFactory().constructType(type);
        return mapper.get().convertValue(result, target);
    }
}
