package io.oncegate.client;

import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Future;
import java.util.function.Function;

/** One run of {@code onceAsync}. */
final class AsyncRun<T> {
    /** The call that claims. */
    interface Claim {
        Claimed call() throws InterruptedException;
    }

    private final Claim claim;
    private final Context context;
    private final Function<Grant, ? extends CompletionStage<T>> work;
    private final CompletableFuture<Result<T>> end = new CompletableFuture<>();

    AsyncRun(Claim claim, Context context, Function<Grant, ? extends CompletionStage<T>> work) {
        this.claim = claim;
        this.context = context;
        this.work = work;
    }

    CompletableFuture<Result<T>> start() {
        Future<?> claiming = context.background().workers().submit(this::claim);
        end.whenComplete(
                (result, thrown) -> {
                    if (thrown instanceof CancellationException) {
                        claiming.cancel(true);
                    }
                });
        return end;
    }

    private void claim() {
        try {
            Claimed claimed = claim.call();
            if (claimed instanceof Duplicate<?> duplicate) {
                end.complete(duplicate.of(null));
            } else if (claimed instanceof Mismatch<?> mismatch) {
                end.complete(mismatch.as());
            } else {
                run((Grant) claimed);
            }
        } catch (InterruptedException cancelled) {
            end.cancel(false);
        } catch (RuntimeException failed) {
            end.completeExceptionally(failed);
        }
    }

    private void run(Grant grant) {
        CompletableFuture<T> stage;
        if (end.isCancelled()) {
            stage =
                    CompletableFuture.failedFuture(
                            new NothingHappened("cancelled before the work"));
        } else {
            stage = begin(grant);
        }
        end.whenComplete(
                (result, thrown) -> {
                    if (thrown instanceof CancellationException) {
                        stage.cancel(true);
                    }
                });
        stage.whenCompleteAsync(
                (result, thrown) -> report(grant, result, thrown), context.background().workers());
    }

    private CompletableFuture<T> begin(Grant grant) {
        try {
            return work.apply(grant).toCompletableFuture();
        } catch (RuntimeException thrown) {
            return CompletableFuture.failedFuture(thrown);
        }
    }

    private void report(Grant grant, T result, Throwable thrown) {
        try {
            if (thrown == null) {
                end.complete(grant.done(result));
                return;
            }
            Throwable cause =
                    thrown instanceof CompletionException && thrown.getCause() != null
                            ? thrown.getCause()
                            : thrown;
            grant.end(cause);
            end.completeExceptionally(cause);
        } catch (RuntimeException failed) {
            end.completeExceptionally(failed);
        } finally {
            grant.stop();
        }
    }
}
