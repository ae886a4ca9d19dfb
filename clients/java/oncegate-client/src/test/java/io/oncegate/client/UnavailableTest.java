package io.oncegate.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.oncegate.client.Answerer.Answer;
import io.oncegate.client.http.Problem;
import java.time.Duration;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** A claim that no gateway has granted, and what the caller of a service is told. */
class UnavailableTest {
    @ParameterizedTest
    @CsvSource({
        "503, outcome_unknown, true",
        "500, internal, true",
        "503, store_unavailable, false",
        "503, overloaded, false"
    })
    void aLostAnswerMayHaveTakenTheKey(int status, String code, boolean mayHaveActed) {
        var options =
                new Options()
                        .answerer(
                                (path, body) ->
                                        new Answer(
                                                status,
                                                "{\"code\":\"" + code + "\",\"retry_after_ms\":1}"))
                        .claimWithin(Duration.ofMillis(50));
        try (var client = new OncegateClient(options)) {
            var none =
                    assertThrows(
                            Unavailable.class,
                            () -> client.once("order.submit", "A-1", grant -> 1));
            assertEquals(mayHaveActed, none.mayHaveActed());
            String detail = Problem.of(none).detail();
            assertEquals(mayHaveActed, detail.contains("may have taken the key"), detail);
        }
    }
}
