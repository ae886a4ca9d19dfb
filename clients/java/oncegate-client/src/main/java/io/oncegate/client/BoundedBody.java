package io.oncegate.client;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.http.HttpResponse.BodySubscriber;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Flow;

/**
 * Collects an answer up to a length that no gateway reaches: something else may answer without end.
 */
final class BoundedBody implements BodySubscriber<String> {
    private static final int BYTES_MAX = 32 * 1024 * 1024;

    private final CompletableFuture<String> body = new CompletableFuture<>();
    private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    private Flow.Subscription subscription;

    /** An answer that is too long to be a gateway's. */
    static final class TooLong extends IOException {
        TooLong() {
            super("the answer has more than " + BYTES_MAX + " bytes");
        }
    }

    @Override
    public CompletionStage<String> getBody() {
        return body;
    }

    @Override
    public void onSubscribe(Flow.Subscription subscription) {
        this.subscription = subscription;
        subscription.request(Long.MAX_VALUE);
    }

    @Override
    public void onNext(List<ByteBuffer> buffers) {
        for (ByteBuffer buffer : buffers) {
            if (bytes.size() + buffer.remaining() > BYTES_MAX) {
                subscription.cancel();
                body.completeExceptionally(new TooLong());
                return;
            }
            byte[] piece = new byte[buffer.remaining()];
            buffer.get(piece);
            bytes.writeBytes(piece);
        }
    }

    @Override
    public void onError(Throwable failure) {
        body.completeExceptionally(failure);
    }

    @Override
    public void onComplete() {
        body.complete(bytes.toString(StandardCharsets.UTF_8));
    }
}
