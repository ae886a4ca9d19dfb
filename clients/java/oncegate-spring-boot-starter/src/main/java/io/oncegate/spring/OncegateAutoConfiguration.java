package io.oncegate.spring;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.tracing.Tracer;
import io.oncegate.client.OncegateClient;
import io.oncegate.client.Options;
import io.oncegate.client.micrometer.OncegateMetrics;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;

/** Makes an {@link OncegateClient} of {@code oncegate.*}, and the aspect of {@link Once}. */
@AutoConfiguration(
        afterName = {
            "org.springframework.boot.autoconfigure.jackson.JacksonAutoConfiguration",
            "org.springframework.boot.actuate.autoconfigure.metrics.CompositeMeterRegistryAutoConfiguration"
        })
@EnableConfigurationProperties(OncegateProperties.class)
public class OncegateAutoConfiguration {
    /** Makes the client. Results are written by the application's own Jackson mapper. */
    @Bean
    @ConditionalOnMissingBean
    public OncegateClient oncegateClient(
            OncegateProperties properties,
            ObjectProvider<ObjectMapper> mappers,
            ObjectProvider<OncegateCustomizer> customizers) {
        ObjectMapper mapper = mappers.getIfAvailable(ObjectMapper::new);
        var options =
                new Options(properties.urls())
                        .credential(properties.credential())
                        .timeout(properties.timeout())
                        .claimWithin(properties.claimWithin())
                        .settleWithin(properties.settleWithin())
                        .onUnavailable(properties.onUnavailable())
                        .resultWriter(result -> write(mapper, result));
        customizers.orderedStream().forEach(customizer -> customizer.customize(options));
        return new OncegateClient(options);
    }

    private static String write(ObjectMapper mapper, Object result) {
        try {
            return mapper.writeValueAsString(result);
        } catch (JsonProcessingException notJson) {
            throw new IllegalArgumentException(notJson);
        }
    }

    /** Makes the aspect of {@link Once}. */
    @Bean
    @ConditionalOnMissingBean
    public static OnceAspect onceAspect(
            ObjectProvider<OncegateClient> client, ObjectProvider<ObjectMapper> mappers) {
        return new OnceAspect(client::getObject, () -> mappers.getIfAvailable(ObjectMapper::new));
    }

    /** Checks methods with {@link Once} when their bean is made. */
    @Bean
    static OnceBeans onceBeans() {
        return new OnceBeans();
    }

    /** Counts events, where Micrometer is there. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(MeterRegistry.class)
    static class Metrics {
        @Bean
        OncegateCustomizer oncegateMetrics(ObjectProvider<MeterRegistry> registries) {
            return options ->
                    registries.ifAvailable(
                            registry -> options.alsoOnEvent(new OncegateMetrics(registry)));
        }
    }

    /** Passes the current trace on, where Micrometer Tracing is there. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(Tracer.class)
    static class Tracing {
        @Bean
        OncegateCustomizer oncegateTracing(ObjectProvider<Tracer> tracers) {
            return options ->
                    tracers.ifAvailable(tracer -> options.traceparent(() -> traceparent(tracer)));
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
