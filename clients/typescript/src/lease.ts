/** Common part of a grant and a hold: a lease that is renewed in the background. */

import type { Answer } from "./server.js";
import { type About, rejected, type Transport } from "./transport.js";
import type { Endpoint } from "./values.js";

export interface Keeping {
  endpoint: Endpoint;
  path: string;
  attempt: string;
  /** Lease that the caller asked for, where the gateway would otherwise take its default. */
  lease?: string | undefined;
  first: number;
  about: About;
  /** The name of the event when it is lost. */
  event: string;
}

/** When the lease ends by the client's clock: the gateway counts from the end of its wait. */
export function leaseEnds({ sent, fields }: Answer): number {
  return sent + (fields.waited_ms ?? 0) + (fields.lease_ms ?? 0);
}

/** With less time left no renewal is sent: its answer would come too late, and a timer may fire a little before the end. */
const RENEWAL_MIN_MS = 10;

export class Lease {
  lost: string | null = null;
  // Made when they are needed: most leases end before the first renewal.
  private losing: AbortController | null = null;
  private stopping: AbortController | null = null;
  private stopped = false;
  private timer: NodeJS.Timeout | undefined;

  /** Without `keeping` there is nothing to keep or to lose. */
  constructor(
    private readonly transport: Transport,
    private ends: number,
    private readonly keeping: Keeping | null,
  ) {
    // If it has ended already, the caller releases it or calls it lost.
    if (keeping && this.isLive) this.schedule();
  }

  get isLive(): boolean {
    return this.lost === null && (this.keeping === null || this.transport.now() < this.ends);
  }

  get lostSignal(): AbortSignal {
    this.losing ??= new AbortController();
    if (this.lost !== null) this.losing.abort(lostBecause(this.lost));
    return this.losing.signal;
  }

  stop(): void {
    clearTimeout(this.timer);
    this.stopped = true;
    this.stopping?.abort();
  }

  /** A lease that has ended is lost. */
  expire(): void {
    if (!this.isLive) this.lose("not_renewed");
  }

  async renew(withinMs: number): Promise<void> {
    const { keeping, transport } = this;
    if (!keeping) return;
    const { endpoint, path, first, about } = keeping;
    const body = JSON.stringify({ attempt: keeping.attempt, lease: keeping.lease });
    this.stopping ??= new AbortController();
    const genuine = (fields: { lease_ms?: number }) => typeof fields.lease_ms === "number";
    const answer = await transport.do({ endpoint, path, body, withinMs, first, genuine, about, abort: this.stopping.signal });
    if (answer.status >= 300) {
      this.lose(answer.fields.code ?? "not_renewed");
      throw rejected(answer.status, answer.fields);
    }
    this.ends = Math.max(this.ends, leaseEnds(answer));
    transport.event(about, "renewed", "debug");
  }

  /** At a third of the rest. This leaves time to repeat a lost answer. */
  private schedule(): void {
    const left = this.ends - this.transport.now();
    if (left <= 0) {
      this.lose("not_renewed");
      return;
    }
    const third = left / 3;
    const delay = third < RENEWAL_MIN_MS ? left : third;
    // It does not keep an idle process alive.
    this.timer = setTimeout(() => void this.renewAndGoOn(), delay).unref();
  }

  private async renewAndGoOn(): Promise<void> {
    const left = this.ends - this.transport.now();
    // Without an answer it is repeated for as long as the lease lasts.
    if (left >= RENEWAL_MIN_MS) await this.renew(left).catch(() => undefined);
    if (!this.stopped && this.lost === null) this.schedule();
  }

  /** Unless the outcome was reported before. */
  private lose(reason: string): void {
    if (this.stopped || this.lost !== null || !this.keeping) return;
    this.lost = reason;
    this.transport.event(this.keeping.about, this.keeping.event, "warn", { code: reason });
    this.losing?.abort(lostBecause(reason));
    this.stop();
  }
}

function lostBecause(reason: string): Error {
  return new Error(`lost: ${reason}`);
}
