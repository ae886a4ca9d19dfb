/** The right to run one operation, and the report of its outcome. */

import { Lease, leaseEnds } from "./lease.js";
import type { Report } from "./report.js";
import { encode } from "./results.js";
import type { Answer } from "./server.js";
import type { About, Transport } from "./transport.js";
import type { Done, Duplicate, Mismatch, Settled } from "./values.js";

/** One try at an operation: all repeats send the same parts. */
export interface Claim {
  readonly operation: string;
  /** In canonical form. */
  readonly contents: string;
  readonly globalId: string;
  readonly body: string;
  readonly about: About;
  readonly waitMs: number;
  readonly nonce: string;
  /** Set when a try may have had an effect although no answer came. */
  uncertain?: boolean;
}

/** Services that a grant needs from its client. */
export interface Reporter {
  settle(report: Report, result: unknown): Promise<Settled>;
  /** One try with the nonce of this claim. */
  claimLate(claim: Claim): Promise<Grant | Duplicate | Mismatch>;
}

/** The right to run one operation, until its lease ends. Renewed in the background until it is reported or stopped. */
export class Grant {
  readonly kind = "grant";
  readonly globalId: string;
  /** Proves that the claim is held: keep it like a secret. Empty if no gateway answered (`proceed`). */
  readonly attempt: string;
  /** Rises with every attempt at the operation, for the resource to compare. Null where the store has none. */
  readonly fence: number | null;
  /** A repeat of the claim call found the claim that it had been granted. */
  readonly repeated: boolean;
  readonly takenOver: boolean;
  /** The outage policy that granted the claim; `caller` if no gateway answered. */
  readonly degraded: string | null;
  /** In observe mode: what enforcing would have answered. Such a grant holds nothing. */
  readonly wouldBe: string | null;
  private readonly lease: Lease;

  /** Made by `Client.claim`. */
  constructor(
    private readonly transport: Transport,
    private readonly reporter: Reporter,
    private readonly claim: Claim,
    answer: Answer | null,
  ) {
    const fields = answer?.fields ?? {};
    this.globalId = fields.global_id ?? claim.globalId;
    this.attempt = fields.attempt ?? "";
    this.fence = fields.fence ?? null;
    this.repeated = fields.repeated ?? false;
    this.takenOver = fields.taken_over ?? false;
    this.degraded = answer ? (fields.degraded ?? null) : "caller";
    this.wouldBe = fields.would_be ?? null;
    this.gateway = answer ? (transport.servers[answer.at]?.url ?? null) : null;
    const path = `/v1/claims/${this.globalId}/renewal`;
    const keeping =
      answer && this.wouldBe === null
        ? ({ endpoint: "renewal", path, attempt: this.attempt, first: answer.at, about: claim.about, event: "lost" } as const)
        : null;
    this.lease = new Lease(transport, answer ? leaseEnds(answer) : 0, keeping);
  }

  /** The URL of the gateway that granted. */
  readonly gateway: string | null;

  /** The claim is still live by this clock: to check before an effect that cannot be undone. Only the fence closes the gap. */
  get isLive(): boolean {
    return this.lease.isLive;
  }

  /** `lease_lost`, `superseded` or `already_succeeded` by the answer to a renewal, `not_renewed` if none came in time, or null. */
  get lost(): string | null {
    return this.lease.lost;
  }

  /** Aborted when the claim was lost while the work runs. Report the outcome all the same. */
  get lostSignal(): AbortSignal {
    return this.lease.lostSignal;
  }

  /** Renews the claim now, in addition to the renewal in the background. An error does not change the claim. */
  async renew(): Promise<void> {
    await this.lease.renew(this.transport.timeoutMs);
  }

  /**
   * Reports that the work is finished and must never run again, also if the answer is "declined". Duplicates get the result, unless
   * it is undefined or null. If it cannot be stored, a marker is stored in its place: see `Done.resultOmitted`. With a reader its JSON may
   * say something else than it is.
   */
  async succeed<Result>(result: Result, hasReader = false): Promise<Done<Result>> {
    const { text, omitted } = encode(result, hasReader);
    if (omitted !== null) this.transport.event(this.claim.about, "result_omitted", "warn", { why: omitted.detail });
    const settled = await this.report("success", text, result);
    const { late = null, resultOmitted = null, degraded = null } = settled ?? {};
    return {
      kind: "done",
      globalId: this.globalId,
      result,
      state: settled.state || null,
      degraded: this.degraded ?? degraded,
      late,
      wouldBe: this.wouldBe,
      resultOmitted: omitted?.code ?? resultOmitted,
    };
  }

  /** Reports that nothing happened: the operation can be claimed again at once. */
  async fail(): Promise<void> {
    await this.report("failure");
  }

  /** Reports that it is not known if it happened. Repeats are stopped until an operator or a take-over settles it. */
  async giveUp(): Promise<void> {
    await this.report("unknown");
  }

  /** For the client: a claim whose lease has ended is lost. */
  expire(): void {
    this.lease.expire();
  }

  /** Ends the renewal. A claim that was not reported ends with its lease. */
  stop(): void {
    this.lease.stop();
  }

  /** For the client: the report of an outcome without a result. */
  reportOf(outcome: string): Report {
    const { operation, contents } = this.claim;
    const { globalId, attempt, gateway } = this;
    return { globalId, attempt, outcome, operation, contents, gateway };
  }

  private async report(outcome: string, text?: string, result?: unknown): Promise<Partial<Settled>> {
    let holder: Grant = this;
    if (this.attempt === "") {
      // Granted by this caller's own policy. If a gateway answers now, repeats are stopped from here on.
      const late = await this.reporter.claimLate(this.claim).catch(() => null);
      if (!(late instanceof Grant)) return late ? { late: true } : {};
      holder = late;
    }
    try {
      return await this.reporter.settle({ ...holder.reportOf(outcome), result: text }, result);
    } finally {
      holder.stop();
    }
  }
}
