package io.oncegate.spring.webflux;

import io.oncegate.client.http.RequestHead;
import java.util.List;
import java.util.Locale;
import org.springframework.http.server.reactive.ServerHttpRequest;

/** The head of a reactive request. */
record ReactiveHead(ServerHttpRequest request) implements RequestHead {
    @Override
    public String method() {
        return request.getMethod().name();
    }

    @Override
    public String path() {
        return request.getURI().getRawPath();
    }

    @Override
    public String query() {
        return request.getURI().getRawQuery();
    }

    @Override
    public Iterable<String> names() {
        return HeaderLines.of(request.getHeaders()).keySet();
    }

    @Override
    public List<String> lines(String name) {
        return HeaderLines.of(request.getHeaders())
                .getOrDefault(name.toLowerCase(Locale.ROOT), List.of());
    }
}
