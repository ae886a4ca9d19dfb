package io.oncegate.client.servlet;

import io.oncegate.client.http.Multipart;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.Part;
import java.io.IOException;
import java.net.URLDecoder;
import java.nio.charset.Charset;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/** Parses forms in a body that was read before. */
final class Forms {
    /** As many as containers allow by default. */
    private static final int PARAMETERS_MAX = 10_000;

    private Forms() {}

    static Map<String, String[]> parameters(
            Map<String, String[]> ofQuery,
            HttpServletRequest request,
            byte[] body,
            Charset charset) {
        Map<String, List<String>> all = new LinkedHashMap<>();
        ofQuery.forEach((name, values) -> all.put(name, new ArrayList<>(List.of(values))));
        String type = String.valueOf(request.getContentType()).toLowerCase(Locale.ROOT);
        if (type.startsWith("application/x-www-form-urlencoded")) {
            urlEncoded(new String(body, charset), charset, all);
        } else if (type.startsWith("multipart/form-data")) {
            for (Part part : partsOrNone(request, body)) {
                if (part.getSubmittedFileName() == null) {
                    add(all, part.getName(), ((FormPart) part).text(charset));
                }
            }
        }
        Map<String, String[]> parameters = new LinkedHashMap<>();
        all.forEach((name, values) -> parameters.put(name, values.toArray(String[]::new)));
        return Collections.unmodifiableMap(parameters);
    }

    private static void urlEncoded(
            String form, Charset charset, Map<String, List<String>> parameters) {
        String[] pairs = form.split("&", PARAMETERS_MAX + 1);
        if (pairs.length > PARAMETERS_MAX) {
            throw new IllegalStateException(
                    "The form has more than " + PARAMETERS_MAX + " parameters");
        }
        for (String pair : pairs) {
            if (!pair.isEmpty()) {
                String[] both = pair.split("=", 2);
                String value = both.length == 1 ? "" : both[1];
                add(parameters, decoded(both[0], charset), decoded(value, charset));
            }
        }
    }

    private static String decoded(String text, Charset charset) {
        try {
            return URLDecoder.decode(text, charset);
        } catch (IllegalArgumentException malformed) {
            return text;
        }
    }

    private static void add(Map<String, List<String>> parameters, String name, String value) {
        parameters.computeIfAbsent(name, absent -> new ArrayList<>()).add(value);
    }

    private static List<Part> partsOrNone(HttpServletRequest request, byte[] body) {
        try {
            return parts(request, body);
        } catch (ServletException | IOException none) {
            return List.of();
        }
    }

    static List<Part> parts(HttpServletRequest request, byte[] body)
            throws ServletException, IOException {
        List<byte[]> parts =
                Multipart.read(Collections.list(request.getHeaders("Content-Type")), body);
        if (parts == null) {
            throw new ServletException("The body is no form in parts, such as multipart/form-data");
        }
        List<Part> read = new ArrayList<>();
        for (byte[] part : parts) {
            read.add(new FormPart(part));
        }
        return Collections.unmodifiableList(read);
    }
}
