package io.oncegate.client.http;

import java.util.List;

/** The head of a request, as an adapter of a framework sees it. */
public interface RequestHead {
    /** Returns the method. */
    String method();

    /** Returns the undecoded path, with the mount point. */
    String path();

    /** Returns the undecoded query; null without one. */
    String query();

    /** Returns the names of all fields. */
    Iterable<String> names();

    /** Returns the values of the lines of a field, each character one byte; empty without any. */
    List<String> lines(String name);

    /**
     * Returns true if the declared length is that of a compressed body: the body is shorter or
     * longer where a layer outside has decompressed it.
     */
    default boolean isCompressed() {
        return !lines("Content-Encoding").isEmpty();
    }
}
