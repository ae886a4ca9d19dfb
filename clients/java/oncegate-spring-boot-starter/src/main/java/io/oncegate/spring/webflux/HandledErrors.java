package io.oncegate.spring.webflux;

import io.oncegate.client.http.Run;
import org.aopalliance.intercept.MethodInterceptor;
import org.springframework.aop.framework.AopConfigException;
import org.springframework.aop.framework.ProxyFactory;
import org.springframework.core.Ordered;
import org.springframework.web.method.HandlerMethod;
import org.springframework.web.reactive.HandlerAdapter;
import org.springframework.web.reactive.HandlerResult;
import org.springframework.web.reactive.result.method.annotation.RequestMappingHandlerAdapter;
import org.springframework.web.server.ServerWebExchange;
import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;

/**
 * Sees the errors of controllers that an {@code @ExceptionHandler} answers: WebFlux leaves no trace
 * of them, and a declared harmless one releases the key.
 */
public final class HandledErrors implements HandlerAdapter, Ordered {
    private final RequestMappingHandlerAdapter adapter;

    /** Passes all on to this adapter. */
    public HandledErrors(RequestMappingHandlerAdapter adapter) {
        this.adapter = adapter;
    }

    @Override
    public int getOrder() {
        return HIGHEST_PRECEDENCE;
    }

    @Override
    public boolean supports(Object handler) {
        return adapter.supports(handler);
    }

    @Override
    public Mono<HandlerResult> handle(ServerWebExchange exchange, Object handler) {
        Run run = RecordedExchange.run(exchange);
        Object watched =
                run != null && handler instanceof HandlerMethod method
                        ? watched(method.createWithResolvedBean(), run)
                        : handler;
        return adapter.handle(exchange, watched);
    }

    private static HandlerMethod watched(HandlerMethod method, Run run) {
        var proxy = new ProxyFactory(method.getBean());
        proxy.setProxyTargetClass(true);
        MethodInterceptor watch =
                call -> {
                    try {
                        Object result = call.proceed();
                        if (result instanceof Mono<?> mono) {
                            return mono.doOnError(run::thrown);
                        }
                        return result instanceof Flux<?> flux
                                ? flux.doOnError(run::thrown)
                                : result;
                    } catch (Throwable thrown) {
                        run.thrown(thrown);
                        throw thrown;
                    }
                };
        proxy.addAdvice(watch);
        try {
            return new HandlerMethod(proxy.getProxy(), method.getMethod());
        } catch (AopConfigException isFinal) {
            // Its errors are not seen: their answers are judged by their status.
            return method;
        }
    }
}
