package io.oncegate.spring.webflux;

import org.springframework.http.server.reactive.ServerHttpResponse;
import org.springframework.http.server.reactive.ServerHttpResponseDecorator;
import org.springframework.util.ClassUtils;
import reactor.netty.http.server.HttpServerResponse;

/**
 * Uploads that Reactor Netty has refused. It answers a malformed chunk itself, and ends the body as
 * if it were complete.
 */
final class RefusedUploads {
    private static final boolean HAS_NETTY =
            ClassUtils.isPresent(
                    "reactor.netty.http.server.HttpServerResponse",
                    RefusedUploads.class.getClassLoader());

    private RefusedUploads() {}

    /** Returns true if the server has answered before the body of the request has ended. */
    static boolean isAnswered(ServerHttpResponse response) {
        return HAS_NETTY && Netty.isAnswered(response);
    }

    /** Loaded only where the server is. */
    private static final class Netty {
        static boolean isAnswered(ServerHttpResponse response) {
            Object own;
            try {
                own = ServerHttpResponseDecorator.getNativeResponse(response);
            } catch (IllegalArgumentException | IllegalStateException none) {
                // A response of a test has no server.
                return false;
            }
            return own instanceof HttpServerResponse server && server.hasSentHeaders();
        }
    }
}
