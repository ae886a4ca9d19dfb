package io.oncegate.spring.rabbit;

import io.oncegate.client.Decision;
import io.oncegate.client.NothingHappened;
import io.oncegate.client.OnceConsumer;
import io.oncegate.spring.Listeners;
import java.time.Duration;
import java.util.Map;
import org.aopalliance.intercept.MethodInterceptor;
import org.aopalliance.intercept.MethodInvocation;
import org.springframework.amqp.core.Message;
import org.springframework.amqp.core.MessageBuilder;
import org.springframework.amqp.core.MessageDeliveryMode;
import org.springframework.amqp.rabbit.core.RabbitOperations;

/**
 * Handles each message once. Set it with {@code setAdviceChain} of the listener container factory.
 * The report comes before the acknowledgement, and what is not done is published, with the broker's
 * confirm, before the message is acknowledged: to {@code <queue>.retry}, {@code <queue>.parked} or
 * {@code <queue>.dead}, which {@link OnceRabbitQueues} declares.
 */
public final class OnceRabbitAdvice implements MethodInterceptor {
    /** Header that counts the runs that ended with NothingHappened. */
    static final String FAILURES = "oncegate-failures";

    private static final String REASON = "oncegate-reason";
    private static final int REASON_MAX = 500;
    private static final Duration CONFIRM_WITHIN = Duration.ofSeconds(10);

    private final OnceConsumer<Message> consumer;
    private final RabbitOperations template;

    /**
     * An advice that publishes with this template; its connection factory has {@code
     * publisher-confirm-type: simple}.
     */
    public OnceRabbitAdvice(OnceConsumer<Message> consumer, RabbitOperations template) {
        this.consumer = consumer;
        this.template = template;
        var connections = template.getConnectionFactory();
        if (connections != null && !connections.isSimplePublisherConfirms()) {
            throw new IllegalArgumentException(
                    "OnceRabbitAdvice needs confirms of the broker; set"
                            + " spring.rabbitmq.publisher-confirm-type=simple");
        }
    }

    @Override
    public Object invoke(MethodInvocation invocation) throws Throwable {
        Object[] arguments = invocation.getArguments();
        if (arguments.length < 2 || !(arguments[1] instanceof Message message)) {
            throw new IllegalStateException(
                    "OnceRabbitAdvice handles single messages; a batch listener calls OnceConsumer"
                            + " itself");
        }
        int failures =
                message.getMessageProperties().getHeader(FAILURES) instanceof Number count
                        ? count.intValue()
                        : 0;
        Decision decision = consumer.handle(message, failures, Listeners.work(invocation));
        String queue = message.getMessageProperties().getConsumerQueue();
        switch (decision.kind()) {
            case ACK -> {}
            case REDELIVER -> {
                int more = decision.error() instanceof NothingHappened ? 1 : 0;
                String expiration = String.valueOf(Math.max(1, decision.delay().toMillis()));
                var headers = Map.<String, Object>of(FAILURES, failures + more);
                publish(queue + ".retry", copy(message, decision, headers, expiration));
            }
            case PARK -> publish(queue + ".parked", copy(message, decision, Map.of(), null));
            case DEAD_LETTER -> publish(queue + ".dead", copy(message, decision, Map.of(), null));
        }
        return null;
    }

    private static Message copy(
            Message message, Decision decision, Map<String, Object> headers, String expiration) {
        String reason = String.valueOf(decision.reason());
        Message copy = MessageBuilder.fromClonedMessage(message).build();
        var properties = copy.getMessageProperties();
        properties.setHeader(REASON, reason.substring(0, Math.min(REASON_MAX, reason.length())));
        headers.forEach(properties::setHeader);
        properties.setExpiration(expiration);
        // Spring leaves it out of a message that was received, and the copy would end with the
        // broker.
        properties.setDeliveryMode(MessageDeliveryMode.PERSISTENT);
        return copy;
    }

    /** An exception leaves the message unacknowledged: it is delivered again. */
    private void publish(String queue, Message message) {
        template.invoke(
                operations -> {
                    // The broker confirms a message without a queue too.
                    operations.execute(channel -> channel.queueDeclarePassive(queue));
                    operations.send("", queue, message);
                    operations.waitForConfirmsOrDie(CONFIRM_WITHIN.toMillis());
                    return null;
                });
    }
}
