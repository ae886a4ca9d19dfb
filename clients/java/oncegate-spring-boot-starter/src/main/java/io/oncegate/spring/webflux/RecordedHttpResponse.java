package io.oncegate.spring.webflux;

import io.oncegate.client.http.Field;
import io.oncegate.client.http.Run;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.function.Supplier;
import org.reactivestreams.Publisher;
import org.springframework.core.io.buffer.DataBuffer;
import org.springframework.http.HttpHeaders;
import org.springframework.http.HttpStatusCode;
import org.springframework.http.server.reactive.ChannelSendOperator;
import org.springframework.http.server.reactive.ServerHttpResponse;
import org.springframework.http.server.reactive.ServerHttpResponseDecorator;
import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;
import reactor.core.scheduler.Schedulers;

/** The response as the handler writes it. It is recorded, and its end waits for the report. */
final class RecordedHttpResponse extends ServerHttpResponseDecorator {
    private final Run run;
    private final HttpHeaders headers = new HttpHeaders();

    /** Fields that outer layers had set before the handler ran: these are not stored. */
    private final Map<String, List<String>> outer;

    private final List<Supplier<? extends Mono<Void>>> beforeCommit = new ArrayList<>();
    private volatile boolean begun;

    RecordedHttpResponse(ServerHttpResponse response, Run run) {
        super(response);
        this.run = run;
        outer = HeaderLines.of(response.getHeaders());
        HeaderLines.replace(headers, outer);
    }

    @Override
    public HttpHeaders getHeaders() {
        return headers;
    }

    @Override
    public void beforeCommit(Supplier<? extends Mono<Void>> action) {
        beforeCommit.add(action);
    }

    @Override
    public boolean isCommitted() {
        return begun || super.isCommitted();
    }

    @Override
    public Mono<Void> writeWith(Publisher<? extends DataBuffer> body) {
        return unlessItFails(
                body, pieces -> begin(pieces, relay -> getDelegate().writeWith(relay)));
    }

    @Override
    public Mono<Void> writeAndFlushWith(Publisher<? extends Publisher<? extends DataBuffer>> body) {
        Flux<DataBuffer> flat = Flux.from(body).concatMap(piece -> piece);
        return unlessItFails(
                flat,
                pieces ->
                        begin(
                                pieces,
                                relay -> getDelegate().writeAndFlushWith(relay.map(Flux::just))));
    }

    @Override
    public Mono<Void> setComplete() {
        return Mono.defer(this::end);
    }

    /** Waits for the first piece: if there is none but an error, that is still to be answered. */
    private static Mono<Void> unlessItFails(
            Publisher<? extends DataBuffer> body, Function<Flux<DataBuffer>, Mono<Void>> write) {
        return new ChannelSendOperator<DataBuffer>(body, pieces -> write.apply(Flux.from(pieces)));
    }

    private interface Write {
        Mono<Void> with(Flux<DataBuffer> relay);
    }

    private Mono<Void> begin(Flux<? extends DataBuffer> body, Write write) {
        return head().then(
                        Mono.defer(
                                () -> {
                                    long declared = getDelegate().getHeaders().getContentLength();
                                    var relay = new Relay(run, body, declared, hasBody());
                                    // The caller may go: the handler's body is read to its end.
                                    Mono<Void> written = write.with(relay.toCaller());
                                    return relay.read()
                                            .and(written.onErrorResume(relay::callerGone));
                                }));
    }

    private boolean hasBody() {
        HttpStatusCode status = getStatusCode();
        int code = status == null ? 200 : status.value();
        return code != 204 && code != 205 && code != 304;
    }

    /** Records the head, which goes out now. */
    private Mono<Void> head() {
        return Mono.defer(
                () -> {
                    if (begun) {
                        return Mono.error(new IllegalStateException("The response has started"));
                    }
                    begun = true;
                    return Flux.fromIterable(List.copyOf(beforeCommit))
                            .concatMap(Supplier::get)
                            .then(Mono.fromRunnable(this::recordHead));
                });
    }

    private void recordHead() {
        HttpHeaders sent = getDelegate().getHeaders();
        Map<String, List<String>> handlers = HeaderLines.of(headers);
        Map<String, List<String>> all = new LinkedHashMap<>(HeaderLines.of(sent));
        List<Field> own = new ArrayList<>();
        // The handler may remove the fields of outer layers, but not those of the filter.
        all.keySet()
                .removeIf(
                        name ->
                                outer.containsKey(name)
                                        && !handlers.containsKey(name)
                                        && !Run.isOwn(name));
        handlers.forEach(
                (name, lines) -> {
                    if (lines.equals(outer.get(name)) || run.takes(name, lines, false)) {
                        return;
                    }
                    all.put(name, lines);
                    lines.forEach(line -> own.add(new Field(name, line)));
                });
        HeaderLines.replace(sent, all);
        HttpStatusCode status = getStatusCode();
        if (status != null && (status.value() == 204 || status.value() == 304)) {
            sent.remove(HttpHeaders.CONTENT_LENGTH);
        }
        run.head(status == null ? 200 : status.value(), own);
    }

    /** Reports a response that ends without a body, or whose body was sent. */
    Mono<Void> end() {
        if (begun) {
            return blocking(run::complete);
        }
        return head().then(blocking(run::complete)).then(getDelegate().setComplete());
    }

    /** Leaves an error to the layers outside. What they answer is the response. */
    Mono<Void> leave(Throwable thrown) {
        if (isCommitted()) {
            return blocking(run::broken).then(Mono.error(thrown));
        }
        getDelegate()
                .beforeCommit(
                        () -> {
                            HttpStatusCode status = getDelegate().getStatusCode();
                            int code = status == null ? 200 : status.value();
                            return blocking(() -> run.answeredOutside(code));
                        });
        // No layer answers a caller that has disconnected.
        run.grant().callerGone().thenRun(() -> blocking(run::broken).subscribe());
        return Mono.error(thrown);
    }

    private static Mono<Void> blocking(Runnable report) {
        return Mono.<Void>fromRunnable(report).subscribeOn(Schedulers.boundedElastic());
    }
}
