package io.oncegate.client.servlet;

import io.oncegate.client.http.Field;
import io.oncegate.client.http.Reply;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Set;

/** Sends responses that the middleware itself makes. */
final class Replies {
    private Replies() {}

    /** Returns true if the caller asks for fields after the body. */
    static boolean takesTrailers(HttpServletRequest request) {
        return Collections.list(request.getHeaders("TE")).stream()
                .anyMatch(line -> line.toLowerCase(Locale.ROOT).contains("trailers"));
    }

    static void send(Reply reply, HttpServletResponse response, boolean takesTrailers)
            throws IOException {
        response.setStatus(reply.status());
        Set<String> named = new HashSet<>();
        for (Field field : reply.fields()) {
            if (field.name().equalsIgnoreCase("Content-Type")) {
                response.setContentType(field.value());
            } else if (named.add(field.name().toLowerCase(Locale.ROOT))) {
                // It replaces the value of an outer layer: the handler had changed it.
                response.setHeader(field.name(), field.value());
            } else {
                response.addHeader(field.name(), field.value());
            }
        }
        if (!reply.hasBody()) {
            return;
        }
        if (takesTrailers && !reply.trailers().isEmpty()) {
            Map<String, String> trailers = new LinkedHashMap<>();
            reply.trailers().forEach(field -> trailers.put(field.name(), field.value()));
            response.setTrailerFields(() -> trailers);
        } else {
            response.setContentLength(reply.body().length);
        }
        response.getOutputStream().write(reply.body());
    }
}
