package io.oncegate.spring.webflux;

import io.oncegate.client.http.Run;
import java.nio.ByteBuffer;
import org.reactivestreams.Subscription;
import org.springframework.core.io.buffer.DataBuffer;
import org.springframework.core.io.buffer.DataBufferUtils;
import reactor.core.publisher.BaseSubscriber;
import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;
import reactor.core.publisher.Sinks;
import reactor.core.scheduler.Schedulers;
import reactor.util.context.Context;

/**
 * Hands the body of a response from the handler to the caller, and records it. The piece that fills
 * the declared length, or the end, waits for the report. The reading continues after the caller has
 * disconnected; a slow caller slows it.
 */
final class Relay {
    private final Run run;
    private final Flux<? extends DataBuffer> body;
    private final long declared;
    private final boolean hasBody;
    private final Sinks.Many<DataBuffer> toCaller = Sinks.many().unicast().onBackpressureBuffer();
    private final Sinks.Empty<Void> end = Sinks.empty();
    private Reader reader;
    private long read;
    private DataBuffer last;
    private volatile boolean gone;

    /**
     * A relay.
     *
     * @param hasBody false if the head alone is the response: it waits for the report, and what the
     *     handler sends after it is dropped
     */
    Relay(Run run, Flux<? extends DataBuffer> body, long declared, boolean hasBody) {
        this.run = run;
        this.body = body;
        this.declared = hasBody ? declared : -1;
        this.hasBody = hasBody;
    }

    /** Returns the body for the caller. */
    Flux<DataBuffer> toCaller() {
        return toCaller.asFlux()
                .doOnRequest(count -> reader.wanted(count))
                .doOnCancel(this::callerGone);
    }

    /** Returns the end of the reading. */
    Mono<Void> read() {
        return Mono.deferContextual(
                context -> {
                    reader = new Reader(Context.of(context));
                    body.subscribe(reader);
                    return end.asMono();
                });
    }

    Mono<Void> callerGone(Throwable broken) {
        callerGone();
        // The reading reports an error of the handler itself.
        return Mono.empty();
    }

    private void callerGone() {
        if (!gone) {
            gone = true;
            run.grant().callerGone().complete(null);
            if (reader != null) {
                reader.wanted(Long.MAX_VALUE);
            }
        }
    }

    private final class Reader extends BaseSubscriber<DataBuffer> {
        private final Context context;

        Reader(Context context) {
            this.context = context;
        }

        @Override
        public Context currentContext() {
            return context;
        }

        @Override
        protected void hookOnSubscribe(Subscription subscription) {
            // Requested as the caller takes it.
        }

        void wanted(long count) {
            request(count);
        }

        @Override
        protected void hookOnNext(DataBuffer buffer) {
            if (!hasBody) {
                DataBufferUtils.release(buffer);
                request(1);
                return;
            }
            byte[] bytes = new byte[buffer.readableByteCount()];
            buffer.toByteBuffer(ByteBuffer.wrap(bytes));
            run.body(bytes, 0, bytes.length);
            read += bytes.length;
            if (declared >= 0 && read >= declared) {
                last = buffer;
                request(1);
            } else {
                pass(buffer);
            }
        }

        private void pass(DataBuffer buffer) {
            if (gone || toCaller.tryEmitNext(buffer).isFailure()) {
                DataBufferUtils.release(buffer);
                callerGone();
            }
        }

        @Override
        protected void hookOnComplete() {
            Schedulers.boundedElastic()
                    .schedule(
                            () -> {
                                if (declared < 0 || read == declared) {
                                    run.complete();
                                } else {
                                    // The server breaks it off, or cuts it.
                                    run.broken();
                                }
                                if (last != null) {
                                    pass(last);
                                }
                                toCaller.tryEmitComplete();
                                end.tryEmitEmpty();
                            });
        }

        @Override
        protected void hookOnError(Throwable thrown) {
            run.thrown(thrown);
            Schedulers.boundedElastic()
                    .schedule(
                            () -> {
                                run.broken();
                                if (last != null) {
                                    DataBufferUtils.release(last);
                                }
                                toCaller.tryEmitError(thrown);
                                end.tryEmitError(thrown);
                            });
        }
    }
}
