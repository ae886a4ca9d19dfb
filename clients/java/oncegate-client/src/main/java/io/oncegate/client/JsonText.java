package io.oncegate.client;

/**
 * Contents that are JSON already. They are read as the gateway reads them (RFC 8785), numbers included.
 *
 * @param text one JSON value
 */
public record JsonText(String text) {}
