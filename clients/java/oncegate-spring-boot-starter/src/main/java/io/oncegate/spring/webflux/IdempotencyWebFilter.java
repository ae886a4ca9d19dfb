package io.oncegate.spring.webflux;

import io.oncegate.client.CurrentGrant;
import io.oncegate.client.http.Answer;
import io.oncegate.client.http.Engine;
import io.oncegate.client.http.Field;
import io.oncegate.client.http.Idempotency;
import io.oncegate.client.http.Problem;
import io.oncegate.client.http.Reply;
import io.oncegate.client.http.Run;
import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.function.Function;
import org.springframework.context.SmartLifecycle;
import org.springframework.core.io.buffer.DataBuffer;
import org.springframework.core.io.buffer.DataBufferLimitException;
import org.springframework.core.io.buffer.DataBufferUtils;
import org.springframework.http.HttpHeaders;
import org.springframework.http.HttpStatusCode;
import org.springframework.http.server.reactive.ServerHttpRequest;
import org.springframework.http.server.reactive.ServerHttpResponse;
import org.springframework.web.server.ServerWebExchange;
import org.springframework.web.server.WebExceptionHandler;
import org.springframework.web.server.WebFilter;
import org.springframework.web.server.WebFilterChain;
import reactor.core.publisher.Mono;
import reactor.core.scheduler.Schedulers;

/**
 * Lets each request with an {@code Idempotency-Key} run once, and answers its repeats with the
 * stored response. It runs after the authentication.
 *
 * <p>Errors that the handler leaves are answered here, by the application's own exception handlers,
 * since their answer is a response too; but for those of Spring Security, whose filter answers
 * them.
 *
 * <p>As a bean it waits at the shutdown until the handlers whose callers have disconnected have
 * ended; the server waits for the others.
 */
public final class IdempotencyWebFilter implements WebFilter, SmartLifecycle {
    private static final System.Logger LOG = System.getLogger("io.oncegate.client");
    private static final Duration DRAIN = Duration.ofSeconds(30);

    /** After the server has ended its requests, and before it stops (those of Spring Boot). */
    private static final int PHASE = DEFAULT_PHASE - 1536;

    private static final byte[] NONE = {};
    private static final String SECURITY = "org.springframework.security.";

    private final Engine<ServerWebExchange> engine;
    private final Function<ServerWebExchange, Mono<String>> principal;
    private final List<WebExceptionHandler> errors;
    private volatile boolean isStarted;

    /**
     * A filter with these rules.
     *
     * @param errors the application's handlers, in order
     */
    public IdempotencyWebFilter(
            Idempotency<ServerWebExchange> rules, List<? extends WebExceptionHandler> errors) {
        this.engine = new Engine<>(rules);
        this.principal = exchange -> Mono.justOrEmpty(engine.principal(exchange));
        this.errors = List.copyOf(errors);
    }

    /**
     * A filter whose principal is not known at once, such as that of Spring Security.
     *
     * @param errors the application's handlers, in order
     */
    public IdempotencyWebFilter(
            Idempotency<ServerWebExchange> rules,
            Function<ServerWebExchange, Mono<String>> principal,
            List<? extends WebExceptionHandler> errors) {
        this.engine = new Engine<>(rules.principal(exchange -> ""));
        this.principal = principal;
        this.errors = List.copyOf(errors);
    }

    /** Waits until no handler runs; returns false if some still ran at the end of the time. */
    public boolean drain(Duration within) throws InterruptedException {
        return engine.drain(within);
    }

    @Override
    public void start() {
        isStarted = true;
    }

    @Override
    public void stop() {
        isStarted = false;
        try {
            if (!drain(DRAIN)) {
                LOG.log(
                        System.Logger.Level.WARNING,
                        "Handlers were still running at the shutdown; their outcomes are unknown"
                                + " when their leases end");
            }
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    @Override
    public boolean isRunning() {
        return isStarted;
    }

    @Override
    public int getPhase() {
        return PHASE;
    }

    @Override
    public Mono<Void> filter(ServerWebExchange exchange, WebFilterChain chain) {
        if (exchange.getAttribute(CurrentGrant.ATTRIBUTE) != null) {
            // An outer filter of the same kind protects it.
            return chain.filter(exchange);
        }
        var head = new ReactiveHead(exchange.getRequest());
        Answer entered = engine.enter(head, exchange);
        if (!(entered instanceof Answer.Keyed keyed)) {
            return settle(entered, exchange, chain);
        }
        return principal
                .apply(exchange)
                .defaultIfEmpty("")
                .flatMap(
                        who -> {
                            Answer without = engine.withoutPrincipal(who);
                            return without == null
                                    ? withBody(keyed, who, head, exchange, chain)
                                    : settle(without, exchange, chain);
                        });
    }

    private Mono<Void> withBody(
            Answer.Keyed keyed,
            String who,
            ReactiveHead head,
            ServerWebExchange exchange,
            WebFilterChain chain) {
        ServerHttpRequest request = exchange.getRequest();
        long declared = request.getHeaders().getContentLength();
        boolean isTooLong = declared > engine.bodyBytes();
        boolean isChunked = request.getHeaders().getFirst("Transfer-Encoding") != null;
        if (isTooLong || (isChunked && engine.isObserving())) {
            // When it observes, a body of unknown length is passed on as it comes.
            Answer refused = engine.refuse(Problem.bodyTooLarge(engine.bodyBytes()));
            return settle(refused, exchange, chain);
        }
        return DataBufferUtils.join(request.getBody(), engine.bodyBytes())
                .map(IdempotencyWebFilter::bytes)
                .defaultIfEmpty(NONE)
                .map(
                        bytes ->
                                new Body(
                                        bytes,
                                        isCut(bytes, declared, head, exchange)
                                                ? Problem.incomplete()
                                                : null))
                .onErrorResume(this::unreadable)
                .flatMap(
                        body ->
                                body.problem() == null
                                        ? claimed(keyed, who, head, body.bytes(), exchange, chain)
                                        : settle(engine.refuse(body.problem()), exchange, chain));
    }

    private static boolean isCut(
            byte[] bytes, long declared, ReactiveHead head, ServerWebExchange exchange) {
        return (bytes.length < declared && !head.isCompressed())
                || RefusedUploads.isAnswered(exchange.getResponse());
    }

    /** A body that was read, or the reason why it cannot be taken. */
    private record Body(byte[] bytes, Problem problem) {}

    private Mono<Body> unreadable(Throwable thrown) {
        if (thrown instanceof DataBufferLimitException) {
            return Mono.just(new Body(NONE, Problem.bodyTooLarge(engine.bodyBytes())));
        }
        if (thrown instanceof IllegalStateException) {
            String why = "A layer before it has read the body, such as a parser of forms.";
            return Mono.just(new Body(NONE, Problem.bodyNotSeen(why)));
        }
        return Mono.just(new Body(NONE, Problem.incomplete()));
    }

    private static byte[] bytes(DataBuffer buffer) {
        byte[] bytes = new byte[buffer.readableByteCount()];
        buffer.read(bytes);
        DataBufferUtils.release(buffer);
        return bytes;
    }

    private Mono<Void> claimed(
            Answer.Keyed keyed,
            String who,
            ReactiveHead head,
            byte[] body,
            ServerWebExchange exchange,
            WebFilterChain chain) {
        var handover = new Handover();
        return Mono.fromCallable(() -> handover.offer(engine.claim(keyed, who, head, body)))
                .subscribeOn(Schedulers.boundedElastic())
                .doOnCancel(handover::cancel)
                .flatMap(
                        answer -> {
                            if (answer instanceof Answer.Granted granted) {
                                return Mono.defer(
                                        () ->
                                                handover.take(answer)
                                                        ? run(granted.run(), body, exchange, chain)
                                                        : Mono.empty());
                            }
                            var again = new BufferedHttpRequest(exchange, body, false);
                            return settle(
                                    answer, new RecordedExchange(exchange, again, null), chain);
                        });
    }

    private Mono<Void> run(Run run, byte[] body, ServerWebExchange exchange, WebFilterChain chain) {
        String degraded = run.grant().degraded();
        if (degraded != null) {
            exchange.getResponse().getHeaders().set("Oncegate-Degraded", degraded);
        }
        exchange.getAttributes().put(CurrentGrant.ATTRIBUTE, run.grant());
        var response = new RecordedHttpResponse(exchange.getResponse(), run);
        exchange.getAttributes().put(RecordedExchange.RUN, run);
        var request = new BufferedHttpRequest(exchange, body, true);
        ServerWebExchange recorded = new RecordedExchange(exchange, request, response);
        Mono<Void> handled =
                Mono.defer(() -> chain.filter(recorded))
                        .onErrorResume(thrown -> answered(recorded, run, thrown))
                        .then(Mono.defer(response::end))
                        .onErrorResume(response::leave);
        if (engine.isStoppedWhenGone()) {
            return handled.doOnCancel(() -> Schedulers.boundedElastic().schedule(run::broken));
        }
        // Subscribed apart from the request: a caller that hangs up does not cancel the handler.
        return Mono.deferContextual(
                context -> {
                    var end = new CompletableFuture<Void>();
                    handled.contextWrite(context)
                            .subscribe(
                                    nothing -> {},
                                    end::completeExceptionally,
                                    () -> end.complete(null));
                    return Mono.fromFuture(end, true)
                            .doOnCancel(() -> run.grant().callerGone().complete(null));
                });
    }

    /** Answers an error as the application does. */
    private Mono<Void> answered(ServerWebExchange exchange, Run run, Throwable thrown) {
        run.thrown(thrown);
        if (isForSecurity(thrown) || exchange.getResponse().isCommitted()) {
            return Mono.error(thrown);
        }
        Mono<Void> answer = Mono.error(thrown);
        for (WebExceptionHandler handler : errors) {
            answer = answer.onErrorResume(error -> handler.handle(exchange, error));
        }
        return answer;
    }

    /** Returns true for errors of Spring Security, and for those of the application below them. */
    private static boolean isForSecurity(Throwable thrown) {
        Class<?> type = thrown.getClass();
        while (type != null && !type.getName().startsWith(SECURITY)) {
            type = type.getSuperclass();
        }
        return type != null;
    }

    private static Mono<Void> settle(
            Answer answer, ServerWebExchange exchange, WebFilterChain chain) {
        return answer instanceof Answer.Answered answered
                ? send(answered.reply(), exchange.getResponse())
                : chain.filter(exchange);
    }

    private static Mono<Void> send(Reply reply, ServerHttpResponse response) {
        response.setStatusCode(HttpStatusCode.valueOf(reply.status()));
        HttpHeaders headers = response.getHeaders();
        Set<String> named = new HashSet<>();
        for (Field field : reply.fields()) {
            if (named.add(field.name().toLowerCase(Locale.ROOT))) {
                headers.set(field.name(), field.value());
            } else {
                headers.add(field.name(), field.value());
            }
        }
        if (!reply.hasBody()) {
            return response.setComplete();
        }
        headers.setContentLength(reply.body().length);
        return response.writeWith(Mono.just(response.bufferFactory().wrap(reply.body())));
    }
}
