package io.oncegate.spring;

import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.tracing.Tracer;
import io.oncegate.client.OncegateClient;
import io.oncegate.client.Options;
import io.oncegate.client.micrometer.OncegateMetrics;
import io.oncegate.client.servlet.IdempotencyFilter;
import io.oncegate.spring.webflux.HandledErrors;
import jakarta.servlet.ServletContext;
import java.util.List;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.beans.factory.config.BeanDefinition;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnWebApplication;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.boot.web.servlet.ServletContextInitializer;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Role;
import org.springframework.web.reactive.result.method.annotation.RequestMappingHandlerAdapter;

/** Makes an {@link OncegateClient} of {@code oncegate.*}, and the aspect of {@link Once}. */
@AutoConfiguration(
        afterName = {
            "org.springframework.boot.autoconfigure.jackson.JacksonAutoConfiguration",
            "org.springframework.boot.jackson.autoconfigure.JacksonAutoConfiguration",
            "org.springframework.boot.jackson2.autoconfigure.Jackson2AutoConfiguration",
            "org.springframework.boot.autoconfigure.web.reactive.WebFluxAutoConfiguration",
            "org.springframework.boot.webflux.autoconfigure.WebFluxAutoConfiguration",
            "org.springframework.boot.micrometer.metrics.autoconfigure.CompositeMeterRegistryAutoConfiguration",
            "org.springframework.boot.actuate.autoconfigure.metrics.CompositeMeterRegistryAutoConfiguration"
        })
@EnableConfigurationProperties(OncegateProperties.class)
public class OncegateAutoConfiguration {
    /** Makes the client. Results are written and read by the application's own Jackson. */
    @Bean
    @ConditionalOnMissingBean
    public OncegateClient oncegateClient(
            OncegateProperties properties,
            ObjectProvider<ResultMapper> mappers,
            ObjectProvider<OncegateCustomizer> customizers) {
        List<String> urls = properties.urls();
        Options options =
                (urls == null || urls.isEmpty() ? new Options() : new Options(urls))
                        .credential(properties.credential())
                        .timeout(properties.timeout())
                        .claimWithin(properties.claimWithin())
                        .settleWithin(properties.settleWithin())
                        .onUnavailable(properties.onUnavailable())
                        .insideTransaction(Transactions::isInside);
        ResultMapper mapper = mappers.getIfAvailable();
        if (mapper != null) {
            options =
                    options.resultWriter(mapper::write)
                            .resultReader((json, type) -> mapper.read(json.text(), type));
        }
        if (!properties.enabled()) {
            options = options.enabled(false);
        }
        for (OncegateCustomizer customizer : customizers.orderedStream().toList()) {
            options = customizer.customize(options);
        }
        return new OncegateClient(options);
    }

    /** Makes the aspect of {@link Once}. It is made early, as Spring's own advisors are. */
    @Bean
    @Role(BeanDefinition.ROLE_INFRASTRUCTURE)
    @ConditionalOnMissingBean
    public static OnceAspect onceAspect(
            ObjectProvider<OncegateClient> client,
            ObjectProvider<ResultMapper> mappers,
            ObjectProvider<UnsettledReports> reports) {
        return new OnceAspect(
                client::getObject,
                mappers::getIfAvailable,
                unsettled -> reports.ifAvailable(bean -> bean.keep(unsettled)));
    }

    /** Takes Jackson 3, where the application has it. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(name = "tools.jackson.databind.ObjectMapper")
    static class Jackson3 {
        @Bean
        @ConditionalOnMissingBean(ResultMapper.class)
        @ConditionalOnBean(type = "tools.jackson.databind.ObjectMapper")
        ResultMapper oncegateJackson3(ObjectProvider<tools.jackson.databind.ObjectMapper> mappers) {
            return new Jackson3Results(mappers.getObject());
        }
    }

    /** Takes Jackson 2 otherwise. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(name = "com.fasterxml.jackson.databind.ObjectMapper")
    static class Jackson2 {
        @Bean
        @ConditionalOnMissingBean(ResultMapper.class)
        @ConditionalOnBean(type = "com.fasterxml.jackson.databind.ObjectMapper")
        ResultMapper oncegateJackson2(
                ObjectProvider<com.fasterxml.jackson.databind.ObjectMapper> mappers) {
            return new Jackson2Results(mappers.getObject());
        }
    }

    /** Checks methods with {@link Once} when their bean is made. */
    @Bean
    static OnceBeans onceBeans() {
        return new OnceBeans();
    }

    /** Shows the filter what is answered outside of it. Jetty takes no listener later. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnWebApplication(type = ConditionalOnWebApplication.Type.SERVLET)
    @ConditionalOnClass({ServletContext.class, ServletContextInitializer.class})
    static class Servlets {
        @Bean
        ServletContextInitializer oncegateServletListener() {
            return IdempotencyFilter::listen;
        }
    }

    /** Answers errors, in web applications. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnWebApplication
    static class Web {
        @Bean
        @ConditionalOnMissingBean
        OncegateErrors oncegateErrors() {
            return new OncegateErrors();
        }
    }

    /** Sees the errors that exception handlers of WebFlux answer. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnWebApplication(type = ConditionalOnWebApplication.Type.REACTIVE)
    static class WebFlux {
        @Bean
        HandledErrors oncegateHandledErrors(RequestMappingHandlerAdapter adapter) {
            return new HandledErrors(adapter);
        }
    }

    /** Counts events, where Micrometer is there. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(MeterRegistry.class)
    static class Metrics {
        @Bean
        OncegateCustomizer oncegateMetrics(ObjectProvider<MeterRegistry> registries) {
            return options -> {
                MeterRegistry registry = registries.getIfAvailable();
                return registry == null
                        ? options
                        : options.alsoOnEvent(new OncegateMetrics(registry));
            };
        }
    }

    /** Passes the current trace on, where Micrometer Tracing is there. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(Tracer.class)
    static class Tracing {
        @Bean
        OncegateCustomizer oncegateTracing(ObjectProvider<Tracer> tracers) {
            return options -> {
                Tracer tracer = tracers.getIfAvailable();
                return tracer == null ? options : options.traceparent(() -> traceparent(tracer));
            };
        }

        private static String traceparent(Tracer tracer) {
            var span = tracer.currentSpan();
            if (span == null || span.context().traceId().length() != 32) {
                return null;
            }
            var context = span.context();
            String sampled = Boolean.TRUE.equals(context.sampled()) ? "01" : "00";
            return "00-" + context.traceId() + "-" + context.spanId() + "-" + sampled;
        }
    }
}
