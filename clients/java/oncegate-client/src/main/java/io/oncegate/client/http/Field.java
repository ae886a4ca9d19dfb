package io.oncegate.client.http;

/**
 * A field line of a response.
 *
 * @param value each character is one byte
 */
public record Field(String name, String value) {}
