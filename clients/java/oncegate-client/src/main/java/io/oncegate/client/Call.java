package io.oncegate.client;

import java.time.Duration;

/**
 * One HTTP call, which is repeated unchanged.
 *
 * @param body JSON, or null for GET
 * @param member the member that every 2xx of a gateway has
 * @param waits the time that the call asks the gateway to wait
 */
record Call(String path, String body, String member, Duration waits, Subject subject) {
    static Call post(String path, String body, Subject subject) {
        return new Call(path, body, "global_id", Duration.ZERO, subject);
    }
}
