package io.oncegate.vectors;

import io.oncegate.client.JsonText;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** The runs of the handler, by case. */
final class Runs {
    private final Map<String, List<Map<String, Object>>> cases = new ConcurrentHashMap<>();

    Map<String, Object> begin(String name, byte[] body, String acceptEncoding) {
        Map<String, Object> run = Collections.synchronizedMap(new LinkedHashMap<>());
        List<Map<String, Object>> runs =
                cases.computeIfAbsent(
                        String.valueOf(name),
                        absent -> Collections.synchronizedList(new ArrayList<>()));
        synchronized (runs) {
            run.put("run", runs.size() + 1);
            runs.add(run);
        }
        run.put("length", body.length);
        run.put("sha256", sha256(body));
        run.put("accept_encoding", acceptEncoding);
        return run;
    }

    private static String sha256(byte[] body) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(body));
        } catch (NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    String json(String name) {
        List<Object> copies = new ArrayList<>();
        List<Map<String, Object>> runs = cases.getOrDefault(name, List.of());
        synchronized (runs) {
            runs.forEach(run -> copies.add(copy(run)));
        }
        return JsonText.of(copies).text();
    }

    static Map<String, Object> copy(Map<String, Object> run) {
        synchronized (run) {
            return new LinkedHashMap<>(run);
        }
    }
}
