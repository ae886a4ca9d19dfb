/** Consumes messages of RabbitMQ once, with amqplib: a message is acknowledged after its outcome was accepted and its copy confirmed. */

import type { Consumer } from "./consume.js";

/** Those of the retry queues. One queue per delay: RabbitMQ expires messages at the head of a queue only. */
const DELAYS_S = [1, 5, 30, 300];
const FAILURES_HEADER = "x-oncegate-failures";
/** A classic queue removes a message before the main queue has stored it: a kill of the broker loses it. */
const KEPT_UNTIL_BACK = { "x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish" };

export interface Message {
  content: Buffer;
  properties: {
    headers?: Record<string, unknown> | undefined;
    contentType?: unknown;
    contentEncoding?: unknown;
    type?: unknown;
    messageId?: unknown;
    correlationId?: unknown;
  };
}

/** Used part of amqplib's confirm channel. */
export interface ChannelLike<M extends Message> {
  assertQueue(name: string, options: { durable: boolean; arguments?: Record<string, unknown> }): Promise<unknown>;
  prefetch(count: number): Promise<unknown>;
  consume(queue: string, handle: (message: M | null) => void, options: { noAck: boolean }): Promise<{ consumerTag: string }>;
  cancel(consumerTag: string): Promise<unknown>;
  ack(message: M): void;
  on(event: "return", handle: (message: { fields: { routingKey: string } }) => void): unknown;
  sendToQueue(
    queue: string,
    content: Buffer,
    options: Record<string, unknown>,
    confirmed: (error: unknown, ok: unknown) => void,
  ): boolean;
}

export interface QueueOptions {
  queue: string;
  /** Messages handled at the same time. Default 16. */
  prefetch?: number;
  /** Receives the error that ended the consumer, such as a publish that was not confirmed. */
  onError: (error: unknown) => void;
}

/** Declares `<queue>.parked`, `<queue>.dead` and the retry queues, all durable. The queue itself is yours. */
export async function declare(channel: Pick<ChannelLike<never>, "assertQueue">, queue: string): Promise<void> {
  await channel.assertQueue(`${queue}.parked`, { durable: true });
  await channel.assertQueue(`${queue}.dead`, { durable: true });
  for (const delay of DELAYS_S) {
    // Back to the queue when the time is over.
    const back = {
      "x-message-ttl": delay * 1000,
      "x-dead-letter-exchange": "",
      "x-dead-letter-routing-key": queue,
      ...KEPT_UNTIL_BACK,
    };
    await channel.assertQueue(retryQueue(queue, delay * 1000), { durable: true, arguments: back });
  }
}

/** Handles messages on a separate confirm channel. Returns a function that stops: messages that are being handled are finished. */
export async function consume<M extends Message>(
  channel: ChannelLike<M>,
  consumer: Consumer<M>,
  { queue, prefetch = 16, onError }: QueueOptions,
): Promise<() => Promise<void>> {
  const running = new Set<Promise<void>>();
  // The broker confirms a copy without a queue too, after it has returned it.
  const missing = new Set<string>();
  channel.on("return", ({ fields }) => missing.add(fields.routingKey));
  await channel.prefetch(prefetch);
  const handle = (message: M | null) => {
    if (message === null) {
      onError(new Error(`the broker has cancelled the consumer of ${queue}`));
      return;
    }
    const one: Promise<void> = handleOne(channel, consumer, queue, message, missing)
      .catch(onError)
      .finally(() => running.delete(one));
    running.add(one);
  };
  const { consumerTag } = await channel.consume(queue, handle, { noAck: false });
  return async () => {
    await channel.cancel(consumerTag);
    await Promise.all(running);
  };
}

async function handleOne<M extends Message>(
  channel: ChannelLike<M>,
  consumer: Consumer<M>,
  queue: string,
  message: M,
  missing: ReadonlySet<string>,
): Promise<void> {
  const failures = Number(message.properties.headers?.[FAILURES_HEADER] ?? 0);
  const { action, delayMs, failed } = await consumer.consumeOnce(message, failures);
  const to = { ack: null, redeliver: retryQueue(queue, delayMs), park: `${queue}.parked`, dead_letter: `${queue}.dead` }[action];
  // The copy must be safe before the message is removed.
  if (to !== null) {
    await publish(channel, to, message, failures + (failed ? 1 : 0));
    if (missing.has(to)) throw new Error(`there is no queue ${to}; make it with declare, then consume again`);
  }
  channel.ack(message);
}

function publish<M extends Message>(channel: ChannelLike<M>, queue: string, message: M, failures: number): Promise<void> {
  const { contentType, contentEncoding, type, messageId, correlationId, headers } = message.properties;
  const options = {
    contentType,
    contentEncoding,
    type,
    messageId,
    correlationId,
    persistent: true,
    mandatory: true,
    headers: { ...headers, [FAILURES_HEADER]: failures },
  };
  return new Promise((resolve, reject) => {
    channel.sendToQueue(queue, message.content, options, (error) => (error ? reject(error) : resolve()));
  });
}

/** The one with the shortest delay that is long enough, or the longest. */
function retryQueue(queue: string, delayMs: number): string {
  const delay = DELAYS_S.find((seconds) => seconds * 1000 >= delayMs) ?? DELAYS_S.at(-1);
  return `${queue}.retry.${delay}s`;
}
