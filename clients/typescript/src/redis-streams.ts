/** Consumes messages of a Redis stream once, with ioredis. */

import { setTimeout as sleep } from "node:timers/promises";

import type { Consumer } from "./consume.js";

const FAILURES_MAX = 100_000;

/** Used part of ioredis. Blocking reads need a separate connection. */
export interface RedisLike {
  call(command: string, ...args: (string | number)[]): Promise<unknown>;
}

export interface StreamMessage {
  id: string;
  fields: Record<string, string>;
}

export interface RedisOptions {
  /** For blocking reads only. */
  reader: RedisLike;
  redis: RedisLike;
  stream: string;
  group: string;
  /** The name of this consumer in the group, different in each process. */
  name: string;
  /** They get messages that cannot be handled. Default `<stream>:parked` and `<stream>:dead`. In a cluster they need the hash tag of the stream. */
  parkedStream?: string;
  deadStream?: string;
  /** Messages handled at the same time. Default 16. */
  concurrency?: number;
  /** A message of a consumer that was idle for this time is taken over. Default 30000. */
  idleMs?: number;
  signal: AbortSignal;
}

/** Handles messages until the signal is aborted, and finishes those that are being handled. */
export async function consume(consumer: Consumer<StreamMessage>, options: RedisOptions): Promise<void> {
  const { redis, reader, stream, group, name, concurrency = 16, idleMs = 30_000, signal } = options;
  const running = new Map<string, Promise<void>>();
  // In this process only: the stream counts deliveries, and a redelivery is no failure.
  const failures = new Map<string, number>();
  let failure: { error: unknown } | null = null;
  const begin = (message: StreamMessage) => {
    if (running.has(message.id)) return;
    const one = handle(consumer, options, message, failures)
      .catch((error: unknown) => {
        failure ??= { error };
      })
      .finally(() => running.delete(message.id));
    running.set(message.id, one);
  };
  let claimed = 0;
  while (!signal.aborted && !failure) {
    const free = concurrency - running.size;
    if (free <= 0) {
      await Promise.race(running.values());
      continue;
    }
    if (performance.now() - claimed > idleMs / 3 || claimed === 0) {
      claimed = performance.now();
      const [, entries] = (await redis.call("XAUTOCLAIM", stream, group, name, idleMs, "0-0", "COUNT", free)) as [
        string,
        Entry[],
      ];
      entries.map(messageOf).forEach(begin);
      continue;
    }
    const read = await reader.call("XREADGROUP", "GROUP", group, name, "COUNT", free, "BLOCK", 1000, "STREAMS", stream, ">");
    const [[, entries]] = (read ?? [[stream, []]]) as [[string, Entry[]]];
    entries.map(messageOf).forEach(begin);
  }
  await Promise.all(running.values());
  if (failure) throw (failure as { error: unknown }).error;
}

type Entry = [string, string[] | null];

function messageOf([id, list]: Entry): StreamMessage {
  const fields: Record<string, string> = {};
  for (let at = 0; at + 1 < (list?.length ?? 0); at += 2) fields[list?.[at] as string] = list?.[at + 1] as string;
  return { id, fields };
}

async function handle(
  consumer: Consumer<StreamMessage>,
  options: RedisOptions,
  message: StreamMessage,
  failures: Map<string, number>,
) {
  const { redis, stream, group, name, idleMs = 30_000, signal } = options;
  const { id } = message;
  // A message that is being handled is not idle.
  const keep = setInterval(
    () => void redis.call("XCLAIM", stream, group, name, 0, id, "JUSTID").catch(() => undefined),
    idleMs / 3,
  );
  try {
    for (;;) {
      const earlier = failures.get(id) ?? 0;
      const { action, delayMs, failed } = await consumer.consumeOnce(message, earlier);
      if (action === "redeliver") {
        if (failures.size >= FAILURES_MAX) failures.clear();
        if (failed) failures.set(id, earlier + 1);
        // It stays pending, and another consumer takes it over if this one ends.
        await sleep(delayMs, undefined, { signal }).catch(() => undefined);
        if (signal.aborted) return;
        continue;
      }
      failures.delete(id);
      const { parkedStream = `${stream}:parked`, deadStream = `${stream}:dead` } = options;
      if (action !== "ack") {
        const pairs = Object.entries(message.fields).flat();
        await redis.call("XADD", action === "park" ? parkedStream : deadStream, "*", ...(pairs.length > 0 ? pairs : ["id", id]));
      }
      await redis.call("XACK", stream, group, id);
      return;
    }
  } finally {
    clearInterval(keep);
  }
}
