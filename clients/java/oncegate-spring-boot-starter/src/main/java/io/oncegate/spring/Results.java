package io.oncegate.spring;

import io.oncegate.client.Duplicate;
import io.oncegate.client.JsonText;
import java.lang.reflect.Type;
import java.nio.charset.StandardCharsets;
import java.util.function.Supplier;

/** Results of {@link Once} methods as JSON. One that cannot be stored leaves a marker. */
final class Results {
    /** The default of the gateway's {@code limits.result_bytes}. */
    private static final int BYTES_MAX = 64 * 1024;

    private static final System.Logger LOG = System.getLogger(Once.class.getName());

    private final Supplier<ResultMapper> mapper;

    Results(Supplier<ResultMapper> mapper) {
        this.mapper = mapper;
    }

    void check() {
        if (mapper.get() == null) {
            throw new IllegalStateException(
                    "@Once needs Jackson to store results, and the context has no ObjectMapper;"
                            + " add spring-boot-starter-json, or a bean of type ResultMapper");
        }
    }

    /** Returns the JSON of a result; null for null. */
    JsonText write(String operation, Object result) {
        if (result == null) {
            return null;
        }
        try {
            String text = mapper.get().write(result);
            int bytes = text.getBytes(StandardCharsets.UTF_8).length;
            return bytes <= BYTES_MAX
                    ? new JsonText(text)
                    : marker(operation, "too_large", bytes + " bytes");
        } catch (RuntimeException | StackOverflowError notJson) {
            return marker(operation, "not_serialisable", notJson.toString());
        }
    }

    /**
     * Returns the stored result of a success as this type.
     *
     * @throws ResultNotStored if a marker was stored in its place
     */
    Object read(String operation, Duplicate<?> duplicate, Type type) {
        if (duplicate.resultOmitted() != null) {
            throw new ResultNotStored(operation, duplicate);
        }
        JsonText stored = duplicate.json();
        if (stored == null || type == void.class || type == Void.class) {
            return null;
        }
        return mapper.get().read(stored.text(), type);
    }

    private static JsonText marker(String operation, String omitted, String why) {
        LOG.log(
                System.Logger.Level.WARNING,
                "The result of {0} was not stored, and repeats throw ResultNotStored: {1}",
                operation,
                why);
        return new JsonText("{\"$oncegate\":{\"omitted\":\"" + omitted + "\"}}");
    }
}
