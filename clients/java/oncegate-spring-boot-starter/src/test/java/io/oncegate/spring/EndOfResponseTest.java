package io.oncegate.spring;

import static org.assertj.core.api.Assertions.assertThat;

import io.oncegate.client.OncegateClient;
import io.oncegate.client.Options;
import io.oncegate.spring.RunningServer.Pieces;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;
import org.springframework.boot.web.server.WebServer;

/**
 * A response passes as the handler sends it; what makes it complete waits until the gateway has
 * answered the report.
 */
class EndOfResponseTest {
    private static final int AT_MOST = 20_000;
    private static final String END = "\r\n0\r\n\r\n";

    /** Longer than the buffers of servers, which would hold it back themselves. */
    private static final String LAST = ".".repeat(100_000) + "last";

    private static final Pieces DECLARED = new Pieces(true, List.of("first ", "next ", LAST));
    private static final Pieces CHUNKED = new Pieces(false, List.of("first ", "next ", LAST));
    private static final Pieces IN_ONE = new Pieces(true, List.of("in one piece"));

    private ClaimTable gateway;
    private OncegateClient client;
    private WebServer server;
    private Socket caller;
    private final ByteArrayOutputStream received = new ByteArrayOutputStream();

    @BeforeEach
    void start() throws IOException {
        gateway = new ClaimTable();
        gateway.holdOutcomes();
        client = new OncegateClient(new Options(gateway.url()).timeout(Duration.ofMinutes(1)));
    }

    @AfterEach
    void stop() throws IOException {
        caller.close();
        gateway.close();
        server.stop();
        client.close();
    }

    private void post(RunningServer kind, OncegateClient client, Pieces pieces) throws IOException {
        server = kind.start(client, pieces);
        caller = new Socket(InetAddress.getLoopbackAddress(), server.getPort());
        String request =
                "POST /orders HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: k-1\r\n"
                        + "Content-Length: 2\r\n\r\n{}";
        caller.getOutputStream().write(request.getBytes(StandardCharsets.US_ASCII));
    }

    /** Reads until the text has come, or nothing comes within the time. */
    private String readTo(String text, int millis) throws IOException {
        caller.setSoTimeout(millis);
        try {
            byte[] bytes = new byte[8192];
            for (int read = 0; read >= 0 && !received().contains(text); ) {
                read = caller.getInputStream().read(bytes);
                received.write(bytes, 0, Math.max(0, read));
            }
        } catch (SocketTimeoutException nothingCame) {
            // What has come is returned.
        }
        return received();
    }

    private String received() {
        return received.toString(StandardCharsets.US_ASCII);
    }

    /** Reads what comes before the gateway has answered the report. */
    private String readBeforeTheAnswer(String text) throws Exception {
        gateway.awaitOutcome();
        readTo(text, AT_MOST);
        return readTo("nothing like this", 300);
    }

    @ParameterizedTest
    @EnumSource(RunningServer.class)
    void thePieceThatFillsTheDeclaredLengthWaits(RunningServer kind) throws Exception {
        post(kind, client, DECLARED);
        assertThat(readTo("\r\n\r\nfirst ", AT_MOST)).startsWith("HTTP/1.1 200");
        assertThat(readBeforeTheAnswer("next ")).endsWith("\r\n\r\nfirst next ");
        gateway.answerOutcomes();
        assertThat(readTo("last", AT_MOST)).endsWith("\r\n\r\nfirst next " + LAST);
    }

    @ParameterizedTest
    @EnumSource(RunningServer.class)
    void theEndOfAChunkedBodyWaits(RunningServer kind) throws Exception {
        post(kind, client, CHUNKED);
        assertThat(readTo("first ", AT_MOST)).startsWith("HTTP/1.1 200");
        assertThat(readBeforeTheAnswer("next ")).contains("next ").doesNotContain(END);
        gateway.answerOutcomes();
        assertThat(readTo(END, AT_MOST)).endsWith(END);
    }

    @ParameterizedTest
    @EnumSource(RunningServer.class)
    void aResponseInOnePieceWaitsAsAWhole(RunningServer kind) throws Exception {
        post(kind, client, IN_ONE);
        gateway.awaitOutcome();
        assertThat(readTo("HTTP", 300)).isEmpty();
        gateway.answerOutcomes();
        assertThat(readTo("in one piece", AT_MOST)).endsWith("\r\n\r\nin one piece");
    }

    static Stream<Arguments> serversAndPieces() {
        return Stream.of(RunningServer.values())
                .flatMap(
                        kind ->
                                Stream.of(DECLARED, CHUNKED, IN_ONE)
                                        .map(pieces -> Arguments.of(kind, pieces)));
    }

    @ParameterizedTest
    @MethodSource("serversAndPieces")
    void withoutAnAnswerItIsCompletedAfterSettleWithin(RunningServer kind, Pieces pieces)
            throws Exception {
        var hasty = client.with(options -> options.settleWithin(Duration.ofMillis(300)));
        post(kind, hasty, pieces);
        String last = pieces == IN_ONE ? "in one piece" : "last";
        String end = pieces.isDeclared() ? last : END;
        assertThat(readTo(end, AT_MOST)).endsWith(end);
    }
}
