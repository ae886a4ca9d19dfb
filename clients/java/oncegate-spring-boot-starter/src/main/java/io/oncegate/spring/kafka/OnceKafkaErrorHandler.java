package io.oncegate.spring.kafka;

import io.oncegate.client.Decision;
import io.oncegate.spring.NotDone;
import java.time.Duration;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.TopicPartition;
import org.springframework.kafka.core.KafkaOperations;
import org.springframework.kafka.listener.DeadLetterPublishingRecoverer;
import org.springframework.kafka.listener.DefaultErrorHandler;
import org.springframework.util.backoff.BackOff;
import org.springframework.util.backoff.FixedBackOff;

/**
 * Carries out decisions: redelivers without end, or publishes to {@code <topic>-parked} or {@code
 * <topic>-dlt} before the offset is committed. The producer must have {@code acks=all}, Kafka's
 * default. While it waits, the partition is not read on, and the order of its records is kept.
 */
public final class OnceKafkaErrorHandler extends DefaultErrorHandler {
    /**
     * A longer pause would reach {@code max.poll.interval.ms}, and the group would take the
     * partition away.
     */
    private static final Duration PAUSE_MAX = Duration.ofSeconds(30);

    /** An error handler that publishes with this template. */
    public OnceKafkaErrorHandler(KafkaOperations<?, ?> template) {
        super(
                new DeadLetterPublishingRecoverer(template, OnceKafkaErrorHandler::destination),
                new FixedBackOff(0, 0));
        setBackOffFunction((record, thrown) -> backOff(thrown));
        // The partition is committed up to the record that was published.
        setCommitRecovered(true);
    }

    static TopicPartition destination(ConsumerRecord<?, ?> record, Exception thrown) {
        Decision decision = NotDone.in(thrown);
        boolean dead = decision != null && decision.kind() == Decision.Kind.DEAD_LETTER;
        // Any partition: the topic may have fewer.
        return new TopicPartition(record.topic() + (dead ? "-dlt" : "-parked"), -1);
    }

    static BackOff backOff(Exception thrown) {
        Decision decision = NotDone.in(thrown);
        if (decision == null || decision.kind() != Decision.Kind.REDELIVER) {
            return new FixedBackOff(0, 0);
        }
        long millis = Math.min(decision.delay().toMillis(), PAUSE_MAX.toMillis());
        return new FixedBackOff(millis, FixedBackOff.UNLIMITED_ATTEMPTS);
    }
}
