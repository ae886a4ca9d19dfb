package io.oncegate.client;

/**
 * Work that must not be done twice. Duplicates get its result.
 *
 * @param <T> the type of the result
 * @param <E> the checked exception that it throws
 */
@FunctionalInterface
public interface Work<T, E extends Exception> {
    /** Does the work while the claim is held. */
    T run(Grant grant) throws E;
}
