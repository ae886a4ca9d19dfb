package io.oncegate.client.servlet;

import io.oncegate.client.http.RequestHead;
import jakarta.servlet.http.HttpServletRequest;
import java.util.Collections;
import java.util.List;

/** The head of a servlet's request. */
record ServletHead(HttpServletRequest request) implements RequestHead {
    @Override
    public String method() {
        return request.getMethod();
    }

    @Override
    public String path() {
        return request.getRequestURI();
    }

    @Override
    public String query() {
        return request.getQueryString();
    }

    @Override
    public Iterable<String> names() {
        return Collections.list(request.getHeaderNames());
    }

    @Override
    public List<String> lines(String name) {
        return Collections.list(request.getHeaders(name));
    }
}
