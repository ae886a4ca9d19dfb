package io.oncegate.spring;

import io.oncegate.client.OncegateClient;
import io.oncegate.client.http.Idempotency;
import io.oncegate.client.servlet.IdempotencyFilter;
import io.oncegate.spring.webflux.IdempotencyWebFilter;
import jakarta.servlet.DispatcherType;
import jakarta.servlet.ServletContext;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.EnumSet;
import java.util.List;
import org.springframework.boot.web.embedded.netty.NettyReactiveWebServerFactory;
import org.springframework.boot.web.embedded.tomcat.TomcatServletWebServerFactory;
import org.springframework.boot.web.server.WebServer;
import org.springframework.core.io.buffer.DataBuffer;
import org.springframework.core.io.buffer.DefaultDataBufferFactory;
import org.springframework.http.server.reactive.ServerHttpResponse;
import org.springframework.web.server.ServerWebExchange;
import org.springframework.web.server.adapter.WebHttpHandlerBuilder;
import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;

/** Both filters on a real server, before a handler that sends its response in pieces. */
enum RunningServer {
    TOMCAT {
        @Override
        WebServer start(OncegateClient client, Pieces response) {
            var rules = new Idempotency<HttpServletRequest>(client, "shop.http").sharedKeys();
            var factory = new TomcatServletWebServerFactory(0);
            factory.setAddress(InetAddress.getLoopbackAddress());
            return started(factory.getWebServer(context -> register(context, rules, response)));
        }
    },
    NETTY {
        @Override
        WebServer start(OncegateClient client, Pieces response) {
            var rules = new Idempotency<ServerWebExchange>(client, "shop.http").sharedKeys();
            var handler =
                    WebHttpHandlerBuilder.webHandler(
                                    exchange -> send(exchange.getResponse(), response))
                            .filter(new IdempotencyWebFilter(rules, List.of()))
                            .build();
            var factory = new NettyReactiveWebServerFactory(0);
            factory.setAddress(InetAddress.getLoopbackAddress());
            return started(factory.getWebServer(handler));
        }
    };

    private static final DefaultDataBufferFactory BUFFERS = new DefaultDataBufferFactory();

    /**
     * What the handler sends; each piece is flushed but the last.
     *
     * @param isDeclared the length is declared
     */
    record Pieces(boolean isDeclared, List<String> texts) {
        int length() {
            return String.join("", texts).length();
        }
    }

    abstract WebServer start(OncegateClient client, Pieces response);

    private static WebServer started(WebServer server) {
        server.start();
        return server;
    }

    private static void register(
            ServletContext context, Idempotency<HttpServletRequest> rules, Pieces pieces) {
        var dispatches =
                EnumSet.of(DispatcherType.REQUEST, DispatcherType.ASYNC, DispatcherType.ERROR);
        context.addFilter("idempotency", new IdempotencyFilter(rules))
                .addMappingForUrlPatterns(dispatches, false, "/*");
        context.addServlet("handler", servlet(pieces)).addMapping("/*");
    }

    private static HttpServlet servlet(Pieces pieces) {
        return new HttpServlet() {
            private static final long serialVersionUID = 1;

            @Override
            protected void doPost(HttpServletRequest request, HttpServletResponse response)
                    throws IOException {
                if (pieces.isDeclared()) {
                    response.setContentLength(pieces.length());
                }
                int at = 0;
                for (String text : pieces.texts()) {
                    response.getOutputStream().write(text.getBytes(StandardCharsets.UTF_8));
                    if (++at < pieces.texts().size()) {
                        response.flushBuffer();
                    }
                }
            }
        };
    }

    private static Mono<Void> send(ServerHttpResponse response, Pieces pieces) {
        if (pieces.isDeclared()) {
            response.getHeaders().setContentLength(pieces.length());
        }
        Flux<DataBuffer> buffers =
                Flux.fromIterable(pieces.texts())
                        .map(text -> BUFFERS.wrap(text.getBytes(StandardCharsets.UTF_8)));
        return pieces.texts().size() == 1
                ? response.writeWith(buffers)
                : response.writeAndFlushWith(buffers.map(Flux::just));
    }
}
