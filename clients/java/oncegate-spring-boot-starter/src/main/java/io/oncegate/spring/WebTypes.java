package io.oncegate.spring;

import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import org.springframework.web.context.request.async.DeferredResult;
import org.springframework.web.context.request.async.WebAsyncTask;

/** Types of Spring MVC whose work ends later. They need servlets on the class path. */
final class WebTypes {
    private WebTypes() {}

    /** Runs the callable of a task. */
    interface Run {
        Object with(Callable<Object> work) throws Exception;
    }

    static boolean isDeferred(Class<?> type) {
        return DeferredResult.class.isAssignableFrom(type);
    }

    static boolean isTask(Class<?> type) {
        return WebAsyncTask.class.isAssignableFrom(type);
    }

    static Object task(Object given, Run run) {
        var task = (WebAsyncTask<?>) given;
        Callable<Object> work = () -> run.with(() -> task.getCallable().call());
        if (task.getExecutor() != null) {
            return new WebAsyncTask<>(task.getTimeout(), task.getExecutor(), work);
        }
        return task.getTimeout() == null
                ? new WebAsyncTask<>(work)
                : new WebAsyncTask<>(task.getTimeout(), work);
    }

    /** Completes when the outcome was reported. */
    static Object deferred(CompletableFuture<Object> run) {
        var result = new DeferredResult<Object>();
        result.onTimeout(() -> run.cancel(true));
        run.whenComplete(
                (value, thrown) -> {
                    if (thrown == null) {
                        result.setResult(value);
                    } else {
                        result.setErrorResult(thrown);
                    }
                });
        return result;
    }

    static CompletionStage<Object> stage(Object given) {
        var stage = new CompletableFuture<Object>();
        ((DeferredResult<?>) given)
                .setResultHandler(
                        value -> {
                            if (value instanceof Throwable thrown) {
                                stage.completeExceptionally(thrown);
                            } else {
                                stage.complete(value);
                            }
                        });
        return stage;
    }
}
