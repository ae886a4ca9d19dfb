package io.oncegate.spring;

import io.oncegate.client.Grant;
import java.util.Optional;

/**
 * The grant under which the current thread runs a {@link Once} method: its fence, and whether it is
 * live.
 */
public final class CurrentGrant {
    private static final ThreadLocal<Grant> CURRENT = new ThreadLocal<>();

    private CurrentGrant() {}

    /** Returns the grant; empty outside a {@link Once} method. */
    public static Optional<Grant> get() {
        return Optional.ofNullable(CURRENT.get());
    }

    /** Sets the grant, and returns the one before. */
    static Grant swap(Grant grant) {
        Grant before = CURRENT.get();
        if (grant == null) {
            CURRENT.remove();
        } else {
            CURRENT.set(grant);
        }
        return before;
    }
}
