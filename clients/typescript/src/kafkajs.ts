/** Consumes messages of Kafka once, with kafkajs: an offset is committed after its message's outcome was accepted. */

import { setTimeout as sleep } from "node:timers/promises";

import type { Consumer } from "./consume.js";

/** Less than the session timeout of a group by default, 30 seconds. */
const HEARTBEAT_MS = 3000;

export interface KafkaMessage {
  key: Buffer | null;
  value: Buffer | null;
  headers?: Record<string, unknown> | undefined;
}

/** Used part of the argument of `eachMessage`. */
export interface Payload<M extends KafkaMessage> {
  message: M;
  heartbeat: () => Promise<void>;
}

/** Used part of a kafkajs producer. */
export interface ProducerLike {
  send(record: {
    topic: string;
    acks: number;
    messages: { key: Buffer | null; value: Buffer | null; headers?: never }[];
  }): Promise<unknown>;
}

export interface TopicOptions {
  producer: ProducerLike;
  /** They get messages that cannot be handled, with acks of all replicas, before their offsets are committed. */
  parkedTopic: string;
  deadTopic: string;
}

/**
 * The `eachMessage` of `consumer.run`. A message that must wait is waited for here, with heartbeats, so offsets are committed in order; set
 * `partitionsConsumedConcurrently` so that the other partitions continue.
 */
export function eachMessage<M extends KafkaMessage>(
  consumer: Consumer<M>,
  { producer, parkedTopic, deadTopic }: TopicOptions,
): (payload: Payload<M>) => Promise<void> {
  return async ({ message, heartbeat }) => {
    for (let failures = 0; ; ) {
      const { action, delayMs, failed } = await beating(consumer.consumeOnce(message, failures), heartbeat);
      if (action === "ack") return;
      if (action !== "redeliver") {
        const { key, value, headers } = message;
        const copy = { key, value, ...(headers && { headers: headers as never }) };
        await producer.send({ topic: action === "park" ? parkedTopic : deadTopic, acks: -1, messages: [copy] });
        return;
      }
      if (failed) failures++;
      // In a rebalance this throws, and the message stays uncommitted.
      for (let left = delayMs; left > 0; left -= HEARTBEAT_MS) {
        await sleep(Math.min(left, HEARTBEAT_MS));
        await heartbeat();
      }
    }
  };
}

/** Keeps the membership in the group while the work runs. Work that was started is finished, also in a rebalance. */
async function beating<Result>(work: Promise<Result>, heartbeat: () => Promise<void>): Promise<Result> {
  const timer = setInterval(() => void heartbeat().catch(() => undefined), HEARTBEAT_MS);
  try {
    return await work;
  } finally {
    clearInterval(timer);
  }
}
