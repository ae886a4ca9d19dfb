/** Reports of outcomes: JSON text that every language reads. */

import { NotSettled, OutcomeRefused, Rejected } from "./errors.js";
import { marker } from "./results.js";
import type { Answer } from "./server.js";
import { spanned } from "./telemetry.js";
import { hasGlobalId, rejected, type Transport } from "./transport.js";
import type { Omitted, Settled } from "./values.js";

export interface Report {
  globalId: string;
  attempt: string;
  outcome: string;
  operation?: string | undefined;
  /** JSON, as is the result. */
  contents?: string | undefined;
  result?: string | undefined;
  gateway?: string | null;
}

export class Reports {
  constructor(
    private readonly transport: Transport,
    private readonly withinMs: number,
  ) {}

  /** Repeats a report until it is accepted or refused. */
  async settle(report: Report, result: unknown): Promise<Settled> {
    const { operation, outcome } = report;
    const deliver = () => this.deliver(report, result);
    return spanned("oncegate outcome", "client", { operation, outcome }, deliver, ({ state, degraded }) => ({ state, degraded }));
  }

  private async deliver(report: Report, result: unknown): Promise<Settled> {
    const { transport } = this;
    const { globalId, operation = "", outcome } = report;
    const about = { operation, globalId };
    let resultOmitted: Omitted | null = null;
    let answer: Answer;
    try {
      answer = await this.send(report).catch((error: unknown) => {
        if (report.result === undefined || !(error instanceof Rejected) || ![400, 413, 422].includes(error.status)) throw error;
        // The operation has succeeded, if its result can be stored or not.
        resultOmitted = "refused";
        transport.event(about, "result_omitted", "warn", { why: error.message });
        return this.send({ ...report, result: marker(resultOmitted) });
      });
    } catch (error) {
      transport.event(about, "not_settled", "error", { outcome });
      throw new NotSettled(written(report), result, error as Error);
    }
    const { status, fields } = answer;
    if (status === 409) {
      const code = fields.code ?? "";
      transport.event(about, "outcome_refused", "error", { outcome, code });
      throw new OutcomeRefused(code, result);
    }
    const state = status === 202 ? "spooled" : (fields.state ?? "");
    const { late = null, degraded = null } = fields;
    transport.event(about, "reported", late ? "warn" : "debug", { outcome, state, late, degraded });
    return { globalId, state, late, degraded, resultOmitted };
  }

  private async send(report: Report): Promise<Answer> {
    const { globalId, gateway, ...members } = report;
    const { transport, withinMs } = this;
    const first = Math.max(
      0,
      transport.servers.findIndex(({ url }) => url === gateway),
    );
    const about = { operation: report.operation ?? "", globalId };
    const path = `/v1/claims/${globalId}/outcome`;
    const answer = await transport.do({
      endpoint: "outcome",
      path,
      body: body(members),
      withinMs,
      first,
      genuine: hasGlobalId,
      about,
    });
    if (answer.status === 422) throw rejected(422, answer.fields);
    return answer;
  }
}

/** The members of an outcome call. */
export function body(report: Omit<Report, "globalId" | "gateway">): string {
  const { attempt, outcome, operation, contents, result } = report;
  return objectOf({
    attempt: JSON.stringify(attempt),
    outcome: JSON.stringify(outcome),
    operation: operation && JSON.stringify(operation),
    contents,
    result,
  });
}

/** The text to keep. */
export function written(report: Report): string {
  const { globalId, gateway, ...members } = report;
  const rest = body(members).slice(1, -1);
  return `{"global_id":${JSON.stringify(globalId)},${rest}${gateway ? `,"gateway":${JSON.stringify(gateway)}` : ""}}`;
}

/** Reads a kept report. */
export function readReport(text: string): { report: Report; result: unknown } {
  let fields: Record<string, unknown>;
  try {
    fields = JSON.parse(text);
  } catch (error) {
    throw new TypeError("not a report: it is not JSON", { cause: error });
  }
  const { global_id: globalId, attempt, outcome, operation, contents, result, gateway } = fields ?? {};
  if (
    typeof globalId !== "string" ||
    !/^[0-9a-f]{32}$/.test(globalId) ||
    typeof attempt !== "string" ||
    typeof outcome !== "string"
  ) {
    throw new TypeError("not a report: it needs global_id, attempt and outcome");
  }
  const report: Report = { globalId, attempt, outcome, gateway: typeof gateway === "string" ? gateway : null };
  if (typeof operation === "string") report.operation = operation;
  if (contents !== undefined) report.contents = JSON.stringify(contents);
  if (result !== undefined) report.result = JSON.stringify(result);
  return { report, result };
}

/** A JSON object of the members that are there; their values are JSON already. */
export function objectOf(members: Record<string, string | undefined>): string {
  let texts = "";
  for (const name of Object.keys(members)) {
    const text = members[name];
    if (text) texts += `${texts && ","}"${name}":${text}`;
  }
  return `{${texts}}`;
}
