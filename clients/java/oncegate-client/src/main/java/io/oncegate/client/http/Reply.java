package io.oncegate.client.http;

import java.util.List;

/**
 * A response that the middleware itself sends: a replay or a refusal.
 *
 * @param body empty for none
 * @param trailers fields after the body, for callers that ask for them
 */
public record Reply(int status, List<Field> fields, byte[] body, List<Field> trailers) {
    /** Returns true if the status allows a body. */
    public boolean hasBody() {
        return status != 204 && status != 205 && status != 304;
    }
}
