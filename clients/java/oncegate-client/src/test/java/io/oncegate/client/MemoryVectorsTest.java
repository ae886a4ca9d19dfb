package io.oncegate.client;

import static io.oncegate.client.Vectors.list;
import static io.oncegate.client.Vectors.number;
import static io.oncegate.client.Vectors.object;
import static io.oncegate.client.Vectors.text;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.oncegate.client.testing.MemoryGateway;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.Test;

/** The gateway in memory gives the answers of the scripted gateway of the behaviour vectors. */
class MemoryVectorsTest {
    private static final String FOLDER = "clients/vectors/behaviour";

    /** The calls of another caller that lead to an answer. */
    private static final Map<String, List<String>> SEEDS =
            Map.of(
                    "granted", List.of(),
                    "duplicate_succeeded", List.of("claim", "success"),
                    "in_progress", List.of("claim"),
                    "duplicate_unknown", List.of("claim", "unknown"),
                    "hold", List.of(),
                    "lock_held", List.of("acquire"));

    /** The answers that follow a first one, without a fault. */
    private static final Set<String> FOLLOWS =
            Set.of("succeeded", "released", "unknown", "renewed", "hold_released", "hold_renewed");

    private static final List<String> COMPARED =
            List.of(
                    "code",
                    "state",
                    "global_id",
                    "late",
                    "result",
                    "repeated",
                    "name",
                    "mode",
                    "holds");

    private int answered;

    /** Sends the requests of vectors with its nonce, and keeps its attempt. */
    private static final class Caller {
        private final MemoryGateway gateway;
        private final String nonce;
        private String attempt = "";

        Caller(MemoryGateway gateway, String letter) {
            this.gateway = gateway;
            nonce = letter.repeat(32);
        }

        Answerer.Answer send(Map<String, Object> request) throws InterruptedException {
            String body = request.containsKey("body") ? Json.write(request.get("body")) : null;
            if (body != null) {
                body = body.replace("1792488615123456-$nonce", attempt).replace("$nonce", nonce);
            }
            String credential = (String) Script.common("options").get("credential");
            var answer = gateway.answer((String) request.get("path"), body, credential);
            attempt = text(object(Json.read(answer.body())).get("attempt"), attempt);
            return answer;
        }
    }

    /** Returns a request by its name, or one with another result; null for others. */
    private static Map<String, Object> plain(Object named) {
        boolean isPlain = named instanceof String;
        if (named instanceof Map<?, ?>) {
            var request = object(named);
            isPlain =
                    Set.of("use", "body").containsAll(request.keySet())
                            && object(request.get("body")).keySet().equals(Set.of("result"));
        }
        return isPlain ? Script.resolved("requests", named) : null;
    }

    @Test
    void theDoubleAnswersAsTheGatewayOfTheVectors() throws Exception {
        for (Path file : files()) {
            var vectors = Vectors.load(FOLDER + "/" + file.getFileName());
            for (Object each : list(vectors.get("cases"))) {
                check(file.getFileName() + ": ", object(each));
            }
        }
        assertTrue(answered >= 50, () -> answered + " exchanges were compared");
    }

    private static List<Path> files() throws IOException {
        try (var files = Files.list(Vectors.root().resolve(FOLDER))) {
            return files.filter(file -> file.toString().endsWith(".json")).sorted().toList();
        }
    }

    private void check(String file, Map<String, Object> vector) throws InterruptedException {
        var gateway = new MemoryGateway();
        var caller = new Caller(gateway, "a");
        int at = 0;
        for (Object each : list(vector.get("exchanges"))) {
            var exchange = object(each);
            Map<String, Object> request = plain(exchange.get("expect"));
            boolean isKnown =
                    exchange.get("answer") instanceof String name
                            && (at == 0 ? SEEDS.keySet() : FOLLOWS).contains(name);
            if (request == null || !isKnown) {
                return;
            }
            var name = (String) exchange.get("answer");
            var wanted = Script.resolved("answers", name);
            if (at++ == 0) {
                seed(gateway, name, object(wanted.get("body")));
            }
            String place = file + vector.get("name") + ": exchange " + at + ": ";
            compare(place, wanted, caller.send(request));
            answered++;
        }
    }

    private static void seed(MemoryGateway gateway, String name, Map<String, Object> wanted)
            throws InterruptedException {
        var other = new Caller(gateway, "b");
        for (String step : SEEDS.get(name)) {
            var before = Script.resolved("requests", step);
            if (step.equals("success")) {
                before =
                        Vectors.merged(
                                before, Map.of("body", Map.of("result", wanted.get("result"))));
            }
            other.send(before);
        }
    }

    private static void compare(String place, Map<String, Object> wanted, Answerer.Answer answer) {
        assertEquals(number(wanted.get("status"), 0), answer.status(), () -> place + answer.body());
        var expected = new LinkedHashMap<>(object(wanted.get("body")));
        expected.keySet().retainAll(COMPARED);
        var differences = Vectors.missing(expected, object(Json.read(answer.body())));
        assertEquals(List.of(), differences, () -> place + answer.body());
    }
}
