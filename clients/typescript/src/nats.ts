/** Consumes messages of NATS JetStream once, with `nats` 2 or `@nats-io/jetstream` 3. */

import type { Consumer } from "./consume.js";

/** A third of the default AckWait is 10 seconds. */
const WORKING_MS = 5000;
const FAILURES_MAX = 100_000;

/** Used part of a message. */
export interface JsMessage {
  data: Uint8Array;
  headers?: unknown;
  info: { streamSequence: number };
  ackAck(): Promise<boolean>;
  nak(millis?: number): void;
  working(): void;
}

export interface JetStreamLike {
  publish(subject: string, data: Uint8Array, options?: { headers?: never }): Promise<unknown>;
}

export interface StreamOptions<M extends JsMessage> {
  /** The result of `consumer.consume({ max_messages })`. The consumer has no `max_deliver`: redeliveries while another is at work are not failures. */
  messages: AsyncIterable<M>;
  jetstream: JetStreamLike;
  /** They belong to a stream, so that a message is stored there before it is acknowledged. */
  parkedSubject: string;
  deadSubject: string;
  /** Messages handled at the same time. Default 16. */
  concurrency?: number;
}

/** Handles messages until their iterator ends (`messages.stop()`), and finishes those that are being handled. */
export async function consume<M extends JsMessage>(consumer: Consumer<M>, options: StreamOptions<M>): Promise<void> {
  // In this process only: JetStream counts deliveries, and has no place for another count.
  const failures = new Map<number, number>();
  const running = new Set<Promise<void>>();
  let failure: { error: unknown } | null = null;
  for await (const message of options.messages) {
    const one: Promise<void> = handle(consumer, options, message, failures)
      .catch((error: unknown) => {
        failure ??= { error };
      })
      .finally(() => running.delete(one));
    running.add(one);
    if (running.size >= (options.concurrency ?? 16)) await Promise.race(running);
    if (failure) break;
  }
  await Promise.all(running);
  if (failure) throw (failure as { error: unknown }).error;
}

async function handle<M extends JsMessage>(
  consumer: Consumer<M>,
  { jetstream, parkedSubject, deadSubject }: StreamOptions<M>,
  message: M,
  failures: Map<number, number>,
): Promise<void> {
  const sequence = message.info.streamSequence;
  const timer = setInterval(() => message.working(), WORKING_MS);
  const earlier = failures.get(sequence) ?? 0;
  const { action, delayMs, failed } = await consumer.consumeOnce(message, earlier).finally(() => clearInterval(timer));
  if (action === "redeliver") {
    if (failures.size >= FAILURES_MAX) failures.clear();
    if (failed) failures.set(sequence, earlier + 1);
    message.nak(delayMs);
    return;
  }
  if (action !== "ack") {
    await jetstream.publish(action === "park" ? parkedSubject : deadSubject, message.data, headersOf(message));
  }
  failures.delete(sequence);
  await message.ackAck();
}

/** An expectation or a time to live of the first publisher is not one of the copy. */
function headersOf({ headers }: JsMessage): { headers?: never } {
  if (!headers) return {};
  const all = headers as { keys(): Iterable<string>; delete(name: string): void };
  for (const name of [...all.keys()]) if (name.startsWith("Nats-")) all.delete(name);
  return { headers: headers as never };
}
