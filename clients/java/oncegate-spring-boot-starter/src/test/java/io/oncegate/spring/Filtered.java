package io.oncegate.spring;

import io.oncegate.client.OncegateClient;
import io.oncegate.client.http.Idempotency;
import io.oncegate.client.servlet.IdempotencyFilter;
import io.oncegate.spring.webflux.IdempotencyWebFilter;
import jakarta.servlet.Filter;
import jakarta.servlet.ReadListener;
import jakarta.servlet.ServletInputStream;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import jakarta.servlet.http.HttpServletResponse;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.GZIPInputStream;
import org.springframework.core.io.buffer.DataBuffer;
import org.springframework.core.io.buffer.DataBufferUtils;
import org.springframework.core.io.buffer.DefaultDataBufferFactory;
import org.springframework.http.HttpHeaders;
import org.springframework.http.HttpStatus;
import org.springframework.http.server.reactive.ServerHttpRequestDecorator;
import org.springframework.mock.http.server.reactive.MockServerHttpRequest;
import org.springframework.mock.web.MockFilterChain;
import org.springframework.mock.web.MockHttpServletRequest;
import org.springframework.mock.web.MockHttpServletResponse;
import org.springframework.mock.web.server.MockServerWebExchange;
import org.springframework.web.server.ServerWebExchange;
import org.springframework.web.server.WebFilter;
import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;

/** Both filters, before a handler that answers 201 with what it has read. */
enum Filtered {
    SERVLET {
        @Override
        Answer post(Service service, String key, byte[] body) throws Exception {
            var handler =
                    new HttpServlet() {
                        private static final long serialVersionUID = 1;

                        @Override
                        protected void doPost(
                                HttpServletRequest request, HttpServletResponse response)
                                throws IOException {
                            byte[] read = request.getInputStream().readAllBytes();
                            service.bodies.add(new String(read, StandardCharsets.UTF_8));
                            if (service.clears) {
                                response.reset();
                            }
                            response.setStatus(201);
                            response.getOutputStream().write(read);
                        }
                    };
            var request = new MockHttpServletRequest("POST", "/orders");
            request.addHeader("Idempotency-Key", key);
            if (body.length > 0) {
                request.setContent(body);
                request.addHeader("Content-Length", body.length);
                request.addHeader("Content-Encoding", service.unzips ? "gzip" : "identity");
            }
            Filter unzips =
                    (its, answer, chain) ->
                            chain.doFilter(
                                    service.unzips ? unzipped((HttpServletRequest) its) : its,
                                    answer);
            var rules = new Idempotency<HttpServletRequest>(service.client, "shop.http");
            var filter = new IdempotencyFilter(rules.sharedKeys());
            var response = new MockHttpServletResponse();
            new MockFilterChain(handler, unzips, filter).doFilter(request, response);
            return new Answer(
                    response.getStatus(),
                    response.getHeader("Oncegate-Degraded"),
                    response.getHeader("Idempotent-Replayed"),
                    response.getContentAsString());
        }
    },
    WEBFLUX {
        @Override
        Answer post(Service service, String key, byte[] body) {
            var request =
                    MockServerHttpRequest.post("/orders")
                            .header("Idempotency-Key", key)
                            .header("Content-Encoding", service.unzips ? "gzip" : "identity")
                            .contentLength(body.length)
                            .body(Flux.just(BUFFERS.wrap(body)));
            var exchange = MockServerWebExchange.from(request);
            WebFilter unzips = (its, chain) -> chain.filter(service.unzips ? unzipped(its) : its);
            var rules = new Idempotency<ServerWebExchange>(service.client, "shop.http");
            var filter = new IdempotencyWebFilter(rules.sharedKeys(), List.of());
            unzips.filter(exchange, next -> filter.filter(next, its -> echo(service, its))).block();
            var response = exchange.getResponse();
            return new Answer(
                    response.getStatusCode().value(),
                    response.getHeaders().getFirst("Oncegate-Degraded"),
                    response.getHeaders().getFirst("Idempotent-Replayed"),
                    response.getBodyAsString().block());
        }
    };

    private static final DefaultDataBufferFactory BUFFERS = new DefaultDataBufferFactory();

    /** What stands behind and before the filter. */
    static final class Service {
        private final OncegateClient client;
        private final boolean unzips;
        private final boolean clears;
        private final List<String> bodies = new ArrayList<>();

        /**
         * A service.
         *
         * @param unzips a layer outside of the filter decompresses requests
         * @param clears the handler clears the fields that were set before it
         */
        Service(OncegateClient client, boolean unzips, boolean clears) {
            this.client = client;
            this.unzips = unzips;
            this.clears = clears;
        }

        /** Returns the bodies with which the handler has run. */
        List<String> bodies() {
            return bodies;
        }
    }

    /** A response; null for a field that it does not have. */
    record Answer(int status, String degraded, String replayed, String body) {}

    abstract Answer post(Service service, String key, byte[] body) throws Exception;

    /** As a layer does that leaves the fields of the request as they are. */
    private static HttpServletRequest unzipped(HttpServletRequest request) throws IOException {
        InputStream plain = new GZIPInputStream(request.getInputStream());
        var stream =
                new ServletInputStream() {
                    private boolean isFinished;

                    @Override
                    public int read() throws IOException {
                        int unit = plain.read();
                        isFinished = unit < 0;
                        return unit;
                    }

                    @Override
                    public boolean isFinished() {
                        return isFinished;
                    }

                    @Override
                    public boolean isReady() {
                        return true;
                    }

                    @Override
                    public void setReadListener(ReadListener listener) {
                        throw new UnsupportedOperationException();
                    }
                };
        return new HttpServletRequestWrapper(request) {
            @Override
            public ServletInputStream getInputStream() {
                return stream;
            }
        };
    }

    private static ServerWebExchange unzipped(ServerWebExchange exchange) {
        var request =
                new ServerHttpRequestDecorator(exchange.getRequest()) {
                    @Override
                    public Flux<DataBuffer> getBody() {
                        return DataBufferUtils.join(super.getBody())
                                .map(Filtered::unzipped)
                                .filter(plain -> plain.readableByteCount() > 0)
                                .flux();
                    }
                };
        return exchange.mutate().request(request).build();
    }

    private static DataBuffer unzipped(DataBuffer buffer) {
        byte[] bytes = new byte[buffer.readableByteCount()];
        buffer.read(bytes);
        try (var plain = new GZIPInputStream(new ByteArrayInputStream(bytes))) {
            return BUFFERS.wrap(plain.readAllBytes());
        } catch (IOException torn) {
            throw new UncheckedIOException(torn);
        }
    }

    private static Mono<Void> echo(Service service, ServerWebExchange exchange) {
        HttpHeaders headers = exchange.getResponse().getHeaders();
        if (service.clears) {
            headers.clear();
        }
        exchange.getResponse().setStatusCode(HttpStatus.CREATED);
        return DataBufferUtils.join(exchange.getRequest().getBody())
                .map(body -> body.toString(StandardCharsets.UTF_8))
                .defaultIfEmpty("")
                .flatMap(
                        text -> {
                            service.bodies.add(text);
                            byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
                            return exchange.getResponse().writeWith(Mono.just(BUFFERS.wrap(bytes)));
                        });
    }
}
