package io.oncegate.client.testing;

import io.oncegate.client.JsonText;

/**
 * A claim in the gateway of a test.
 *
 * @param contents in canonical form
 * @param state {@code in_progress}, {@code succeeded} or {@code unknown}
 * @param result null without one
 */
public record StoredClaim(String operation, JsonText contents, String state, JsonText result) {}
