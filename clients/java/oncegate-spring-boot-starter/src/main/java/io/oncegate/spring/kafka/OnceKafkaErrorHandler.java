package io.oncegate.spring.kafka;

import io.oncegate.client.Decision;
import io.oncegate.spring.NotDone;
import java.time.Duration;
import java.util.List;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.TopicPartition;
import org.springframework.kafka.core.KafkaOperations;
import org.springframework.kafka.listener.CommonErrorHandler;
import org.springframework.kafka.listener.DeadLetterPublishingRecoverer;
import org.springframework.kafka.listener.DefaultBackOffHandler;
import org.springframework.kafka.listener.DefaultErrorHandler;
import org.springframework.kafka.listener.MessageListenerContainer;
import org.springframework.util.backoff.FixedBackOff;

/**
 * Carries out decisions: redelivers without end, or publishes to {@code <topic>-parked} or {@code
 * <topic>-dlt} before the offset is committed. The producer must have {@code acks=all}, Kafka's
 * default. While it waits, the partition is not read on, and the order of its records is kept.
 */
public final class OnceKafkaErrorHandler implements CommonErrorHandler {
    /**
     * A longer pause would reach {@code max.poll.interval.ms}, and the group would take the
     * partition away.
     */
    private static final Duration PAUSE_MAX = Duration.ofSeconds(30);

    /**
     * Two handlers, since Spring Kafka asks for the back-off of a record at its first failure only.
     */
    private final DefaultErrorHandler again;

    private final DefaultErrorHandler last;

    /** An error handler that publishes with this template. */
    public OnceKafkaErrorHandler(KafkaOperations<?, ?> template) {
        again =
                new DefaultErrorHandler(
                        null, new FixedBackOff(0, FixedBackOff.UNLIMITED_ATTEMPTS), new Pauses());
        var recoverer =
                new DeadLetterPublishingRecoverer(template, OnceKafkaErrorHandler::destination);
        // A record that could not be published stays uncommitted, and is delivered again.
        recoverer.setFailIfSendResultIsError(true);
        last = new DefaultErrorHandler(recoverer, new FixedBackOff(0, 0));
        last.setCommitRecovered(true);
    }

    static TopicPartition destination(ConsumerRecord<?, ?> record, Exception thrown) {
        Decision decision = NotDone.in(thrown);
        boolean dead = decision != null && decision.kind() == Decision.Kind.DEAD_LETTER;
        // Any partition: the topic may have fewer.
        return new TopicPartition(record.topic() + (dead ? "-dlt" : "-parked"), -1);
    }

    static boolean isRedelivered(Exception thrown) {
        Decision decision = NotDone.in(thrown);
        return decision != null && decision.kind() == Decision.Kind.REDELIVER;
    }

    static long pause(Exception thrown) {
        return Math.min(NotDone.in(thrown).delay().toMillis(), PAUSE_MAX.toMillis());
    }

    @Override
    public boolean seeksAfterHandling() {
        return true;
    }

    @Override
    public void handleRemaining(
            Exception thrown,
            List<ConsumerRecord<?, ?>> records,
            Consumer<?, ?> consumer,
            MessageListenerContainer container) {
        (isRedelivered(thrown) ? again : last)
                .handleRemaining(thrown, records, consumer, container);
    }

    @Override
    public void handleOtherException(
            Exception thrown,
            Consumer<?, ?> consumer,
            MessageListenerContainer container,
            boolean batch) {
        last.handleOtherException(thrown, consumer, container, batch);
    }

    @Override
    public void clearThreadState() {
        again.clearThreadState();
        last.clearThreadState();
    }

    /** Waits as long as the decision says, each time. */
    private static final class Pauses extends DefaultBackOffHandler {
        @Override
        public void onNextBackOff(MessageListenerContainer container, Exception thrown, long next) {
            super.onNextBackOff(container, thrown, pause(thrown));
        }
    }
}
