/** Consumers of messages: each end of `once` becomes a decision, which an adapter for the broker carries out. */

import type { Client } from "./client.js";
import type { AnyContents } from "./contents.js";
import { NotCanonical, NothingHappened, NotSettled, OutcomeRefused, Rejected } from "./errors.js";
import type { Grant } from "./grant.js";
import type { OnceTerms } from "./terms.js";
import type { Done, Duplicate, Mismatch } from "./values.js";

/**
 * `ack`: done, here or before. `redeliver`: again later. `park`: its outcome is unknown, so keep it in a separate queue, for a program or a
 * person who looks up the effect and takes over. `dead_letter`: a mistake that a repeat cannot correct.
 */
export type Action = "ack" | "redeliver" | "park" | "dead_letter";

export interface Decision {
  action: Action;
  /** The least time before a redelivery. */
  delayMs: number;
  result?: Done<unknown> | Duplicate | Mismatch;
  /** The error that led to the decision: log it. */
  error?: unknown;
  /** The run ended with `NothingHappened`: it counts towards `maxFailures`. */
  failed: boolean;
}

export interface ConsumerOptions<Message> {
  client: Client;
  operation: string;
  /** Identity of a message: a payout number, never the ID of the delivery. */
  contents: (message: Message) => AnyContents;
  /** Does the work. Throws `NothingHappened` if it had no effect. */
  handle: (message: Message, grant: Grant) => Promise<unknown> | unknown;
  terms?: OnceTerms;
  /** The delay where the gateway names none. Default 5000. */
  redeliverAfterMs?: number;
  /** Runs that may end with `NothingHappened` before a message is poison. Default 3. */
  maxFailures?: number;
  /** Stores the report of an outcome that no gateway accepted, for `Client.settle`. Without it the message is redelivered. */
  keepReport?: (report: string) => Promise<void> | void;
  /** Sees each decision, for logs and metrics. */
  onDecision?: (message: Message, decision: Decision) => void;
}

/** Handles messages of one operation. */
export class Consumer<Message> {
  constructor(private readonly options: ConsumerOptions<Message>) {}

  /**
   * Handles one message, and returns what to do with it. `failures` is the number of earlier runs of this message that ended with
   * `NothingHappened`. Acknowledge nothing before it has returned.
   */
  async consumeOnce(message: Message, failures = 0): Promise<Decision> {
    const decision = await this.decisionOf(message, failures);
    this.options.onDecision?.(message, decision);
    return decision;
  }

  private async decisionOf(message: Message, failures: number): Promise<Decision> {
    const { client, operation, handle, terms } = this.options;
    let contents: AnyContents;
    try {
      contents = this.options.contents(message);
    } catch (error) {
      return { action: "dead_letter", delayMs: 0, error, failed: false };
    }
    // An error of the work may be one of this package: it says nothing about this claim.
    let workError: { error: unknown } | null = null;
    try {
      const work = async (grant: Grant) => {
        try {
          return await handle(message, grant);
        } catch (error) {
          workError = { error };
          throw error;
        }
      };
      return this.ofResult(await client.once(operation, contents as never, work, terms));
    } catch (error) {
      return workError ? this.ofWork(error, failures) : this.ofError(error);
    }
  }

  /** For the error of the work. */
  ofWork(error: unknown, failures: number): Decision {
    const failed = error instanceof NothingHappened;
    if (!failed) return { action: "park", delayMs: 0, error, failed };
    if (failures + 1 >= (this.options.maxFailures ?? 3)) return { action: "dead_letter", delayMs: 0, error, failed };
    return { action: "redeliver", delayMs: this.redeliverAfterMs, error, failed };
  }

  /** For an error of the client. */
  async ofError(error: unknown): Promise<Decision> {
    const decide = (action: Action, delayMs = 0): Decision => ({ action, delayMs, error, failed: false });
    if (error instanceof NotSettled && this.options.keepReport) {
      try {
        await this.options.keepReport(error.report);
        return decide("ack");
      } catch {
        return decide("redeliver", this.redeliverAfterMs);
      }
    }
    // The work is done, and only a person can help. The error is in the log.
    if (error instanceof OutcomeRefused) return decide("ack");
    if (error instanceof NotCanonical) return decide("dead_letter");
    if (error instanceof Rejected) {
      if (error.status === 429) return decide("redeliver", error.retryAfterMs ?? this.redeliverAfterMs);
      // These say nothing about the message.
      if (![401, 403, 404, 405].includes(error.status)) return decide("dead_letter");
    }
    return decide("redeliver", this.redeliverAfterMs);
  }

  ofResult(result: Done<unknown> | Duplicate | Mismatch): Decision {
    const decide = (action: Action, delayMs = 0): Decision => ({ action, delayMs, result, failed: false });
    if (result.kind === "mismatch") return decide("dead_letter");
    if (result.kind === "done" || result.state === "succeeded") return decide("ack");
    return result.state === "in_progress" ? decide("redeliver", result.retryAfterMs) : decide("park");
  }

  private get redeliverAfterMs(): number {
    return this.options.redeliverAfterMs ?? 5000;
  }
}
