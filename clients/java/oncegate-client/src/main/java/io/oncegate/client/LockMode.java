package io.oncegate.client;

import java.util.Locale;

/** Mode of a hold. */
public enum LockMode {
    /** Excludes every other owner. */
    EXCLUSIVE,
    /** Excludes the exclusive mode of every other owner. */
    SHARED;

    String wire() {
        return name().toLowerCase(Locale.ROOT);
    }
}
