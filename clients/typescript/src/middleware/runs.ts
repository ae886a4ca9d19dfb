/** The runs of all middleware, by their requests: of two on one request the inner one passes. */

import type { IncomingMessage, ServerResponse } from "node:http";

import type { Run } from "./node.js";
import { Recorder } from "./recorder.js";

const runs = new WeakMap<IncomingMessage, Run>();

export function runOf(request: IncomingMessage): Run | undefined {
  return runs.get(request);
}

export function begin(run: Run, request: IncomingMessage): void {
  runs.set(request, run);
}

/** Records the response of a run as the handler sends it. */
export function record(run: Run, request: IncomingMessage, response: ServerResponse): Recorder {
  const recorder = new Recorder(request, response, run.exchange, run.guard);
  run.whenGone = () => recorder.gone();
  begin(run, request);
  return recorder;
}
