package io.oncegate.spring;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.oncegate.client.JsonText;
import java.lang.reflect.Type;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.function.Supplier;

/** Results of {@link Once} methods as JSON. One that cannot be stored leaves a marker. */
final class Results {
    /** The default of the gateway's {@code limits.result_bytes}. */
    private static final int BYTES_MAX = 64 * 1024;

    private static final String MARKER = "$oncegate";
    private static final System.Logger LOG = System.getLogger(Once.class.getName());

    private final Supplier<ObjectMapper> mapper;

    Results(Supplier<ObjectMapper> mapper) {
        this.mapper = mapper;
    }

    /** Returns the JSON of a result; null for null. */
    JsonText write(String operation, Object result) {
        if (result == null) {
            return null;
        }
        try {
            String text = mapper.get().writeValueAsString(result);
            int bytes = text.getBytes(StandardCharsets.UTF_8).length;
            return bytes <= BYTES_MAX
                    ? new JsonText(text)
                    : marker(operation, "too_large", bytes + " bytes");
        } catch (JsonProcessingException | RuntimeException | StackOverflowError notJson) {
            return marker(operation, "not_serialisable", notJson.toString());
        }
    }

    /**
     * Returns a stored result as this type.
     *
     * @throws ResultNotStored if a marker was stored in its place
     */
    Object read(String operation, Object stored, Type type) {
        if (stored instanceof Map<?, ?> members
                && members.size() == 1
                && members.get(MARKER) instanceof Map<?, ?> why) {
            throw new ResultNotStored(operation, String.valueOf(why.get("omitted")));
        }
        if (stored == null || type == void.class || type == Void.class) {
            return null;
        }
        return mapper.get().convertValue(stored, mapper.get().getTypeFactory().constructType(type));
    }

    private static JsonText marker(String operation, String omitted, String why) {
        LOG.log(
                System.Logger.Level.WARNING,
                "The result of {0} was not stored, and repeats throw ResultNotStored: {1}",
                operation,
                why);
        return new JsonText("{\"" + MARKER + "\":{\"omitted\":\"" + omitted + "\"}}");
    }
}
