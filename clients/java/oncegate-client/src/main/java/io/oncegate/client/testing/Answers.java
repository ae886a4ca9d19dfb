package io.oncegate.client.testing;

import io.oncegate.client.Answerer.Answer;
import io.oncegate.client.JsonText;
import java.util.LinkedHashMap;
import java.util.Map;

/** Refusals and durations, as a gateway writes and reads them. */
final class Answers {
    private Answers() {}

    static Answer problem(int status, String code, Map<String, ?> more) {
        Map<String, Object> members = new LinkedHashMap<>(more);
        members.put("status", status);
        members.put("code", code);
        members.put("type", "urn:oncegate:problem:" + code);
        members.put("detail", "of the gateway in memory");
        return new Answer(status, JsonText.of(members).text());
    }

    /** Returns a duration in milliseconds; 0 for none. */
    static long millis(Object text) {
        if (!(text instanceof String duration)) {
            return 0;
        }
        int digits = duration.replaceAll("[a-z]+$", "").length();
        long unit =
                switch (duration.substring(digits)) {
                    case "ms" -> 1;
                    case "s" -> 1000;
                    case "m" -> 60_000;
                    case "h" -> 3_600_000;
                    default -> 86_400_000;
                };
        return Long.parseLong(duration.substring(0, digits)) * unit;
    }
}
