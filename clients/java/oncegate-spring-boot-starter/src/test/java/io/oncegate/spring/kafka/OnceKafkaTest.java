package io.oncegate.spring.kafka;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.oncegate.client.Decision;
import io.oncegate.client.NothingHappened;
import io.oncegate.client.OnceConsumer;
import io.oncegate.client.OncegateClient;
import io.oncegate.client.Options;
import io.oncegate.client.Terms;
import io.oncegate.spring.ClaimTable;
import io.oncegate.spring.NotDone;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.springframework.aop.framework.ProxyFactory;
import org.springframework.kafka.listener.AcknowledgingMessageListener;
import org.springframework.kafka.listener.ListenerExecutionFailedException;
import org.springframework.kafka.support.Acknowledgment;

class OnceKafkaTest {
    private final AtomicInteger runs = new AtomicInteger();
    private final AtomicInteger acknowledged = new AtomicInteger();
    private Consumer<String> work = value -> {};
    private ClaimTable gateway;
    private OncegateClient client;
    private AcknowledgingMessageListener<String, String> listener;

    @BeforeEach
    @SuppressWarnings("unchecked") // The proxy has the interface of its target.
    void start() throws Exception {
        gateway = new ClaimTable();
        client = new OncegateClient(new Options(gateway.url()));
        AcknowledgingMessageListener<String, String> target =
                (record, acknowledgment) -> {
                    runs.incrementAndGet();
                    work.accept(record.value());
                    acknowledgment.acknowledge();
                };
        var proxy = new ProxyFactory(target);
        proxy.addAdvice(
                new OnceKafkaAdvice(
                        new OnceConsumer<>(client, "payout.send", OnceKafkaTest::contents)));
        listener = (AcknowledgingMessageListener<String, String>) proxy.getProxy();
    }

    @AfterEach
    void stop() {
        client.close();
        gateway.close();
    }

    private static Object contents(ConsumerRecord<?, ?> record) {
        return Map.of("payout_id", record.value());
    }

    private void deliver(long offset, String value) {
        Acknowledgment acknowledgment = acknowledged::incrementAndGet;
        listener.onMessage(
                new ConsumerRecord<>("payouts", 0, offset, "key", value), acknowledgment);
    }

    private Decision refused(long offset, String value) {
        try {
            deliver(offset, value);
        } catch (RuntimeException thrown) {
            return NotDone.in(
                    new ListenerExecutionFailedException("as the container wraps it", thrown));
        }
        throw new AssertionError("it was acknowledged");
    }

    @Test
    void theSamePayoutInAnotherRecordIsAcknowledgedAndDoesNotRun() {
        deliver(1, "P-1");
        deliver(2, "P-1");
        assertThat(runs).hasValue(1);
        assertThat(acknowledged).hasValue(2);
    }

    @Test
    void anUnknownOutcomeIsParked() {
        work =
                value -> {
                    throw new IllegalStateException("a timeout of the bank");
                };
        assertThat(refused(1, "P-1").kind()).isEqualTo(Decision.Kind.PARK);
        // Delivered again, it is not run on a guess.
        assertThat(refused(1, "P-1").kind()).isEqualTo(Decision.Kind.PARK);
        assertThat(runs).hasValue(1);
    }

    @Test
    void onlyRunsInWhichNothingHappenedMakeARecordPoison() {
        work =
                value -> {
                    throw new ListenerExecutionFailedException(
                            "wrapped", new NothingHappened("the bank was not reached"));
                };
        assertThat(refused(1, "P-1").kind()).isEqualTo(Decision.Kind.REDELIVER);
        assertThat(refused(1, "P-1").kind()).isEqualTo(Decision.Kind.REDELIVER);
        assertThat(refused(1, "P-1").kind()).isEqualTo(Decision.Kind.DEAD_LETTER);
        assertThat(gateway.outcomes()).containsOnly("failure");
    }

    @Test
    void redeliveriesWhileInProgressHaveNoEnd() throws Exception {
        client.claim("payout.send", Map.of("payout_id", "P-1"), Terms.NONE);
        Decision decision = null;
        for (int delivery = 0; delivery < 10; delivery++) {
            decision = refused(1, "P-1");
            assertThat(decision.kind()).isEqualTo(Decision.Kind.REDELIVER);
        }
        var last = new NotDone(decision);
        assertThat(OnceKafkaErrorHandler.isRedelivered(last)).isTrue();
        assertThat(OnceKafkaErrorHandler.pause(last)).isEqualTo(70);
    }

    @Test
    void parkedAndDeadRecordsHaveTopicsOfTheirOwn() {
        var record = new ConsumerRecord<>("payouts", 3, 1, "key", "P-1");
        var park = new NotDone(new Decision(Decision.Kind.PARK, null, "unknown", null));
        var dead = new NotDone(new Decision(Decision.Kind.DEAD_LETTER, null, "poison", null));
        assertThat(OnceKafkaErrorHandler.destination(record, park).topic())
                .isEqualTo("payouts-parked");
        assertThat(OnceKafkaErrorHandler.destination(record, dead).topic())
                .isEqualTo("payouts-dlt");
        assertThat(OnceKafkaErrorHandler.isRedelivered(park)).isFalse();
    }

    @Test
    void contentsThatCannotBeDerivedAreADeadLetter() {
        assertThatThrownBy(() -> deliver(1, null)).isInstanceOf(NotDone.class);
        assertThat(refused(1, null).kind()).isEqualTo(Decision.Kind.DEAD_LETTER);
        assertThat(runs).hasValue(0);
    }
}
