import io.oncegate.client.Cause;
import io.oncegate.client.Contents;
import io.oncegate.client.Done;
import io.oncegate.client.Duplicate;
import io.oncegate.client.JsonText;
import io.oncegate.client.Mismatch;
import io.oncegate.client.NotCanonical;
import io.oncegate.client.NotSettled;
import io.oncegate.client.NothingHappened;
import io.oncegate.client.OnUnavailable;
import io.oncegate.client.OncegateClient;
import io.oncegate.client.Options;
import io.oncegate.client.OutcomeRefused;
import io.oncegate.client.Rejected;
import io.oncegate.client.Result;
import io.oncegate.client.Terms;
import io.oncegate.client.Unavailable;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.LocalDate;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;

/**
 * The program that tests/it/clients.rs runs: the client in its own process, with options as {@code name=value}.
 *
 * <pre>
 * vectors FILE                              the vectors of the global ID, one line each
 * orders urls=A,B orders=5 workers=4 …      many workers at the same orders until each has an answer
 * one urls=A order=A-1 work=200 …           one try at one order
 * </pre>
 */
final class Scenario {
    private final OncegateClient client;
    private final Map<String, String> settings;

    private Scenario(Map<String, String> settings) {
        this.settings = settings;
        boolean proceeds = "proceed".equals(settings.get("policy"));
        var options =
                new Options(List.of(settings.get("urls").split(",")))
                        .credential(settings.get("credential"))
                        .onUnavailable(proceeds ? OnUnavailable.PROCEED : OnUnavailable.FAIL_CLOSED)
                        .timeout(millis("timeout", 1000))
                        .claimWithin(millis("claim_within", 5000))
                        .settleWithin(millis("settle_within", 30000));
        client = new OncegateClient(options);
    }

    public static void main(String[] words) throws Exception {
        if (words[0].equals("vectors")) {
            vectors(Path.of(words[1]));
            return;
        }
        var settings = new HashMap<String, String>();
        for (String word : List.of(words).subList(1, words.length)) {
            settings.put(word.substring(0, word.indexOf('=')), word.substring(word.indexOf('=') + 1));
        }
        var scenario = new Scenario(settings);
        if (words[0].equals("orders")) {
            scenario.orders();
        } else {
            scenario.one();
        }
    }

    private void orders() throws Exception {
        var workers = new ArrayList<Thread>();
        for (int worker = 0; worker < Integer.parseInt(settings.get("workers")); worker++) {
            workers.add(new Thread(this::work));
        }
        workers.forEach(Thread::start);
        for (Thread worker : workers) {
            worker.join();
        }
    }

    private void work() {
        try {
            for (int at = 0; at < Integer.parseInt(settings.get("orders")); at++) {
                for (long pause; (pause = tryOrder("A-" + at)) >= 0; ) {
                    Thread.sleep(pause);
                }
            }
        } catch (Exception unexpected) {
            unexpected.printStackTrace();
            System.exit(1);
        }
    }

    /** Less than 0 once the order has an answer, else how long to wait. */
    private long tryOrder(String order) throws Exception {
        try {
            Result<Object> answer = run(order);
            if (answer instanceof Done<Object> done) {
                say("done", order, number(done.result()));
            } else if (answer instanceof Duplicate<Object> duplicate) {
                if (!duplicate.state().equals("succeeded")) {
                    return Math.min(duplicate.retryAfter().toMillis(), 100);
                }
                say("duplicate", order, number(duplicate.result()));
            }
            return -1;
        } catch (Unavailable unavailable) {
            return 50;
        }
    }

    private void one() throws Exception {
        String order = settings.get("order");
        try {
            Result<Object> answer = run(order);
            if (answer instanceof Done<Object> done) {
                if (done.resultOmitted() != null) {
                    say("not_stored");
                }
                String late = Boolean.TRUE.equals(done.late()) ? "late" : "in_time";
                say("done", order, number(done.result()), done.state(), done.degraded(), late);
            } else if (answer instanceof Duplicate<Object> duplicate) {
                say("duplicate", order, number(duplicate.result()), duplicate.state());
            } else if (answer instanceof Mismatch<Object> mismatch) {
                say("mismatch", mismatch.code());
            }
        } catch (Unavailable unavailable) {
            say(Stream.concat(Stream.of("unavailable"), unavailable.causes().stream().map(Scenario::kind)).toArray());
        } catch (Rejected rejected) {
            say("rejected", rejected.status(), rejected.code());
        } catch (OutcomeRefused refused) {
            say("refused", refused.code());
        } catch (NotSettled unsettled) {
            say("not_settled");
            // Kept somewhere, and given to a gateway later.
            for (; ; ) {
                try {
                    say("settled", client.settle(unsettled.report()).state());
                    return;
                } catch (NotSettled again) {
                    // No gateway has it yet.
                }
            }
        } catch (NothingHappened nothing) {
            say("raised", "failure");
        } catch (IllegalStateException unknown) {
            say("raised", "unknown");
        }
    }

    private Result<Object> run(String order) throws Exception {
        var terms = Terms.NONE.fingerprint(settings.get("fingerprint")).lease(settings.get("lease"));
        return client.once("order.submit", Map.of("order_id", order), terms, held -> {
            say("granted", order, held.repeated() ? "repeated" : "first", held.degraded());
            Thread.sleep(millis("work", 0).toMillis());
            if ("failure".equals(settings.get("fails"))) {
                throw new NothingHappened("nothing happened");
            }
            if ("unknown".equals(settings.get("fails"))) {
                throw new IllegalStateException("who knows");
            }
            if (!held.isLive()) {
                say("lost", held.lost());
            }
            say("effect", order);
            return returned(settings.get("returns"), order);
        });
    }

    private static Map<String, Object> returned(String kind, String order) {
        Object more = switch (kind == null ? "" : kind) {
            case "foreign" -> LocalDate.of(2026, 10, 20);
            case "long" -> "x".repeat(70_000);
            case "deep" -> Stream.iterate(List.of(), level -> List.of(level)).skip(200).findFirst().orElseThrow();
            default -> true;
        };
        return Map.of("order_number", order, "more", more);
    }

    private static String kind(Cause cause) {
        return cause.kind().wire();
    }

    private static void vectors(Path path) throws Exception {
        var table = (Map<?, ?>) new JsonText(Files.readString(path)).value();
        for (Object each : (List<?>) table.get("accepted")) {
            var vector = (Map<?, ?>) each;
            var contents = new JsonText((String) vector.get("contents_json"));
            say("accepted", Contents.globalId((String) vector.get("app_key"), (String) vector.get("operation"), contents));
        }
        for (Object each : (List<?>) table.get("refused")) {
            var contents = new JsonText((String) ((Map<?, ?>) each).get("contents_json"));
            try {
                say("accepted", Contents.globalId("shop", "default", contents));
            } catch (NotCanonical refused) {
                say("refused");
            }
        }
    }

    private static Object number(Object result) {
        if (!(result instanceof Map<?, ?> fields)) {
            return null;
        }
        return fields.get("order_number");
    }

    private Duration millis(String name, long otherwise) {
        return Duration.ofMillis(settings.containsKey(name) ? Long.parseLong(settings.get(name)) : otherwise);
    }

    private static synchronized void say(Object... words) {
        var line = new ArrayList<String>();
        for (Object word : words) {
            line.add(word == null ? "-" : word.toString());
        }
        System.out.println(String.join(" ", line));
    }
}
