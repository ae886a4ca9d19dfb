package io.oncegate.vectors;

import io.oncegate.client.http.Idempotency;
import io.oncegate.client.servlet.IdempotencyFilter;
import jakarta.servlet.DispatcherType;
import jakarta.servlet.Filter;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import jakarta.servlet.http.HttpServletResponseWrapper;
import java.io.IOException;
import java.util.EnumSet;
import java.util.List;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.web.servlet.FilterRegistrationBean;
import org.springframework.boot.web.servlet.ServletContextInitializer;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Import;

/** The servlet application: Spring MVC, on Tomcat or Jetty. */
@SpringBootConfiguration(proxyBeanMethods = false)
@EnableAutoConfiguration
@Import(ServletHandler.class)
public class ServletApp {
    static final List<String> LACKS = List.of("gone");
    private static final int ORDER = 10;

    @Bean
    ServletContextInitializer idempotencyFilters() {
        return context -> {
            IdempotencyFilter.listen(context);
            Rules.<HttpServletRequest>all(request -> request.getHeader("Vector-User"))
                    .forEach(
                            (at, rules) -> {
                                var registration = context.addFilter(at, filter(at, rules));
                                registration.setAsyncSupported(true);
                                registration.addMappingForUrlPatterns(
                                        EnumSet.of(
                                                DispatcherType.REQUEST,
                                                DispatcherType.ASYNC,
                                                DispatcherType.ERROR),
                                        true,
                                        "/*");
                            });
        };
    }

    private static IdempotencyFilter filter(String at, Idempotency<HttpServletRequest> rules) {
        String prefix = "/" + at + "/";
        return new IdempotencyFilter(
                rules.when(request -> request.getRequestURI().startsWith(prefix)));
    }

    /**
     * A layer outside that forbids caches, as Spring Security does: when the head is sent, when the
     * first dispatch has ended, or when an error is sent.
     */
    @Bean
    FilterRegistrationBean<Filter> headers() {
        Filter headers =
                (request, response, chain) -> {
                    var closed = new PrivateResponse((HttpServletResponse) response);
                    try {
                        chain.doFilter(request, closed);
                    } finally {
                        closed.forbid();
                    }
                };
        var registration = new FilterRegistrationBean<>(headers);
        registration.setOrder(-ORDER);
        registration.setMatchAfter(false);
        return registration;
    }

    private static final class PrivateResponse extends HttpServletResponseWrapper {
        PrivateResponse(HttpServletResponse response) {
            super(response);
        }

        void forbid() {
            if (!containsHeader("Cache-Control") && !isCommitted()) {
                setHeader("Cache-Control", "no-cache, no-store");
            }
        }

        @Override
        public void sendError(int status) throws IOException {
            forbid();
            super.sendError(status);
        }

        @Override
        public void sendError(int status, String message) throws IOException {
            forbid();
            super.sendError(status, message);
        }

        @Override
        public void flushBuffer() throws IOException {
            forbid();
            super.flushBuffer();
        }
    }

    /** A layer that reads forms before the middleware. */
    @Bean
    FilterRegistrationBean<Filter> reader() {
        Filter reader =
                (request, response, chain) -> {
                    ((HttpServletRequest) request).getParts();
                    chain.doFilter(request, response);
                };
        var registration = new FilterRegistrationBean<>(reader);
        registration.addUrlPatterns("/behind/*");
        registration.setOrder(ORDER);
        registration.setMatchAfter(false);
        return registration;
    }
}
