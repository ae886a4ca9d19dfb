package io.oncegate.vectors;

import io.oncegate.client.OnUnavailable;
import io.oncegate.client.OncegateClient;
import io.oncegate.client.Options;
import io.oncegate.client.http.FingerprintPart;
import io.oncegate.client.http.Idempotency;
import io.oncegate.client.http.On5xx;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.Function;

/** The rules of each mount point. */
final class Rules {
    private static final String NOBODY = "http://127.0.0.1:1";

    private Rules() {}

    static <R> Map<String, Idempotency<R>> all(Function<R, String> user) {
        var client = new OncegateClient(new Options());
        var down = new OncegateClient(new Options(NOBODY));
        Map<String, Idempotency<R>> all = new LinkedHashMap<>();
        all.put("plain", rules(client, "plain", user));
        all.put("required", rules(client, "required", user).required());
        all.put("put-only", rules(client, "put-only", user).methods("PUT"));
        all.put(
                "json",
                rules(client, "json", user)
                        .fingerprint(
                                FingerprintPart.METHOD,
                                FingerprintPart.PATH,
                                FingerprintPart.QUERY,
                                FingerprintPart.CONTENT_TYPE,
                                FingerprintPart.IF_MATCH,
                                FingerprintPart.BODY_JSON));
        all.put("wait", rules(client, "wait", user).waitFor(Duration.ofSeconds(5)));
        all.put("harmless", rules(client, "harmless", user).releaseOn(StockError.class));
        for (String at : new String[] {"parsed", "form", "behind", "zip"}) {
            all.put(at, rules(client, at, user));
        }
        Duration soon = Duration.ofMillis(300);
        all.put("down", rules(down, "down", user).claimWithin(soon));
        all.put(
                "down-pass",
                rules(down, "down-pass", user)
                        .claimWithin(soon)
                        .onUnavailable(OnUnavailable.PROCEED));
        all.put("off", rules(client, "off", user).enabled(false));
        all.put("observe", rules(client, "observe", user).observe());
        all.put("short", rules(client, "short", user).exchangeMax(Duration.ofSeconds(1)));
        all.put("stop", rules(client, "stop", user).stopWhenGone());
        all.put(
                "store",
                rules(client, "store", user)
                        .store("2xx", "403")
                        .on5xx(On5xx.STORE)
                        .storePrivate()
                        .storeWith("Set-Cookie")
                        .storeWithout("X-Secret"));
        return all;
    }

    private static <R> Idempotency<R> rules(
            OncegateClient client, String at, Function<R, String> user) {
        return new Idempotency<R>(client, "vectors." + at)
                .principal(user)
                .lease("3s")
                .bodyBytes(131_072)
                .onUnavailable(OnUnavailable.FAIL_CLOSED);
    }
}
