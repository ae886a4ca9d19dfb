package io.oncegate.spring;

import io.oncegate.client.NotSettled;

/**
 * Keeps the report of a {@link Once} method whose outcome no gateway has accepted. The method has
 * returned its result all the same. A bean of this type passes the report to {@code
 * OncegateClient.settle} later.
 */
@FunctionalInterface
public interface UnsettledReports {
    /** Keeps {@link NotSettled#report}. */
    void keep(NotSettled unsettled);
}
