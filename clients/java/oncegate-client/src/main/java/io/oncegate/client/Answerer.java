package io.oncegate.client;

/** Answers the calls of a client instead of gateways, in tests. */
@FunctionalInterface
public interface Answerer {
    /**
     * An answer.
     *
     * @param body a JSON object
     */
    record Answer(int status, String body) {}

    /**
     * Answers a call.
     *
     * @param path such as {@code /v1/claims}
     * @param body JSON; null for a lookup
     * @return null for no answer
     */
    Answer answer(String path, String body) throws InterruptedException;

    /**
     * Answers a call of a client with a credential.
     *
     * @param credential {@code <app_key>.<secret>}, or null
     */
    default Answer answer(String path, String body, String credential) throws InterruptedException {
        return answer(path, body);
    }

    /** Returns the monotonic time by which leases count. */
    default long nanoTime() {
        return System.nanoTime();
    }
}
