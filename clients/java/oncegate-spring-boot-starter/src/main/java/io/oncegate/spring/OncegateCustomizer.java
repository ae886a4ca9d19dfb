package io.oncegate.spring;

import io.oncegate.client.Options;

/** Changes the options of the client before it is made. */
@FunctionalInterface
public interface OncegateCustomizer {
    /** Changes the options. */
    void customize(Options options);
}
