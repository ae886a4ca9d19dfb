package io.oncegate.client;

import java.util.Optional;

/**
 * The grant under which the current thread works: in a {@code @Once} method, or in a request with
 * an {@code Idempotency-Key}. On other threads of a request it is the attribute {@link #ATTRIBUTE}.
 */
public final class CurrentGrant {
    /** Name of the attribute of a request that holds its grant. */
    public static final String ATTRIBUTE = "io.oncegate.grant";

    private static final ThreadLocal<Grant> CURRENT = new ThreadLocal<>();

    private CurrentGrant() {}

    /** Returns the grant; empty outside of one. */
    public static Optional<Grant> get() {
        return Optional.ofNullable(CURRENT.get());
    }

    /** A time in which a grant is the current one. */
    public interface Scope extends AutoCloseable {
        @Override
        void close();
    }

    /** Makes a grant the current one until the scope is closed by the same thread. */
    public static Scope open(Grant grant) {
        Grant before = CURRENT.get();
        CURRENT.set(grant);
        return () -> {
            if (before == null) {
                CURRENT.remove();
            } else {
                CURRENT.set(before);
            }
        };
    }
}
