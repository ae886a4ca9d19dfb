package io.oncegate.vectors;

import java.util.ArrayList;
import java.util.List;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.builder.SpringApplicationBuilder;

/** Starts the test application of one row. */
public final class Main {
    private Main() {}

    /** Takes {@code --app NAME --port PORT}. */
    public static void main(String[] words) {
        String app = after(words, "--app");
        boolean isReactive = app.startsWith("webflux");
        List<String> properties =
                new ArrayList<>(
                        List.of(
                                "server.address=127.0.0.1",
                                "server.port=" + after(words, "--port"),
                                "server.error.include-message=always",
                                "spring.web.error.include-message=always",
                                "server.tomcat.max-http-response-header-size=128KB",
                                "server.jetty.max-http-response-header-size=128KB",
                                "server.compression.enabled=true",
                                "server.compression.mime-types=" + Steps.ZIPPED,
                                "server.compression.min-response-size=16",
                                "spring.mvc.formcontent.filter.enabled=false",
                                "spring.main.banner-mode=off",
                                "spring.jmx.enabled=false",
                                "vectors.async=" + app.endsWith("-async"),
                                "logging.level.root=warn"));
        var context =
                new SpringApplicationBuilder(isReactive ? ReactiveApp.class : ServletApp.class)
                        .web(isReactive ? WebApplicationType.REACTIVE : WebApplicationType.SERVLET)
                        .properties(properties.toArray(String[]::new))
                        .run();
        for (String lack : isReactive ? ReactiveApp.LACKS : ServletApp.LACKS) {
            System.out.println("lacks " + lack);
        }
        String port = context.getEnvironment().getProperty("local.server.port");
        System.out.println("listening 127.0.0.1:" + port);
    }

    private static String after(String[] words, String name) {
        int at = List.of(words).indexOf(name);
        if (at < 0 || at + 1 == words.length) {
            throw new IllegalArgumentException("usage: vectors-app --app NAME --port PORT");
        }
        return words[at + 1];
    }
}
