package io.oncegate.spring.webflux;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.springframework.http.HttpHeaders;

/**
 * The lines of header fields, by name in lower case. It calls only those methods of {@link
 * HttpHeaders} that Spring 6 and 7 have alike.
 */
final class HeaderLines {
    private HeaderLines() {}

    static Map<String, List<String>> of(HttpHeaders headers) {
        Map<String, List<String>> all = new LinkedHashMap<>();
        headers.forEach(
                (name, lines) ->
                        all.computeIfAbsent(
                                        name.toLowerCase(Locale.ROOT), absent -> new ArrayList<>())
                                .addAll(lines));
        return all;
    }

    /** Replaces all fields. */
    static void replace(HttpHeaders headers, Map<String, List<String>> lines) {
        headers.clear();
        lines.forEach((name, values) -> values.forEach(value -> headers.add(name, value)));
    }
}
