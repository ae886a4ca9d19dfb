package io.oncegate.client.http;

/** The meaning of a 5xx response for its key. */
public enum On5xx {
    /** Something may have happened: repeats are refused. */
    UNKNOWN,
    /** The operation is done: the response is stored. */
    STORE,
    /** Nothing happened: the key is free again. */
    RELEASE
}
