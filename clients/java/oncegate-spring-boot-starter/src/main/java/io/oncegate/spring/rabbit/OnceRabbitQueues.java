package io.oncegate.spring.rabbit;

import org.springframework.amqp.core.Declarables;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.core.QueueBuilder;

/**
 * The queues next to a queue of work: retried messages return after their time, parked and dead
 * ones stay.
 */
public final class OnceRabbitQueues {
    private OnceRabbitQueues() {}

    /**
     * Returns the durable queues {@code .retry}, {@code .parked} and {@code .dead} of a queue, to
     * be declared as a bean.
     */
    public static Declarables of(String queue) {
        // A classic queue lets go of a message before the queue has stored it: a kill of the broker
        // loses it.
        Queue retry =
                QueueBuilder.durable(queue + ".retry")
                        .quorum()
                        .withArgument("x-dead-letter-strategy", "at-least-once")
                        .overflow(QueueBuilder.Overflow.rejectPublish)
                        .deadLetterExchange("")
                        .deadLetterRoutingKey(queue)
                        .build();
        Queue parked = QueueBuilder.durable(queue + ".parked").build();
        Queue dead = QueueBuilder.durable(queue + ".dead").build();
        return new Declarables(retry, parked, dead);
    }
}
