package io.oncegate.vectors;

import io.oncegate.client.CurrentGrant;
import io.oncegate.client.Grant;
import io.oncegate.client.JsonText;
import io.oncegate.client.Outcome;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.zip.GZIPOutputStream;
import org.springframework.core.io.buffer.DataBuffer;
import org.springframework.core.io.buffer.DataBufferUtils;
import org.springframework.http.HttpStatus;
import org.springframework.http.HttpStatusCode;
import org.springframework.http.ResponseEntity;
import org.springframework.http.codec.multipart.FilePart;
import org.springframework.http.codec.multipart.FormFieldPart;
import org.springframework.http.server.reactive.ServerHttpResponse;
import org.springframework.web.bind.annotation.ExceptionHandler;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RequestMapping;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.server.ResponseStatusException;
import org.springframework.web.server.ServerWebExchange;
import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;

/** Takes the steps of a request, with what WebFlux has. */
@RestController
class ReactiveHandler {
    private static final byte[] NONE = {};
    private final Runs runs = new Runs();

    @GetMapping(path = "/runs", produces = "application/json")
    String runs(@RequestParam("case") String name) {
        return runs.json(name);
    }

    @ExceptionHandler(StockError.class)
    ResponseEntity<String> outOfStock(StockError error) {
        return ResponseEntity.status(HttpStatus.CONFLICT).body(error.getMessage());
    }

    @RequestMapping("/{at}/**")
    Mono<Void> handle(ServerWebExchange exchange) {
        var headers = exchange.getRequest().getHeaders();
        boolean isForm = String.valueOf(headers.getFirst("Vector-Do")).contains("\"form\"");
        Mono<byte[]> body =
                isForm
                        ? Mono.just(NONE)
                        : DataBufferUtils.join(exchange.getRequest().getBody())
                                .map(ReactiveHandler::bytes)
                                .defaultIfEmpty(NONE);
        return body.flatMap(
                bytes -> {
                    var run =
                            runs.begin(
                                    headers.getFirst("Vector-Case"),
                                    bytes,
                                    headers.getFirst("Accept-Encoding"));
                    var state = new State(exchange, run, bytes, new LinkedHashMap<>());
                    return Flux.fromIterable(Steps.of(headers.getFirst("Vector-Do")))
                            .concatMap(step -> step(state, step))
                            .then(Mono.defer(() -> answer(state)))
                            .doOnSuccess(nothing -> run.put("ended", "returned"))
                            .doOnError(thrown -> run.put("ended", "raised"));
                });
    }

    private static byte[] bytes(DataBuffer buffer) {
        byte[] bytes = new byte[buffer.readableByteCount()];
        buffer.read(bytes);
        DataBufferUtils.release(buffer);
        return bytes;
    }

    private record State(
            ServerWebExchange exchange,
            Map<String, Object> run,
            byte[] body,
            Map<String, Object> more) {}

    private Mono<Void> step(State state, Map<?, ?> step) {
        String kind = (String) step.keySet().iterator().next();
        Object value = step.get(kind);
        Grant grant = state.exchange.getAttribute(CurrentGrant.ATTRIBUTE);
        return switch (kind) {
            case "sleep" -> Mono.delay(Duration.ofMillis(Steps.number(step, kind, 0))).then();
            case "poll" -> poll(state, grant, Steps.number(step, kind, 0));
            case "mark" ->
                    Mono.fromRunnable(
                            () ->
                                    grant.mark(
                                            Outcome.valueOf(
                                                    ((String) value).toUpperCase(Locale.ROOT))));
            case "raise" -> raise((String) value);
            case "after" ->
                    Mono.fromRunnable(
                            () ->
                                    CompletableFuture.runAsync(
                                            () -> {
                                                Steps.sleep(Steps.number(step, kind, 0));
                                                state.run.put("after", "done");
                                            }));
            case "fails" -> Mono.fromRunnable(() -> state.more.put("fails", value));
            case "encode" -> Mono.fromRunnable(() -> state.more.put("encode", true));
            case "parsed" ->
                    Mono.fromRunnable(
                            () ->
                                    state.more.put(
                                            "value",
                                            new JsonText(
                                                            new String(
                                                                    state.body,
                                                                    StandardCharsets.UTF_8))
                                                    .value()));
            case "form" -> form(state);
            case "respond" -> respond(state, (Map<?, ?>) value);
            case "stream" -> stream(state, (Map<?, ?>) value);
            default -> Mono.error(new IllegalArgumentException("no step " + kind));
        };
    }

    private static Mono<Void> poll(State state, Grant grant, int millis) {
        // WebFlux cancels, and has no question: the grant says it.
        return Flux.interval(Duration.ofMillis(20))
                .map(tick -> grant != null && grant.callerGone().isDone())
                .takeUntil(gone -> gone)
                .take(Duration.ofMillis(millis))
                .reduce(false, (one, other) -> one || other)
                .doOnNext(gone -> state.run.put("gone", gone))
                .then();
    }

    private static Mono<Void> raise(String kind) {
        return Mono.error(
                switch (kind) {
                    case "stock" -> new StockError();
                    case "http" -> new ResponseStatusException(HttpStatus.CONFLICT, "sold out");
                    case "caused" -> new IllegalStateException("of the case", new StockError());
                    default -> new IllegalStateException("of the case");
                });
    }

    private static Mono<Void> form(State state) {
        Map<String, Object> fields = new LinkedHashMap<>();
        Map<String, Object> files = new LinkedHashMap<>();
        return state.exchange
                .getMultipartData()
                .flatMapMany(parts -> Flux.fromIterable(parts.values()).flatMapIterable(all -> all))
                .concatMap(
                        part -> {
                            if (part instanceof FilePart file) {
                                return DataBufferUtils.join(file.content())
                                        .doOnNext(
                                                content ->
                                                        files.put(
                                                                file.name(),
                                                                bytes(content).length));
                            }
                            fields.put(part.name(), ((FormFieldPart) part).value());
                            return Mono.empty();
                        })
                .then(
                        Mono.fromRunnable(
                                () -> {
                                    state.more.put("fields", fields);
                                    state.more.put("files", files);
                                }));
    }

    private static Mono<Void> answer(State state) {
        ServerHttpResponse response = state.exchange.getResponse();
        if (response.isCommitted()) {
            return Mono.empty();
        }
        boolean encodes = state.more.remove("encode") != null;
        Object fails = state.more.remove("fails");
        Map<String, Object> answer = Runs.copy(state.run);
        answer.putAll(state.more);
        byte[] json = JsonText.of(answer).text().getBytes(StandardCharsets.UTF_8);
        response.setStatusCode(HttpStatus.CREATED);
        response.getHeaders().set("Content-Type", "application/json");
        String accepted =
                String.valueOf(
                        state.exchange.getRequest().getHeaders().getFirst("Accept-Encoding"));
        if (encodes && accepted.contains("gzip")) {
            response.getHeaders().set("Content-Encoding", "gzip");
            json = zipped(json);
        }
        Mono<DataBuffer> body = Mono.just(response.bufferFactory().wrap(json));
        if (!(fails instanceof Number millis)) {
            return response.writeWith(body);
        }
        response.getHeaders().setContentLength(json.length);
        return response.writeWith(body)
                .then(Mono.delay(Duration.ofMillis(millis.longValue())))
                .doOnNext(tick -> state.run.put("after", "failed"))
                .then(Mono.error(new IllegalStateException("the background work fails")));
    }

    private static byte[] zipped(byte[] json) {
        var zipped = new ByteArrayOutputStream();
        try (var zip = new GZIPOutputStream(zipped)) {
            zip.write(json);
        } catch (IOException impossible) {
            throw new IllegalStateException(impossible);
        }
        return zipped.toByteArray();
    }

    private static Mono<Void> respond(State state, Map<?, ?> respond) {
        ServerHttpResponse response = state.exchange.getResponse();
        response.setStatusCode(HttpStatusCode.valueOf(Steps.number(respond, "status", 201)));
        for (var field : Steps.headers(respond)) {
            response.getHeaders().add(field.getKey(), field.getValue());
        }
        String body = Steps.body(respond);
        if (body == null) {
            return response.setComplete();
        }
        byte[] bytes = body.getBytes(StandardCharsets.UTF_8);
        response.getHeaders().setContentLength(bytes.length);
        return response.writeWith(Mono.just(response.bufferFactory().wrap(bytes)));
    }

    private static Mono<Void> stream(State state, Map<?, ?> stream) {
        ServerHttpResponse response = state.exchange.getResponse();
        response.setStatusCode(HttpStatusCode.valueOf(Steps.number(stream, "status", 201)));
        if (state.exchange.getRequest().getURI().getRawPath().startsWith("/zip/")) {
            response.getHeaders().set("Content-Type", Steps.ZIPPED);
        }
        for (var field : Steps.headers(stream)) {
            response.getHeaders().add(field.getKey(), field.getValue());
        }
        if (Steps.flag(stream, "length")) {
            response.getHeaders().setContentLength(Steps.length(stream));
        }
        int breaks = Steps.number(stream, "break_after", -1);
        Duration every = Duration.ofMillis(Steps.number(stream, "every", 0));
        Flux<DataBuffer> rows =
                Flux.range(0, Steps.number(stream, "rows", 0))
                        .concatMap(
                                at -> {
                                    if (at == breaks) {
                                        return Mono.error(new IllegalStateException("of the case"));
                                    }
                                    byte[] row =
                                            Steps.row(stream, at).getBytes(StandardCharsets.UTF_8);
                                    Mono<DataBuffer> piece =
                                            Mono.just(response.bufferFactory().wrap(row));
                                    return at == 0 ? piece : Mono.delay(every).then(piece);
                                })
                        .concatWith(Mono.delay(every).then(Mono.empty()));
        return response.writeAndFlushWith(rows.map(Flux::just));
    }
}
