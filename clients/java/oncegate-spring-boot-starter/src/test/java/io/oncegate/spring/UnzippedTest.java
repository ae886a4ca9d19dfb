package io.oncegate.spring;

import static org.assertj.core.api.Assertions.assertThat;

import io.oncegate.client.testing.MemoryGateway;
import io.oncegate.spring.Filtered.Answer;
import io.oncegate.spring.Filtered.Service;
import io.oncegate.spring.RunningServer.Pieces;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.stream.Stream;
import java.util.zip.Deflater;
import java.util.zip.GZIPOutputStream;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;
import org.springframework.boot.web.server.WebServer;

/** Bodies with {@code Content-Encoding: gzip} that a layer outside of the filters decompresses. */
class UnzippedTest {
    private final MemoryGateway gateway = new MemoryGateway();
    private final Service service = new Service(gateway.client(), true, false);

    /** Bodies that are shorter and longer than their compressed form, or empty. */
    static Stream<Arguments> bodies() {
        return Stream.of(Filtered.values())
                .flatMap(
                        filter ->
                                Stream.of("", "1110 cents", "1110 cents, ".repeat(500))
                                        .map(body -> Arguments.of(filter, body)));
    }

    private static byte[] zipped(String text, int level) {
        var bytes = new ByteArrayOutputStream();
        try (var zip =
                new GZIPOutputStream(bytes) {
                    {
                        def.setLevel(level);
                    }
                }) {
            zip.write(text.getBytes(StandardCharsets.UTF_8));
        } catch (IOException impossible) {
            throw new AssertionError(impossible);
        }
        return bytes.toByteArray();
    }

    @ParameterizedTest
    @MethodSource("bodies")
    void aRepeatIsTheSameTextHoweverItIsCompressed(Filtered filter, String body) throws Exception {
        byte[] best = zipped(body, Deflater.BEST_COMPRESSION);
        assertThat(filter.post(service, "k-1", best)).isEqualTo(new Answer(201, null, null, body));
        byte[] stored = zipped(body, Deflater.NO_COMPRESSION);
        assertThat(stored).isNotEqualTo(best);
        Answer repeat = filter.post(service, "k-1", stored);
        assertThat(repeat).isEqualTo(new Answer(201, null, "true", body));
        assertThat(service.bodies()).containsExactly(body);
    }

    /** The declared length says nothing of a compressed body, so that the server has to know. */
    @ParameterizedTest
    @EnumSource(RunningServer.class)
    void anUploadThatEndsEarlyIsNoRequest(RunningServer kind) throws Exception {
        WebServer server = kind.start(gateway.client(), new Pieces(true, List.of("done")));
        try (var caller = new Socket(InetAddress.getLoopbackAddress(), server.getPort())) {
            String request =
                    "POST /orders HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: k-1\r\n"
                            + "Content-Encoding: gzip\r\nContent-Length: 100\r\n\r\ncut";
            caller.getOutputStream().write(request.getBytes(StandardCharsets.US_ASCII));
            caller.shutdownOutput();
            caller.setSoTimeout(20_000);
            byte[] answer = caller.getInputStream().readAllBytes();
            assertThat(new String(answer, StandardCharsets.US_ASCII)).doesNotContain("200");
        } finally {
            server.stop();
        }
        assertThat(gateway.claims()).isEmpty();
    }

    @ParameterizedTest
    @EnumSource(Filtered.class)
    void anotherTextIsAnotherRequest(Filtered filter) throws Exception {
        filter.post(service, "k-1", zipped("1110 cents", Deflater.BEST_COMPRESSION));
        Answer other = filter.post(service, "k-1", zipped("1111 cents", Deflater.BEST_COMPRESSION));
        assertThat(other.status()).isEqualTo(422);
        assertThat(other.body()).contains("fingerprint_mismatch");
        assertThat(service.bodies()).containsExactly("1110 cents");
    }
}
