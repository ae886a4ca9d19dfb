package io.oncegate.client.testing;

import org.junit.jupiter.api.extension.ExtensionContext;
import org.junit.jupiter.api.extension.ExtensionContext.Namespace;
import org.junit.jupiter.api.extension.ParameterContext;
import org.junit.jupiter.api.extension.ParameterResolver;

/** Resolves parameters of JUnit to the gateway of the test. */
public final class MemoryGatewayParameter implements ParameterResolver {
    @Override
    public boolean supportsParameter(ParameterContext parameter, ExtensionContext context) {
        return parameter.getParameter().getType() == MemoryGateway.class;
    }

    @Override
    public Object resolveParameter(ParameterContext parameter, ExtensionContext context) {
        return context.getStore(Namespace.create(MemoryGateway.class))
                .getOrComputeIfAbsent(
                        context.getUniqueId(), id -> new MemoryGateway(), MemoryGateway.class);
    }
}
