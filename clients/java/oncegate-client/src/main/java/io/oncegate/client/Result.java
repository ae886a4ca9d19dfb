package io.oncegate.client;

/**
 * The end of {@link OncegateClient#once}.
 *
 * @param <T> the type of the work's result
 */
public sealed interface Result<T> permits Done, Duplicate, Mismatch {}
