package io.oncegate.spring;

import java.lang.reflect.Type;

/**
 * Writes and reads the results of {@link Once} methods. Made of the application's own Jackson, 3 or
 * 2; a bean of this type replaces it.
 */
public interface ResultMapper {
    /**
     * Returns the JSON of a result.
     *
     * @throws RuntimeException if it cannot be written
     */
    String write(Object result);

    /** Reads a result as this type. */
    Object read(String json, Type type);
}
