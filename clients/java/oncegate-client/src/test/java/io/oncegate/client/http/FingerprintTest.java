package io.oncegate.client.http;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.oncegate.client.JsonText;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;

/** Fingerprints are those of the proxy, by its own vectors. */
class FingerprintTest {
    private record Head(String method, String url, List<List<?>> headers) implements RequestHead {
        @Override
        public String path() {
            return url.split("\\?", 2)[0];
        }

        @Override
        public String query() {
            return url.contains("?") ? url.split("\\?", 2)[1] : null;
        }

        @Override
        public Iterable<String> names() {
            Set<String> names = new LinkedHashSet<>();
            headers.forEach(field -> names.add((String) field.get(0)));
            return names;
        }

        @Override
        public List<String> lines(String name) {
            List<String> lines = new ArrayList<>();
            for (List<?> field : headers) {
                if (name.equalsIgnoreCase((String) field.get(0))) {
                    byte[] bytes = ((String) field.get(1)).getBytes(StandardCharsets.UTF_8);
                    lines.add(new String(bytes, StandardCharsets.ISO_8859_1));
                }
            }
            return lines;
        }
    }

    @TestFactory
    Stream<DynamicTest> fingerprintsAreThoseOfTheProxy() throws IOException {
        Path file = Path.of(System.getProperty("oncegate.root"), "tests/vectors/fingerprint.json");
        List<?> vectors = (List<?>) new JsonText(Files.readString(file)).value();
        return vectors.stream()
                .map(vector -> (Map<?, ?>) vector)
                .map(
                        vector ->
                                DynamicTest.dynamicTest(
                                        (String) vector.get("name"), () -> check(vector)));
    }

    @SuppressWarnings("unchecked") // The vectors have this form.
    private static void check(Map<?, ?> vector) {
        Set<FingerprintPart> parts = EnumSet.noneOf(FingerprintPart.class);
        for (Object part : (List<?>) vector.get("parts")) {
            String name = ((String) part).toUpperCase().replaceAll("[-:]", "_");
            parts.add(FingerprintPart.valueOf(name));
        }
        var head =
                new Head(
                        (String) vector.get("method"),
                        (String) vector.get("url"),
                        (List<List<?>>) vector.get("headers"));
        byte[] body = ((String) vector.get("body")).getBytes(StandardCharsets.UTF_8);
        assertEquals(
                vector.get("fingerprint"),
                JsonText.of(Fingerprint.of(parts, head, body)).canonical());
    }
}
