package io.oncegate.spring.kafka;

import io.oncegate.client.Decision;
import io.oncegate.client.NothingHappened;
import io.oncegate.client.OnceConsumer;
import io.oncegate.spring.Listeners;
import io.oncegate.spring.NotDone;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import org.aopalliance.intercept.MethodInterceptor;
import org.aopalliance.intercept.MethodInvocation;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.springframework.kafka.support.Acknowledgment;

/**
 * Handles each record once. Set it with {@code ContainerProperties.setAdviceChain}, together with
 * {@link OnceKafkaErrorHandler}: the report comes before the commit of the offset.
 */
public final class OnceKafkaAdvice implements MethodInterceptor {
    private static final int COUNTED_MAX = 10_000;

    private final OnceConsumer<ConsumerRecord<?, ?>> consumer;

    /** Runs of each record that ended with NothingHappened, for the last records only. */
    private final Map<String, Integer> failures =
            Collections.synchronizedMap(
                    new LinkedHashMap<>() {
                        @Override
                        protected boolean removeEldestEntry(Map.Entry<String, Integer> eldest) {
                            return size() > COUNTED_MAX;
                        }
                    });

    /** An advice that handles records with this consumer. */
    public OnceKafkaAdvice(OnceConsumer<ConsumerRecord<?, ?>> consumer) {
        this.consumer = consumer;
    }

    @Override
    public Object invoke(MethodInvocation invocation) throws Throwable {
        Object[] arguments = invocation.getArguments();
        if (arguments.length == 0 || !invocation.getMethod().getName().equals("onMessage")) {
            return invocation.proceed();
        }
        if (!(arguments[0] instanceof ConsumerRecord<?, ?> record)) {
            throw new IllegalStateException(
                    "OnceKafkaAdvice handles single records; a batch listener calls OnceConsumer"
                            + " itself");
        }
        String place = record.topic() + "-" + record.partition() + "@" + record.offset();
        boolean[] ran = {false};
        var work = Listeners.work(invocation);
        Decision decision =
                consumer.handle(
                        record,
                        failures.getOrDefault(place, 0),
                        () -> {
                            ran[0] = true;
                            return work.call();
                        });
        if (decision.error() instanceof NothingHappened) {
            failures.merge(place, 1, Integer::sum);
        }
        if (decision.kind() != Decision.Kind.ACK) {
            throw new NotDone(decision);
        }
        failures.remove(place);
        if (!ran[0]) {
            acknowledge(arguments);
        }
        return null;
    }

    /** A listener that acknowledges by hand did not run: its record was done before. */
    private static void acknowledge(Object[] arguments) {
        for (Object argument : arguments) {
            if (argument instanceof Acknowledgment acknowledgment) {
                acknowledgment.acknowledge();
            }
        }
    }
}
