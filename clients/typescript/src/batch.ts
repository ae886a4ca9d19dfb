/** One call for many items: sent again for those that have no answer yet. */

import { type OncegateError, Unavailable } from "./errors.js";
import type { Answer, Fields } from "./server.js";
import { answered, jitter, rejected, sleep, type Transport } from "./transport.js";

const BATCH_MAX = 1000;

/** Sends the items until each has an answer or time is over. */
export async function sendBatch(
  transport: Transport,
  path: string,
  bodies: string[],
  withinMs: number,
  first: number,
): Promise<(Answer | OncegateError)[]> {
  if (bodies.length === 0 || bodies.length > BATCH_MAX)
    throw new TypeError(`a batch has 1 to ${BATCH_MAX} items, not ${bodies.length}`);
  const ends = transport.now() + withinMs;
  const answers: (Answer | OncegateError)[] = new Array(bodies.length);
  let open = bodies.map((_, at) => at);
  for (let round = 1; ; round++) {
    const body = `{"items":[${open.map((at) => bodies[at]).join()}]}`;
    const genuine = ({ items }: Fields) => Array.isArray(items) && items.length === open.length;
    const about = { operation: "", globalId: null };
    let answer: Answer;
    try {
      answer = await transport.do({
        endpoint: "batch",
        path,
        body,
        withinMs: Math.max(1, ends - transport.now()),
        first,
        genuine,
        about,
      });
      if (answer.status >= 300) throw rejected(answer.status, answer.fields);
    } catch (error) {
      if (round === 1) throw error;
      for (const at of open) answers[at] = error as OncegateError;
      return answers;
    }
    const { sent, at: gateway, fields } = answer;
    const again: number[] = [];
    let pause = jitter(round);
    open.forEach((at, position) => {
      const item = fields.items?.[position] ?? {};
      const status = item.status ?? 0;
      if (status !== 429 && status < 500) {
        answers[at] = { status, fields: item, sent, at: gateway };
        return;
      }
      const url = transport.servers[gateway]?.url ?? "";
      answers[at] = status === 429 ? rejected(429, item) : new Unavailable([answered(url, status, item)]);
      again.push(at);
      pause = Math.max(pause, item.retry_after_ms ?? 0);
    });
    if (again.length === 0 || transport.now() + pause > ends) return answers;
    await sleep(pause);
    open = again;
  }
}
