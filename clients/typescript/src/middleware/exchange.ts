/** One run of a handler under a claim: the meaning of its response, the stored part, and the report. */

import { AsyncLocalStorage } from "node:async_hooks";

import type { Grant } from "../grant.js";
import { entered } from "../telemetry.js";
import type { Rules } from "./options.js";
import { type Outcome, saidOutcome } from "./outcome.js";
import { EMPTY, type FieldLines, stored } from "./stored.js";

export const OUTCOME_FIELD = "oncegate-outcome";
/** Fields and trailers of a handler that are not sent on. */
export const UNSENT_FIELDS = [OUTCOME_FIELD, "idempotent-replayed"];
export const DEGRADED_FIELD = "oncegate-degraded";

/** The grant that a handler runs under. */
export class RequestGrant {
  private readonly gone = new AbortController();
  /** @internal */
  marked: Outcome | null = null;

  /** Made by the middleware. */
  constructor(private readonly grant: Grant) {}

  get globalId(): string {
    return this.grant.globalId;
  }

  /** Rises with every attempt at the operation, for the resource to compare. Null where the store has none. */
  get fence(): number | null {
    return this.grant.fence;
  }

  /** The outage policy that granted the claim; `caller` if no gateway answered, `disabled` if the client is switched off. */
  get degraded(): string | null {
    return this.grant.degraded;
  }

  /** The claim is still live by this clock: to check before an effect that cannot be undone. Only the fence closes the gap. */
  get isLive(): boolean {
    return this.grant.isLive;
  }

  /** Aborted when the claim was lost while the handler runs. */
  get lostSignal(): AbortSignal {
    return this.grant.lostSignal;
  }

  /** Aborted when the caller disconnects. The handler continues: a repeat gets its response. */
  get callerGone(): AbortSignal {
    return this.gone.signal;
  }

  /** Sets the outcome, for any status of the response. `failure`: nothing happened, so the key is free again. */
  mark(outcome: Outcome): void {
    if (outcome !== "success" && outcome !== "failure" && outcome !== "unknown")
      throw new TypeError('an outcome is "success", "failure" or "unknown"');
    this.marked = outcome;
  }

  /** @internal */
  callerLeft(): void {
    this.gone.abort(new Error("the caller has disconnected"));
  }
}

/** State of a claim after its outcome. */
const STATES = { success: "succeeded", failure: "released", unknown: "unknown" } as const;

const running = new AsyncLocalStorage<RequestGrant>();

/** The grant of the request that is handled now; undefined outside of the middleware. */
export function current(): RequestGrant | undefined {
  return running.getStore();
}

/** Calls what handles a request under its claim, in a span that ends with the report. */
export function runUnder(exchange: Exchange, handle: () => void): void {
  const { operation, degraded } = exchange;
  const end = entered("oncegate run", { operation, degraded, replayed: false }, () => running.run(exchange.request, handle));
  void exchange.reported.then((outcome) => end({ state: STATES[outcome] }));
}

export class Exchange {
  readonly request: RequestGrant;
  private status = 0;
  private fields: FieldLines = [];
  private lastFields: FieldLines = [];
  private said: Outcome | null | undefined;
  private isHarmless = false;
  private pieces: Buffer[] = [];
  private bytes = 0;
  private isLong = false;
  private isBroken = false;
  private reporting: Promise<void> | null = null;
  /** Resolves with the outcome when it has been reported, or could not be reported in time. */
  readonly reported: Promise<Outcome>;
  private settled: (outcome: Outcome) => void = () => {};
  private readonly deadline: NodeJS.Timeout;

  constructor(
    private readonly rules: Rules,
    private readonly grant: Grant,
    /** Called when it has been reported, or need not be waited for. */
    private readonly ended: () => void,
  ) {
    this.request = new RequestGrant(grant);
    this.reported = new Promise((resolve) => {
      this.settled = resolve;
    });
    this.deadline = setTimeout(() => this.overrun(), rules.exchangeMaxMs).unref();
  }

  get degraded(): string | null {
    return this.grant.degraded;
  }

  get operation(): string {
    return this.rules.operation;
  }

  /** The response is not complete yet. */
  get isOpen(): boolean {
    return this.reporting === null;
  }

  /** The head of the response, when it is sent: only fields that are the handler's own. */
  head(status: number, fields: FieldLines): void {
    this.status = status;
    this.said = saidOutcome(fields.filter(([name]) => name === OUTCOME_FIELD).map(([, value]) => value));
    this.fields = fields;
  }

  data(piece: Buffer): void {
    if (this.isLong || EMPTY.includes(this.status)) return;
    this.bytes += piece.length;
    this.isLong = this.bytes > this.rules.responseBytes;
    if (this.isLong) this.pieces = [];
    // A copy: its owner may write over it.
    else this.pieces.push(Buffer.from(piece));
  }

  trailers(fields: FieldLines): void {
    this.lastFields.push(...fields);
  }

  /** An error of the handler, on its way to what answers it. */
  threw(error: unknown): void {
    if (this.rules.isHarmless(error)) this.isHarmless = true;
    // It can no longer be answered: the caller has received a part.
    if (this.status !== 0) void this.break();
  }

  /** The response is complete. Resolves when its outcome is reported, or cannot be reported in time. */
  complete(): Promise<void> {
    this.reporting ??= this.report(this.outcome());
    return this.reporting;
  }

  /** The response broke off, or there will be none: unknown at once, unless the handler has said what happened. */
  break(): Promise<void> {
    this.isBroken = true;
    this.reporting ??= this.report(this.outcome());
    return this.reporting;
  }

  /**
   * The time of the exchange is over. The claim is no longer renewed, and becomes unknown when its lease ends. Nothing stops a handler
   * here: a response that still comes is recorded, but no shutdown waits for it.
   */
  private overrun(): void {
    this.grant.stop();
    this.ended();
  }

  private outcome(): Outcome {
    if (this.said === null) this.rules.event("outcome_invalid", "warn", { status: this.status });
    // A success in the head is one of the whole response.
    if (this.said !== undefined) return this.said === null || (this.said === "success" && this.isBroken) ? "unknown" : this.said;
    const { marked } = this.request;
    if (marked !== null || this.isHarmless) return marked ?? "failure";
    return this.isBroken ? "unknown" : this.rules.statuses.of(this.status);
  }

  private async report(outcome: Outcome): Promise<void> {
    clearTimeout(this.deadline);
    try {
      if (outcome === "failure") await this.grant.fail();
      else if (outcome === "unknown") await this.grant.giveUp();
      else await this.grant.succeed(this.stored(), true);
    } catch {
      // The client has emitted an event. The response is the handler's all the same.
    } finally {
      this.grant.stop();
      this.ended();
      this.settled(outcome);
    }
  }

  private stored(): object {
    const isPrivate = this.fields.some(([name, value]) => name === "cache-control" && /(^|[,\s])no-store\b/i.test(value));
    const body = this.isLong || this.isBroken || (isPrivate && !this.rules.storePrivate) ? null : Buffer.concat(this.pieces);
    // Without a response: it failed after it had marked its grant.
    return stored(this.status || 500, this.fields, this.lastFields, body, this.rules.storedFields);
  }
}
