package io.oncegate.client;

import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * The name of a record component in contents. Names that Java derives are refused: a rename would
 * change the identity of every operation.
 */
@Retention(RetentionPolicy.RUNTIME)
@Target(ElementType.RECORD_COMPONENT)
public @interface Named {
    /** Returns the member name in JSON. */
    String value();
}
