package io.oncegate.client.http;

import java.util.List;
import java.util.regex.Pattern;

/** The meaning of a status for its key: an exact status is stronger than a class. */
final class StatusRules {
    private static final Pattern RULE = Pattern.compile("[2-5]xx|[2-5][0-9][0-9]");

    private final List<String> store;
    private final List<String> release;
    private final On5xx on5xx;

    StatusRules(List<String> store, List<String> release, On5xx on5xx) {
        this.store = store == Idempotency.STORE ? without(store, release) : store;
        this.release = release == Idempotency.RELEASE ? without(release, store) : release;
        this.on5xx = on5xx;
    }

    /** A status that one list names leaves the default of the other. */
    private static List<String> without(List<String> standard, List<String> named) {
        return standard.stream().filter(rule -> !named.contains(rule)).toList();
    }

    /** Returns the statuses that both lists name. */
    static List<String> both(List<String> store, List<String> release) {
        boolean isDefault = store == Idempotency.STORE || release == Idempotency.RELEASE;
        return isDefault ? List.of() : store.stream().filter(release::contains).toList();
    }

    static List<String> checked(String option, List<String> rules) {
        for (String rule : rules) {
            if (!RULE.matcher(rule).matches()) {
                throw new IllegalArgumentException(
                        option + " has \"" + rule + "\"; write a status or a class: 201, 4xx");
            }
        }
        return List.copyOf(rules);
    }

    On5xx meaning(int status) {
        for (String rule :
                List.of(Integer.toString(status), Integer.toString(status / 100) + "xx")) {
            if (release.contains(rule)) {
                return On5xx.RELEASE;
            }
            if (store.contains(rule)) {
                return On5xx.STORE;
            }
        }
        return status >= 500 ? on5xx : On5xx.UNKNOWN;
    }
}
