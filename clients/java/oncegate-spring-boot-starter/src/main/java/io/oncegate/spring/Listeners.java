package io.oncegate.spring;

import io.oncegate.client.NothingHappened;
import java.util.concurrent.Callable;
import org.aopalliance.intercept.MethodInvocation;

/** Common part of the advices of listeners. */
public final class Listeners {
    private Listeners() {}

    /**
     * Returns the invocation as work. Containers wrap what a listener throws: {@link
     * NothingHappened} is found in it.
     */
    public static Callable<Void> work(MethodInvocation invocation) {
        return () -> {
            try {
                invocation.proceed();
                return null;
            } catch (Throwable thrown) {
                for (Throwable cause = thrown; cause != null; cause = cause.getCause()) {
                    if (cause instanceof NothingHappened nothing) {
                        throw nothing;
                    }
                }
                if (thrown instanceof Exception exception) {
                    throw exception;
                }
                throw (Error) thrown;
            }
        };
    }
}
