package io.oncegate.spring;

import java.lang.annotation.Documented;
import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * Runs a method once for each key, across processes.
 *
 * <pre>{@code
 * @Once(operation = "order.submit", key = "{order_id: #order.id}", fingerprint = "{amount_cents: #order.cents}")
 * public Receipt submit(Order order) { … }
 * }</pre>
 *
 * <p>A repeat of a success returns the stored result as the method's return type. An operation in
 * progress or with an unknown outcome throws {@link DuplicateOperation}, another fingerprint {@link
 * OperationMismatch}. It encloses a transaction of the method, and refuses to run inside one: a
 * success reported before the commit would stay after a rollback. A {@code CompletionStage} or
 * {@code Mono} is reported when it completes, a {@code Callable} when it was called. Other types
 * whose work ends later are refused when the bean is made. A repeat of a success whose result was
 * not stored throws {@link ResultNotStored}.
 */
@Documented
@Retention(RetentionPolicy.RUNTIME)
@Target(ElementType.METHOD)
public @interface Once {
    /** Returns the kind of operation, such as {@code order.submit}. */
    String operation();

    /**
     * Returns the contents as a SpEL expression over the parameters: a value, or a map such as
     * <code>{order_id: #order.id}</code>.
     */
    String key();

    /** Returns what else must be equal on a repeat, as a SpEL expression. */
    String fingerprint() default "";

    /** Returns the lease, such as {@code 30s}; empty: the operator's choice. */
    String lease() default "";

    /** Returns the retention, such as {@code 30d}; empty: the operator's choice. */
    String retention() default "";

    /**
     * Returns errors of the method that had no effect, subclasses included: the operation is
     * released at once, and the error is thrown on unchanged.
     */
    Class<? extends Throwable>[] releaseOn() default {};

    /** Returns exceptions to {@link #releaseOn}: after them the outcome is unknown. */
    Class<? extends Throwable>[] noReleaseOn() default {};

    /**
     * Returns true if a caller that goes does not cancel the work of a {@code Mono} or a suspend
     * function: in WebFlux a hang-up is a cancellation.
     */
    boolean detached() default true;

    /** Returns the time to wait for an attempt in progress, such as {@code 10s}. */
    String waitFor() default "";
}
