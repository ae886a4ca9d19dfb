package io.oncegate.spring.webflux;

import io.oncegate.client.http.Run;
import java.util.List;
import org.springframework.core.ResolvableType;
import org.springframework.http.MediaType;
import org.springframework.http.codec.HttpMessageReader;
import org.springframework.http.codec.ServerCodecConfigurer;
import org.springframework.http.codec.multipart.Part;
import org.springframework.http.server.reactive.ServerHttpRequest;
import org.springframework.http.server.reactive.ServerHttpResponse;
import org.springframework.util.LinkedMultiValueMap;
import org.springframework.util.MultiValueMap;
import org.springframework.web.server.ServerWebExchange;
import org.springframework.web.server.ServerWebExchangeDecorator;
import reactor.core.publisher.Mono;

/** The exchange as the handler sees it. Forms are parsed from the body that was read before. */
final class RecordedExchange extends ServerWebExchangeDecorator {
    /** Name of the attribute that holds the run. */
    static final String RUN = "io.oncegate.run";

    private static final ResolvableType FORM =
            ResolvableType.forClassWithGenerics(MultiValueMap.class, String.class, String.class);
    private static final ResolvableType PARTS =
            ResolvableType.forClassWithGenerics(MultiValueMap.class, String.class, Part.class);

    private final ServerHttpRequest request;
    private final ServerHttpResponse response;
    private final Mono<MultiValueMap<String, String>> form;
    private final Mono<MultiValueMap<String, Part>> parts;

    RecordedExchange(
            ServerWebExchange exchange,
            BufferedHttpRequest request,
            RecordedHttpResponse response) {
        super(exchange);
        this.request = request;
        this.response = response == null ? exchange.getResponse() : response;
        var codecs = ServerCodecConfigurer.create();
        codecs.defaultCodecs().maxInMemorySize(request.length() + 1);
        form = parsed(codecs.getReaders(), FORM, MediaType.APPLICATION_FORM_URLENCODED);
        parts = parsed(codecs.getReaders(), PARTS, MediaType.MULTIPART_FORM_DATA);
    }

    static Run run(ServerWebExchange exchange) {
        return exchange.getAttribute(RUN);
    }

    @SuppressWarnings("unchecked") // The reader was chosen by this type.
    private <T> Mono<MultiValueMap<String, T>> parsed(
            List<HttpMessageReader<?>> readers, ResolvableType type, MediaType media) {
        return Mono.defer(
                        () -> {
                            MediaType given = request.getHeaders().getContentType();
                            if (!media.isCompatibleWith(given)) {
                                return Mono.empty();
                            }
                            return readers.stream()
                                    .filter(reader -> reader.canRead(type, media))
                                    .findFirst()
                                    .map(
                                            reader ->
                                                    (Mono<MultiValueMap<String, T>>)
                                                            reader.readMono(
                                                                    type,
                                                                    request,
                                                                    java.util.Map.of()))
                                    .orElse(Mono.empty());
                        })
                .defaultIfEmpty(new LinkedMultiValueMap<>())
                .cache();
    }

    @Override
    public ServerHttpRequest getRequest() {
        return request;
    }

    @Override
    public ServerHttpResponse getResponse() {
        return response;
    }

    @Override
    public Mono<MultiValueMap<String, String>> getFormData() {
        return form;
    }

    @Override
    public Mono<MultiValueMap<String, Part>> getMultipartData() {
        return parts;
    }
}
