package io.oncegate.client;

import java.time.Duration;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Durations as the gateway writes them: {@code 500ms}, {@code 30s}, {@code 24h}. */
final class Durations {
    private static final Pattern FORM = Pattern.compile("([1-9][0-9]{0,8})(ms|s|m|h|d)");
    private static final Map<String, Long> MILLIS =
            Map.of("ms", 1L, "s", 1000L, "m", 60_000L, "h", 3_600_000L, "d", 86_400_000L);

    private Durations() {}

    static Duration parse(String name, String text) {
        Matcher matcher = FORM.matcher(text);
        if (!matcher.matches()) {
            throw new IllegalArgumentException(
                    name
                            + " is not a duration: \""
                            + text
                            + "\"; write \"500ms\", \"30s\" or \"24h\"");
        }
        return Duration.ofMillis(Long.parseLong(matcher.group(1)) * MILLIS.get(matcher.group(2)));
    }

    static String text(Duration duration) {
        long millis = Math.max(1, duration.toMillis());
        return millis % 1000 == 0 && millis / 1000 < 1_000_000_000
                ? millis / 1000 + "s"
                : Math.min(millis, 999_999_999) + "ms";
    }
}
