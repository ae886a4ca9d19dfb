package io.oncegate.spring;

import io.oncegate.client.Options;

/** Changes the options of the client before it is made. */
@FunctionalInterface
public interface OncegateCustomizer {
    /** Returns the changed options. */
    Options customize(Options options);
}
