package io.oncegate.client;

/**
 * Contents that are JSON already. They are read as the gateway reads them (RFC 8785), numbers
 * included.
 *
 * @param text one JSON value
 */
public record JsonText(String text) {
    /**
     * Returns the value: maps, lists, strings, {@link java.math.BigDecimal}, booleans and null.
     *
     * @throws IllegalArgumentException if it is not JSON, or if a key occurs twice in its object
     */
    public Object value() {
        return Json.read(text);
    }

    /**
     * Writes a value: maps, lists, strings, numbers, booleans, null.
     *
     * @throws IllegalArgumentException for any other
     */
    public static JsonText of(Object value) {
        return new JsonText(Json.write(value));
    }

    /**
     * Returns the canonical form of RFC 8785.
     *
     * @throws NotCanonical for a value that readers could understand differently
     */
    public String canonical() {
        return Contents.fingerprint(this);
    }
}
