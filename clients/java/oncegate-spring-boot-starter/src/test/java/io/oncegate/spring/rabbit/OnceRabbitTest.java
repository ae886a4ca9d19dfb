package io.oncegate.spring.rabbit;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.mockito.ArgumentMatchers.any;
import static org.mockito.ArgumentMatchers.anyLong;
import static org.mockito.ArgumentMatchers.eq;
import static org.mockito.Mockito.doThrow;
import static org.mockito.Mockito.inOrder;
import static org.mockito.Mockito.mock;
import static org.mockito.Mockito.never;
import static org.mockito.Mockito.verify;
import static org.mockito.Mockito.when;

import io.oncegate.client.NothingHappened;
import io.oncegate.client.OnceConsumer;
import io.oncegate.client.OncegateClient;
import io.oncegate.client.Options;
import io.oncegate.spring.ClaimTable;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.aopalliance.intercept.MethodInvocation;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.mockito.ArgumentCaptor;
import org.springframework.amqp.AmqpException;
import org.springframework.amqp.core.Message;
import org.springframework.amqp.core.MessageBuilder;
import org.springframework.amqp.core.MessageDeliveryMode;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.rabbit.connection.ConnectionFactory;
import org.springframework.amqp.rabbit.core.RabbitOperations;

class OnceRabbitTest {
    private final AtomicInteger runs = new AtomicInteger();
    private final RabbitOperations template = mock();
    private RuntimeException thrown;
    private ClaimTable gateway;
    private OncegateClient client;
    private OnceRabbitAdvice advice;

    @BeforeEach
    void start() throws Exception {
        gateway = new ClaimTable();
        client = new OncegateClient(new Options(gateway.url()));
        when(template.invoke(any()))
                .thenAnswer(
                        call ->
                                call.<RabbitOperations.OperationsCallback<?>>getArgument(0)
                                        .doInRabbit(template));
        advice =
                new OnceRabbitAdvice(
                        new OnceConsumer<>(client, "payout.send", OnceRabbitTest::contents),
                        template);
    }

    @AfterEach
    void stop() {
        client.close();
        gateway.close();
    }

    private static Object contents(Message message) {
        return Map.of("payout_id", new String(message.getBody(), StandardCharsets.UTF_8));
    }

    private static Message message(String payout) {
        Message message = MessageBuilder.withBody(payout.getBytes(StandardCharsets.UTF_8)).build();
        message.getMessageProperties().setConsumerQueue("payouts");
        // As Spring receives it.
        message.getMessageProperties().setDeliveryMode(null);
        return message;
    }

    private void deliver(Message message) throws Throwable {
        MethodInvocation invocation = mock();
        when(invocation.getArguments()).thenReturn(new Object[] {null, message});
        when(invocation.proceed())
                .thenAnswer(
                        call -> {
                            runs.incrementAndGet();
                            if (thrown != null) {
                                throw thrown;
                            }
                            return null;
                        });
        advice.invoke(invocation);
    }

    private Message published(String queue) {
        var message = ArgumentCaptor.forClass(Message.class);
        var order = inOrder(template);
        order.verify(template).execute(any());
        order.verify(template).send(eq(""), eq(queue), message.capture());
        order.verify(template).waitForConfirmsOrDie(anyLong());
        assertThat(message.getValue().getMessageProperties().getDeliveryMode())
                .isEqualTo(MessageDeliveryMode.PERSISTENT);
        return message.getValue();
    }

    @Test
    void aRepeatIsAcknowledgedAndDoesNotRun() throws Throwable {
        deliver(message("P-1"));
        deliver(message("P-1"));
        assertThat(runs).hasValue(1);
        verify(template, never()).invoke(any());
    }

    @Test
    void anUnknownOutcomeIsParkedWithAConfirm() throws Throwable {
        thrown = new IllegalStateException("a timeout of the bank");
        deliver(message("P-1"));
        assertThat(
                        published("payouts.parked")
                                .getMessageProperties()
                                .<String>getHeader("oncegate-reason"))
                .contains("timeout");
    }

    @Test
    void nothingHappenedIsRetriedAfterATimeAndCounted() throws Throwable {
        thrown = new NothingHappened("the bank was not reached");
        deliver(message("P-1"));
        Message retry = published("payouts.retry");
        assertThat(retry.getMessageProperties().getExpiration()).isEqualTo("5000");
        assertThat(retry.getMessageProperties().<Integer>getHeader(OnceRabbitAdvice.FAILURES))
                .isEqualTo(1);
    }

    @Test
    void aPoisonMessageIsADeadLetter() throws Throwable {
        thrown = new NothingHappened("the bank was not reached");
        Message last = message("P-1");
        last.getMessageProperties().setHeader(OnceRabbitAdvice.FAILURES, 2);
        deliver(last);
        published("payouts.dead");
    }

    @Test
    void withoutTheConfirmOfTheBrokerTheMessageIsNotAcknowledged() {
        thrown = new IllegalStateException("a timeout of the bank");
        doThrow(new AmqpException("not confirmed")).when(template).waitForConfirmsOrDie(anyLong());
        assertThatThrownBy(() -> deliver(message("P-1"))).isInstanceOf(AmqpException.class);
    }

    @Test
    void withoutItsQueueTheCopyIsNotSentAndTheMessageNotAcknowledged() {
        thrown = new IllegalStateException("a timeout of the bank");
        when(template.execute(any())).thenThrow(new AmqpException("no queue"));
        assertThatThrownBy(() -> deliver(message("P-1"))).isInstanceOf(AmqpException.class);
        verify(template, never()).send(any(), any(), any(Message.class));
    }

    @Test
    void theRetryQueueKeepsAMessageUntilItIsBack() {
        var arguments =
                OnceRabbitQueues.of("payouts")
                        .getDeclarablesByType(Queue.class)
                        .get(0)
                        .getArguments();
        assertThat(arguments)
                .containsEntry("x-queue-type", "quorum")
                .containsEntry("x-dead-letter-strategy", "at-least-once")
                .containsEntry("x-overflow", "reject-publish")
                .containsEntry("x-dead-letter-routing-key", "payouts");
    }

    @Test
    void aFactoryWithoutConfirmsIsRefused() {
        ConnectionFactory connections = mock();
        RabbitOperations other = mock();
        when(other.getConnectionFactory()).thenReturn(connections);
        assertThatThrownBy(
                        () ->
                                new OnceRabbitAdvice(
                                        new OnceConsumer<>(client, "a", OnceRabbitTest::contents),
                                        other))
                .hasMessageContaining("publisher-confirm-type=simple");
    }
}
