package io.oncegate.spring.webflux;

import java.util.List;
import java.util.Map;
import org.springframework.core.io.buffer.DataBuffer;
import org.springframework.http.HttpHeaders;
import org.springframework.http.server.reactive.ServerHttpRequestDecorator;
import org.springframework.web.server.ServerWebExchange;
import reactor.core.publisher.Flux;

/**
 * The request as the handler sees it: the body as if it had just come, and without the fields that
 * would make a response fit one caller only.
 */
final class BufferedHttpRequest extends ServerHttpRequestDecorator {
    private static final List<String> HIDDEN = List.of("accept-encoding", "range", "if-range");

    private final byte[] body;
    private final ServerWebExchange exchange;
    private final HttpHeaders headers = new HttpHeaders();

    BufferedHttpRequest(ServerWebExchange exchange, byte[] body, boolean hides) {
        super(exchange.getRequest());
        this.body = body;
        this.exchange = exchange;
        Map<String, List<String>> lines = HeaderLines.of(exchange.getRequest().getHeaders());
        if (hides) {
            HIDDEN.forEach(lines::remove);
        }
        HeaderLines.replace(headers, lines);
    }

    int length() {
        return body.length;
    }

    @Override
    public HttpHeaders getHeaders() {
        return headers;
    }

    @Override
    public Flux<DataBuffer> getBody() {
        return body.length == 0
                ? Flux.empty()
                : Flux.defer(
                        () -> Flux.just(exchange.getResponse().bufferFactory().wrap(body.clone())));
    }
}
