package io.oncegate.spring.kafka;

import static org.assertj.core.api.Assertions.assertThat;

import io.oncegate.client.Grant;
import io.oncegate.client.NothingHappened;
import io.oncegate.client.OnceConsumer;
import io.oncegate.client.OncegateClient;
import io.oncegate.client.Options;
import io.oncegate.client.Terms;
import io.oncegate.spring.ClaimTable;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.awaitility.Awaitility;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.listener.ContainerProperties;
import org.springframework.kafka.listener.KafkaMessageListenerContainer;
import org.springframework.kafka.listener.MessageListener;
import org.springframework.kafka.test.EmbeddedKafkaKraftBroker;
import org.springframework.kafka.test.utils.ContainerTestUtils;
import org.springframework.kafka.test.utils.KafkaTestUtils;

/** The advice and the error handler in the container of Spring Kafka, against a real broker. */
class KafkaBrokerTest {
    private static final EmbeddedKafkaKraftBroker BROKER = new EmbeddedKafkaKraftBroker(1, 1);

    private final Map<String, Integer> runs = new ConcurrentHashMap<>();
    private ClaimTable gateway;
    private OncegateClient client;
    private DefaultKafkaProducerFactory<String, String> producers;
    private KafkaTemplate<String, String> template;
    private KafkaMessageListenerContainer<String, String> container;
    private String topic;

    @BeforeAll
    static void startBroker() {
        BROKER.afterPropertiesSet();
    }

    @AfterAll
    static void stopBroker() {
        BROKER.destroy();
    }

    @BeforeEach
    void start() throws Exception {
        gateway = new ClaimTable();
        client = new OncegateClient(new Options(gateway.url()));
        topic = "payouts" + System.nanoTime();
        BROKER.addTopics(topic, topic + "-parked", topic + "-dlt");
        producers =
                new DefaultKafkaProducerFactory<>(
                        KafkaTestUtils.producerProps(BROKER),
                        new StringSerializer(),
                        new StringSerializer());
        template = new KafkaTemplate<>(producers);
        startContainer();
    }

    @AfterEach
    void stop() {
        container.stop();
        producers.destroy();
        client.close();
        gateway.close();
    }

    private void startContainer() {
        var consumer =
                new OnceConsumer<ConsumerRecord<?, ?>>(
                                client,
                                "payout.send",
                                record -> Map.of("payout_id", record.value()))
                        .redeliverAfter(Duration.ofMillis(100));
        var properties = new ContainerProperties(topic);
        properties.setAdviceChain(new OnceKafkaAdvice(consumer));
        properties.setMessageListener(
                (MessageListener<String, String>) record -> work(record.value()));
        container = new KafkaMessageListenerContainer<>(consumers(), properties);
        container.setCommonErrorHandler(new OnceKafkaErrorHandler(template));
        container.start();
        ContainerTestUtils.waitForAssignment(container, 1);
    }

    private DefaultKafkaConsumerFactory<String, String> consumers() {
        Map<String, Object> properties =
                new HashMap<>(KafkaTestUtils.consumerProps(topic, "false", BROKER));
        properties.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        return new DefaultKafkaConsumerFactory<>(
                properties, new StringDeserializer(), new StringDeserializer());
    }

    private void work(String payout) {
        runs.merge(payout, 1, Integer::sum);
        if (payout.startsWith("unknown")) {
            throw new IllegalStateException("a timeout of the bank");
        }
        if (payout.startsWith("poison")) {
            throw new NothingHappened("the bank was not reached");
        }
    }

    private void send(String payout) throws Exception {
        template.send(topic, payout).get(10, TimeUnit.SECONDS);
    }

    private List<String> read(String topic, int count) {
        List<String> values = new ArrayList<>();
        try (var consumer = consumers().createConsumer("reader-" + System.nanoTime(), "")) {
            consumer.subscribe(List.of(topic));
            long ends = System.nanoTime() + Duration.ofSeconds(15).toNanos();
            while (values.size() < count && System.nanoTime() < ends) {
                consumer.poll(Duration.ofMillis(200)).forEach(record -> values.add(record.value()));
            }
        }
        return values;
    }

    @Test
    void eachPayoutRunsOnceAndEachEndGoesWhereItBelongs() throws Exception {
        for (String payout : List.of("P-1", "P-2", "P-1", "unknown-1", "poison-1", "P-2", "P-3")) {
            send(payout);
        }
        Awaitility.await().atMost(Duration.ofSeconds(20)).until(() -> runs.containsKey("P-3"));
        assertThat(runs)
                .isEqualTo(Map.of("P-1", 1, "P-2", 1, "P-3", 1, "unknown-1", 1, "poison-1", 3));
        assertThat(read(topic + "-parked", 1)).containsExactly("unknown-1");
        assertThat(read(topic + "-dlt", 1)).containsExactly("poison-1");

        // A consumer that starts again from the first record, as after a lost commit, runs nothing
        // again.
        container.stop();
        int before = runs.values().stream().mapToInt(Integer::intValue).sum();
        reset();
        startContainer();
        send("P-4");
        Awaitility.await().atMost(Duration.ofSeconds(20)).until(() -> runs.containsKey("P-4"));
        int after = runs.values().stream().mapToInt(Integer::intValue).sum();
        // Only the poison record is tried again: nothing happened in it.
        assertThat(after - before - 1).isEqualTo(3);
        assertThat(runs.get("P-1") + runs.get("P-2") + runs.get("P-3") + runs.get("unknown-1"))
                .isEqualTo(4);
    }

    @Test
    void aRecordInProgressElsewhereIsDeliveredUntilItEnds() throws Exception {
        var claimed = client.claim("payout.send", Map.of("payout_id", "P-1"), Terms.NONE);
        send("P-1");
        send("P-2");
        Awaitility.await().atMost(Duration.ofSeconds(10)).until(() -> gateway.claims() >= 5);
        assertThat(runs).isEmpty();
        ((Grant) claimed).succeed(null);
        Awaitility.await().atMost(Duration.ofSeconds(20)).until(() -> runs.containsKey("P-2"));
        assertThat(runs).isEqualTo(Map.of("P-2", 1));
        assertThat(read(topic + "-parked", 0)).isEmpty();
    }

    /** Puts the group back to the first record. */
    private void reset() throws Exception {
        try (var admin = Admin.create(Map.of("bootstrap.servers", BROKER.getBrokersAsString()))) {
            var first = new OffsetAndMetadata(0);
            var partition = new TopicPartition(topic, 0);
            admin.alterConsumerGroupOffsets(topic, Map.of(partition, first))
                    .all()
                    .get(20, TimeUnit.SECONDS);
        }
    }
}
