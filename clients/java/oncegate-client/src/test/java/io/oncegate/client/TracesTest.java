package io.oncegate.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.oncegate.client.testing.MemoryGateway;
import io.oncegate.client.testing.OncegateTest;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanKind;
import io.opentelemetry.api.trace.StatusCode;
import io.opentelemetry.sdk.testing.junit5.OpenTelemetryExtension;
import io.opentelemetry.sdk.trace.data.SpanData;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Spans of calls and runs, within a trace of the application. */
@OncegateTest
class TracesTest {
    @RegisterExtension
    static final OpenTelemetryExtension TELEMETRY = OpenTelemetryExtension.create();

    private interface Call {
        void run() throws Exception;
    }

    /** Makes a call within a trace, and returns the spans of the client as text. */
    private static List<String> traced(Call call) throws Exception {
        Span outer =
                TELEMETRY.getOpenTelemetry().getTracer("test").spanBuilder("request").startSpan();
        try (var scope = outer.makeCurrent()) {
            call.run();
        } finally {
            outer.end();
        }
        List<SpanData> spans =
                TELEMETRY.getSpans().stream()
                        .filter(span -> span.getName().startsWith("oncegate"))
                        .toList();
        for (SpanData span : spans) {
            assertEquals(
                    outer.getSpanContext().getSpanId(), span.getParentSpanId(), span.getName());
            boolean isRun = span.getName().equals("oncegate run");
            assertEquals(isRun ? SpanKind.INTERNAL : SpanKind.CLIENT, span.getKind());
        }
        return spans.stream().map(TracesTest::text).toList();
    }

    private static String text(SpanData span) {
        String attributes =
                span.getAttributes().asMap().entrySet().stream()
                        .map(each -> " " + each.getKey().getKey() + "=" + each.getValue())
                        .sorted()
                        .collect(Collectors.joining())
                        .replace("oncegate.", "");
        boolean hasFailed = span.getStatus().getStatusCode() == StatusCode.ERROR;
        return span.getName() + attributes + (hasFailed ? " failed" : "");
    }

    @Test
    void aRunAndItsCallsHaveSpans(MemoryGateway gateway) throws Exception {
        try (OncegateClient client = gateway.client()) {
            var spans =
                    traced(
                            () ->
                                    client.once(
                                            "seat.book",
                                            "12A",
                                            grant -> {
                                                assertTrue(
                                                        Span.current().getSpanContext().isValid());
                                                return "booked";
                                            }));
            assertEquals(
                    List.of(
                            "oncegate claim operation=seat.book replayed=false state=granted",
                            "oncegate outcome operation=seat.book state=succeeded",
                            "oncegate run operation=seat.book replayed=false"),
                    spans);
        }
    }

    @Test
    void aRepeatHasASpanOfItsClaim(MemoryGateway gateway) throws Exception {
        try (OncegateClient client = gateway.client()) {
            client.once("seat.book", "12A", grant -> "booked");
            assertEquals(
                    List.of("oncegate claim operation=seat.book replayed=true state=succeeded"),
                    traced(() -> client.once("seat.book", "12A", grant -> "booked")));
        }
    }

    @Test
    void anErrorOfTheWorkIsNoted(MemoryGateway gateway) throws Exception {
        try (OncegateClient client = gateway.client()) {
            var spans =
                    traced(
                            () ->
                                    assertThrows(
                                            IllegalStateException.class,
                                            () ->
                                                    client.once(
                                                            "seat.book",
                                                            "12A",
                                                            grant -> {
                                                                throw new IllegalStateException();
                                                            })));
            assertTrue(spans.get(2).startsWith("oncegate run"), spans.toString());
            assertTrue(spans.get(2).endsWith("failed"), spans.toString());
        }
    }

    @Test
    void nothingIsTracedOutsideOfATrace(MemoryGateway gateway) throws Exception {
        try (OncegateClient client = gateway.client()) {
            assertInstanceOf(Done.class, client.once("seat.book", "12A", grant -> "booked"));
            var later =
                    client.onceAsync(
                            "seat.book",
                            "12B",
                            Terms.NONE,
                            grant -> CompletableFuture.completedStage("booked"));
            assertInstanceOf(Done.class, later.get());
            assertEquals(List.of(), TELEMETRY.getSpans());
        }
    }
}
