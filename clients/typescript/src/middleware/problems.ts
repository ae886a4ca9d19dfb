/** Refusals as problem documents (RFC 9457), with the codes that every language and the proxy have. */

import type { FieldLines, Reply } from "./stored.js";

const TITLES = {
  idempotency_key_invalid: [400, "Idempotency key missing or invalid"],
  principal_missing: [400, "Principal missing"],
  ambiguous_target: [400, "Ambiguous target"],
  invalid_request: [400, "Invalid request"],
  duplicate: [409, "Duplicate"],
  response_not_stored: [409, "Response not stored"],
  length_required: [411, "Length required"],
  body_too_large: [413, "Body too large"],
  fingerprint_mismatch: [422, "Fingerprint mismatch"],
  contents_not_canonical: [422, "Contents not canonical"],
  quota_exceeded: [429, "Quota exceeded"],
  body_not_seen: [500, "Body not seen"],
  identity_differs: [500, "Identity differs"],
  internal: [500, "Internal error"],
  not_supported: [501, "Not supported"],
  store_unavailable: [503, "Store unavailable"],
} as const;

export type ProblemCode = keyof typeof TITLES;

/** A problem document, and the fields that go with it. */
export interface Problem {
  readonly type: string;
  readonly title: string;
  readonly status: number;
  readonly detail: string;
  readonly code: ProblemCode;
  /** Of the claim, where the problem is one of it. */
  readonly state?: "in_progress" | "succeeded" | "unknown";
  /** Of the response that was not stored. */
  readonly response_status?: number;
}

/** A problem with its response fields, such as `Retry-After`. */
export interface Refusal {
  readonly problem: Problem;
  readonly fields: FieldLines;
}

export function refusal(
  code: ProblemCode,
  detail: string,
  {
    afterMs,
    fields = [],
    ...members
  }: { afterMs?: number; fields?: FieldLines } & Pick<Problem, "state" | "response_status"> = {},
): Refusal {
  const [status, title] = TITLES[code];
  const problem: Problem = { type: `urn:oncegate:problem:${code}`, title, status, detail, code, ...members };
  const after: FieldLines = afterMs === undefined ? [] : [["retry-after", String(Math.max(1, Math.ceil(afterMs / 1000)))]];
  return { problem, fields: [...after, ...fields] };
}

/** The response of a service with its own error format. */
export interface Rendered {
  status?: number;
  headers?: Readonly<Record<string, string | readonly string[]>>;
  body: string | Uint8Array;
}

export function replyOf({ problem, fields }: Refusal, render?: (problem: Problem) => Rendered): Reply {
  if (!render) {
    const own: FieldLines = [
      ["content-type", "application/problem+json"],
      ["cache-control", "no-store"],
    ];
    return { status: problem.status, fields: [...own, ...fields], body: Buffer.from(JSON.stringify(problem)), trailers: [] };
  }
  const { status = problem.status, headers = {}, body } = render(problem);
  const lines = Object.entries(headers).flatMap(([name, value]) =>
    (typeof value === "string" ? [value] : value).map((line): [string, string] => [name.toLowerCase(), line]),
  );
  const names = lines.map(([name]) => name);
  const rest = fields.filter(([name]) => !names.includes(name));
  return { status, fields: [...lines, ...rest], body: Buffer.from(body as string), trailers: [] };
}
