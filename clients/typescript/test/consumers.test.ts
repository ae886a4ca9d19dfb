/** The adapters of brokers: what each decision does to a message. */

import assert from "node:assert/strict";
import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { type AddressInfo, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";

import { Redis } from "ioredis";
import { test } from "vitest";

import * as amqplib from "../src/amqplib.js";
import { Consumer, NothingHappened } from "../src/index.js";
import * as kafkajs from "../src/kafkajs.js";
import * as nats from "../src/nats.js";
import * as redisStreams from "../src/redis-streams.js";
import { MemoryGateway } from "../src/testing.js";
import type { Any } from "./gateway.js";

/** Handles orders: `fails` never has an effect, `breaks` may have one. */
function orders<Message>(
  gateway: MemoryGateway,
  orderOf: (message: Message) => string,
  effects: string[],
  maxFailures = 2,
): Consumer<Message> {
  return new Consumer<Message>({
    client: gateway.client(),
    operation: "order.submit",
    contents: (message) => ({ order_id: orderOf(message) }),
    handle: (message) => {
      const order = orderOf(message);
      if (order === "fails") throw new NothingHappened();
      if (order === "breaks") throw new Error("who knows");
      effects.push(order);
    },
    redeliverAfterMs: 20,
    maxFailures,
  });
}

async function until(what: string, holds: () => boolean | Promise<boolean>): Promise<void> {
  for (let tries = 0; tries < 1000; tries++) {
    if (await holds()) return;
    await pause(10);
  }
  assert.fail(`never: ${what}`);
}

test("amqplib: copies are confirmed before a message is acknowledged", async () => {
  const gateway = new MemoryGateway();
  const log: string[] = [];
  let deliver: (message: Any) => void = () => {};
  let returned: (message: Any) => void = () => {};
  let missing = "";
  const errors: unknown[] = [];
  const channel = {
    assertQueue: async (name: string, options: Any) =>
      log.push(`declared ${name} ${options.arguments?.["x-message-ttl"] ?? ""}`.trim()),
    prefetch: async () => {},
    consume: async (_: string, handle: (message: Any) => void) => {
      deliver = handle;
      return { consumerTag: "t" };
    },
    cancel: async () => {},
    ack: (message: Any) => log.push(`ack ${message.content}`),
    on: (_: "return", handle: (message: Any) => void) => {
      returned = handle;
    },
    sendToQueue: (queue: string, content: Buffer, options: Any, confirmed: (error: Any, ok: Any) => void) => {
      setTimeout(() => {
        if (options.mandatory && queue === missing) returned({ fields: { routingKey: queue } });
        log.push(`confirmed ${queue} ${content} ${options.headers["x-oncegate-failures"]}`);
        confirmed(null, null);
      }, 10);
      return true;
    },
  };
  await amqplib.declare(channel, "orders");
  assert.deepEqual(log.splice(0), [
    ...["declared orders.parked", "declared orders.dead", "declared orders.retry.1s 1000", "declared orders.retry.5s 5000"],
    ...["declared orders.retry.30s 30000", "declared orders.retry.300s 300000"],
  ]);
  const effects: string[] = [];
  const consumer = orders<amqplib.Message>(gateway, ({ content }) => content.toString(), effects);
  const stop = await amqplib.consume(channel, consumer, { queue: "orders", onError: (error) => errors.push(error) });
  const message = (order: string, failures?: number) => {
    const headers = failures === undefined ? {} : { "x-oncegate-failures": failures };
    return { content: Buffer.from(order), properties: { headers } };
  };
  for (const [given, expected] of [
    [message("A-1"), ["ack A-1"]],
    [message("A-1"), ["ack A-1"]],
    [message("breaks"), ["confirmed orders.parked breaks 0", "ack breaks"]],
    [message("fails"), ["confirmed orders.retry.1s fails 1", "ack fails"]],
    [message("fails", 1), ["confirmed orders.dead fails 2", "ack fails"]],
  ] as const) {
    deliver(given);
    await until("acknowledged", () => log.some((line) => line.startsWith("ack")));
    assert.deepEqual(log.splice(0), expected);
  }
  assert.deepEqual(effects, ["A-1"]);
  assert.deepEqual(errors, []);
  // The broker confirms what it has returned, too.
  missing = "orders.parked";
  deliver(message("breaks"));
  await until("an error", () => errors.length > 0);
  assert.match(String(errors[0]), /there is no queue orders.parked/);
  assert.deepEqual(log, ["confirmed orders.parked breaks 0"]);
  await stop();
});

test("kafkajs: a message that must wait is waited for, and parked messages have acks of all replicas", async () => {
  const gateway = new MemoryGateway();
  const sent: Any[] = [];
  const producer = { send: async (record: Any) => sent.push(record) };
  const effects: string[] = [];
  const consumer = orders<kafkajs.KafkaMessage>(gateway, ({ value }) => String(value), effects);
  const handle = kafkajs.eachMessage(consumer, { producer, parkedTopic: "parked", deadTopic: "dead" });
  let beats = 0;
  const heartbeat = async () => {
    beats++;
  };
  for (const order of ["A-1", "A-1", "breaks", "fails"])
    await handle({ message: { key: null, value: Buffer.from(order) }, heartbeat });
  assert.deepEqual(effects, ["A-1"]);
  assert.deepEqual(
    sent.map(({ topic, acks, messages }) => [topic, acks, String(messages[0].value)]),
    [
      ["parked", -1, "breaks"],
      ["dead", -1, "fails"],
    ],
  );
  assert.equal(beats, 1, "one wait, after the first failure");
  const rebalance = new Error("rebalance");
  const waiting = handle({ message: { key: null, value: Buffer.from("fails") }, heartbeat: () => Promise.reject(rebalance) });
  await assert.rejects(waiting, rebalance, "left uncommitted");
});

test("nats: nak with delay, and a parked message is stored before it is acknowledged", async () => {
  const gateway = new MemoryGateway();
  const log: string[] = [];
  const effects: string[] = [];
  const consumer = orders<nats.JsMessage>(gateway, ({ data }) => Buffer.from(data).toString(), effects);
  const message = (order: string, streamSequence: number): nats.JsMessage => ({
    data: Buffer.from(order),
    info: { streamSequence },
    ackAck: async () => Boolean(log.push(`ack ${order}`)),
    nak: (ms) => log.push(`nak ${order} ${ms}`),
    working: () => {},
  });
  const publish = async (subject: string, data: Uint8Array, { headers }: { headers?: never } = {}) =>
    log.push(["stored", subject, Buffer.from(data), ...((headers as Map<string, string> | undefined)?.keys() ?? [])].join(" "));
  const jetstream = { publish };
  const headers = new Map(["Nats-Expected-Stream", "Nats-TTL", "Tenant"].map((name) => [name, "1"]));
  const broken = { ...message("breaks", 3), headers };
  async function* messages() {
    yield* [message("A-1", 1), message("A-1", 2), broken, message("fails", 4), message("fails", 4)];
  }
  await nats.consume(consumer, { messages: messages(), jetstream, parkedSubject: "parked", deadSubject: "dead", concurrency: 1 });
  assert.deepEqual(log, [
    "ack A-1",
    "ack A-1",
    "stored parked breaks Tenant",
    "ack breaks",
    "nak fails 20",
    "stored dead fails",
    "ack fails",
  ]);
  assert.deepEqual(effects, ["A-1"]);
});

const withoutRedis = spawnSync("redis-server", ["--version"]).status !== 0;
test.skipIf(withoutRedis)("redis-streams: each order once on a real server, also of a consumer that has ended", async () => {
  const gateway = new MemoryGateway();
  const folder = mkdtempSync(join(tmpdir(), "oncegate-"));
  const port = await new Promise<number>((resolve) => {
    const probe = createServer().listen(0, "127.0.0.1", () => {
      const { port } = probe.address() as AddressInfo;
      probe.close(() => resolve(port));
    });
  });
  const server: ChildProcess = spawn("redis-server", ["--port", String(port), "--save", "", "--dir", folder], {
    stdio: "ignore",
  });
  const redis = new Redis(port, "127.0.0.1", { retryStrategy: () => 50 });
  const reader = redis.duplicate();
  for (const each of [redis, reader]) each.on("error", () => {});
  try {
    await until("the server answers", () =>
      redis.ping().then(
        () => true,
        () => false,
      ),
    );
    await redis.call("XGROUP", "CREATE", "orders", "workers", "0", "MKSTREAM");
    for (let at = 0; at < 60; at++) await redis.call("XADD", "orders", "*", "order", `A-${at % 20}`);
    for (const order of ["breaks", "fails"]) await redis.call("XADD", "orders", "*", "order", order);
    // Delivered to a consumer that ends before it has done anything.
    await redis.call("XREADGROUP", "GROUP", "workers", "gone", "COUNT", 10, "STREAMS", "orders", ">");

    const effects: string[] = [];
    const consumer = orders<redisStreams.StreamMessage>(gateway, ({ fields }) => fields.order ?? "", effects);
    const stopping = new AbortController();
    const options = { reader, redis, stream: "orders", group: "workers", idleMs: 300, signal: stopping.signal };
    const consuming = redisStreams.consume(consumer, { ...options, name: "one" });
    await until("nothing is pending", async () => {
      const [pending] = (await redis.call("XPENDING", "orders", "workers")) as [number];
      const [info] = (await redis.call("XINFO", "GROUPS", "orders")) as Any[][];
      return pending === 0 && info?.[info.indexOf("lag") + 1] === 0;
    });
    stopping.abort();
    await consuming;
    assert.equal(effects.length, 20);
    assert.equal(new Set(effects).size, 20);
    assert.deepEqual([await redis.xlen("orders:parked"), await redis.xlen("orders:dead")], [1, 1]);
  } finally {
    redis.disconnect();
    reader.disconnect();
    server.kill("SIGKILL");
    rmSync(folder, { recursive: true });
  }
});
