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
}
