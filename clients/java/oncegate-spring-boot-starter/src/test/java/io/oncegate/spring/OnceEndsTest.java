package io.oncegate.spring;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.springframework.test.web.servlet.request.MockMvcRequestBuilders.post;
import static org.springframework.test.web.servlet.result.MockMvcResultMatchers.content;
import static org.springframework.test.web.servlet.result.MockMvcResultMatchers.header;
import static org.springframework.test.web.servlet.result.MockMvcResultMatchers.jsonPath;
import static org.springframework.test.web.servlet.result.MockMvcResultMatchers.status;

import io.oncegate.client.OncegateClient;
import io.oncegate.client.Options;
import java.io.IOException;
import java.time.Duration;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.springframework.boot.autoconfigure.AutoConfigurations;
import org.springframework.boot.autoconfigure.aop.AopAutoConfiguration;
import org.springframework.boot.autoconfigure.jackson.JacksonAutoConfiguration;
import org.springframework.boot.test.context.runner.ApplicationContextRunner;
import org.springframework.http.MediaType;
import org.springframework.test.web.servlet.setup.MockMvcBuilders;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.context.request.async.DeferredResult;
import org.springframework.web.context.request.async.WebAsyncTask;

/** The ends of a method: errors without effect, types that end later, and their HTTP responses. */
class OnceEndsTest {
    private ClaimTable gateway;
    private ApplicationContextRunner runner;

    static class SoldOut extends RuntimeException {
        private static final long serialVersionUID = 1;
    }

    static class SoldOutLater extends SoldOut {
        private static final long serialVersionUID = 1;
    }

    static class Seats {
        final AtomicInteger runs = new AtomicInteger();
        final DeferredResult<Integer> later = new DeferredResult<>();

        @Once(
                operation = "seat.book",
                key = "#seat",
                releaseOn = SoldOut.class,
                noReleaseOn = SoldOutLater.class)
        public int book(String seat, RuntimeException thrown) {
            runs.incrementAndGet();
            if (thrown != null) {
                throw thrown;
            }
            return runs.get();
        }

        @Once(operation = "seat.deferred", key = "#seat")
        public DeferredResult<Integer> deferred(String seat) {
            return later;
        }

        @Once(operation = "seat.task", key = "#seat")
        public WebAsyncTask<Integer> task(String seat) {
            return new WebAsyncTask<>(runs::incrementAndGet);
        }
    }

    @BeforeEach
    void start() throws IOException {
        gateway = new ClaimTable();
        runner =
                new ApplicationContextRunner()
                        .withConfiguration(
                                AutoConfigurations.of(
                                        OncegateAutoConfiguration.class,
                                        AopAutoConfiguration.class,
                                        JacksonAutoConfiguration.class))
                        .withBean(Seats.class)
                        .withPropertyValues("oncegate.urls=" + gateway.url());
    }

    @AfterEach
    void stop() {
        gateway.close();
    }

    @Test
    void anErrorWithoutEffectReleasesTheOperation() {
        runner.run(
                context -> {
                    Seats seats = context.getBean(Seats.class);
                    assertThatThrownBy(() -> seats.book("12A", new SoldOut()))
                            .isInstanceOf(SoldOut.class);
                    assertThat(seats.book("12A", null)).isEqualTo(2);
                    assertThatThrownBy(() -> seats.book("12B", new SoldOutLater()))
                            .isInstanceOf(SoldOutLater.class);
                    assertThatThrownBy(() -> seats.book("12B", null))
                            .isInstanceOf(DuplicateOperation.class);
                    assertThatThrownBy(
                                    () ->
                                            seats.book(
                                                    "12C",
                                                    new IllegalStateException(new SoldOut())))
                            .isInstanceOf(IllegalStateException.class);
                    assertThat(gateway.outcomes())
                            .containsExactly("failure", "success", "unknown", "unknown");
                });
    }

    @Test
    void aDeferredResultIsReportedWhenItCompletes() {
        runner.run(
                context -> {
                    Seats seats = context.getBean(Seats.class);
                    DeferredResult<Integer> first = seats.deferred("12A");
                    assertThat(gateway.outcomes()).isEmpty();
                    ((Seats) org.springframework.test.util.AopTestUtils.getTargetObject(seats))
                            .later.setResult(7);
                    assertThat(await(first)).isEqualTo(7);
                    assertThat(gateway.outcomes()).containsExactly("success");
                    assertThat(await(seats.deferred("12A"))).isEqualTo(7);
                });
    }

    private static Object await(DeferredResult<?> result) throws InterruptedException {
        long ends = System.nanoTime() + Duration.ofSeconds(10).toNanos();
        while (!result.hasResult() && System.nanoTime() < ends) {
            Thread.sleep(5);
        }
        return result.getResult();
    }

    @Test
    void aTaskIsReportedWhenItWasCalled() {
        runner.run(
                context -> {
                    Seats seats = context.getBean(Seats.class);
                    var task = seats.task("12A");
                    assertThat(gateway.claims()).isZero();
                    assertThat(task.getCallable().call()).isEqualTo(1);
                    assertThat(seats.task("12A").getCallable().call()).isEqualTo(1);
                    assertThat(gateway.outcomes()).containsExactly("success");
                });
    }

    @Test
    void aSuccessThatCouldNotBeReportedKeepsItsResult() {
        var kept = new AtomicInteger();
        runner.withPropertyValues("oncegate.settle-within=200ms")
                .withBean(UnsettledReports.class, () -> unsettled -> kept.incrementAndGet())
                .run(
                        context -> {
                            gateway.refuseOutcomes();
                            assertThat(context.getBean(Seats.class).book("12A", null)).isEqualTo(1);
                            assertThat(kept).hasValue(1);
                        });
    }

    @RestController
    static final class Controller {
        private final OncegateClient client;
        private final Seats seats;

        Controller(OncegateClient client, Seats seats) {
            this.client = client;
            this.seats = seats;
        }

        @PostMapping("/unknown")
        int unknown() {
            return seats.book("12A", null);
        }

        @PostMapping("/floats")
        String floats() throws InterruptedException {
            return client.once("seat.book", 1.5, grant -> "").toString();
        }

        @PostMapping("/away")
        String away() throws InterruptedException {
            var options = new Options("http://127.0.0.1:1").claimWithin(Duration.ofMillis(100));
            try (var away = new OncegateClient(options)) {
                return away.once("seat.book", "12A", grant -> "").toString();
            }
        }
    }

    @Test
    void errorsHaveAMeaningInHttp() {
        runner.run(
                context -> {
                    Seats seats = context.getBean(Seats.class);
                    var mvc =
                            MockMvcBuilders.standaloneSetup(
                                            new Controller(
                                                    context.getBean(OncegateClient.class), seats))
                                    .setControllerAdvice(new OncegateErrors())
                                    .build();
                    assertThatThrownBy(() -> seats.book("12A", new IllegalStateException()))
                            .isInstanceOf(IllegalStateException.class);
                    mvc.perform(post("/unknown"))
                            .andExpect(status().isConflict())
                            .andExpect(content().contentType(MediaType.APPLICATION_PROBLEM_JSON))
                            .andExpect(header().doesNotExist("Retry-After"))
                            .andExpect(jsonPath("$.type").value("urn:oncegate:problem:duplicate"));
                    mvc.perform(post("/floats")).andExpect(status().isUnprocessableEntity());
                    mvc.perform(post("/away"))
                            .andExpect(status().isServiceUnavailable())
                            .andExpect(header().string("Retry-After", "1"))
                            .andExpect(
                                    jsonPath("$.type")
                                            .value("urn:oncegate:problem:store_unavailable"));
                });
    }
}
