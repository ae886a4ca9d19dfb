package io.oncegate.client.http;

/** Decision about a request. */
public sealed interface Answer {
    /** The handler runs as if the middleware were not there. */
    record Pass() implements Answer {
        /** The only value that is needed. */
        public static final Pass ON = new Pass();
    }

    /**
     * The request has a key: read its principal and its body, then claim.
     *
     * @param key the key, bare
     */
    record Keyed(String key) implements Answer {}

    /** A replay or a refusal: nothing runs. */
    record Answered(Reply reply) implements Answer {}

    /** The claim is granted: run the handler, and record its response. */
    record Granted(Run run) implements Answer {}
}
