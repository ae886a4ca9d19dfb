// The numbers of the pages after a seeded load: they are the workload's own count, at one gateway and at each of two.

import assert from 'node:assert/strict';

import { post, until } from './lab.mjs';

/** Operations of the workload. */
const NAMES = ['truth.pay', 'truth.ship', 'truth.mail'];

/** Pseudo-random numbers below a bound, the same ones for the same seed (mulberry32). */
function random(seed) {
  let state = seed;
  return (bound) => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) % bound;
  };
}

/** What a gateway has answered, as its callers count it. */
class Count {
  operations = new Map(NAMES.map((name) => [name, { calls: 0, granted: 0, in_progress: 0, succeeded: 0, unknown: 0, mismatches: 0 }]));
  repeated = new Set();
  answers = 0;
  doubles = 0;

  add(name, answer) {
    const counts = this.operations.get(name);
    counts.calls += 1;
    if (answer.status === 201) counts.granted += 1;
    else if (answer.status === 422) counts.mismatches += 1;
    else counts[answer.state] += 1;
    if (answer.status === 409 && answer.state !== 'in_progress') {
      this.repeated.add(answer.global_id);
      this.answers += 1;
    }
  }
}

/** Sends the workload to these gateways, and returns what each has answered, and the unknown claims. */
async function load(gateways, seed, size) {
  const pick = random(seed);
  const counts = gateways.map(() => new Count());
  const unknowns = new Set();
  const repeats = new Map();
  const claim = async (name, number, more = {}) => {
    const at = pick(gateways.length);
    const answer = await post(gateways[at], '/v1/claims', { operation: name, contents: { seed, number }, lease: '10m', fingerprint: 'f', ...more });
    assert.ok([201, 409, 422].includes(answer.status), JSON.stringify(answer));
    counts[at].add(name, answer);
    return { at, answer };
  };
  for (let number = 0; number < size; number++) {
    const name = NAMES[pick(NAMES.length)];
    const { answer: granted } = await claim(name, number);
    assert.equal(granted.status, 201);
    for (let repeat = pick(3); repeat > 0; repeat--) await claim(name, number);
    if (pick(10) === 0) await claim(name, number, { fingerprint: 'another' });
    const outcome = ['success', 'success', 'success', 'unknown', ''][pick(5)];
    if (!outcome) continue;
    const at = pick(gateways.length);
    const path = `/v1/claims/${granted.global_id}/outcome`;
    if (pick(12) === 0) {
      const late = { attempt: `${granted.timestamp - 1}-0123456789abcdef`, operation: name, outcome: 'success' };
      assert.equal((await post(gateways[at], path, late)).status, 409);
      counts[at].doubles += 1;
    }
    await post(gateways[at], path, { attempt: granted.attempt, outcome });
    if (outcome === 'unknown') unknowns.add(granted.global_id);
    for (let repeat = pick(4); repeat > 0; repeat--) {
      const { at: gateway, answer } = await claim(name, number);
      const of = repeats.get(answer.global_id) ?? gateways.map(() => 0);
      of[gateway] += 1;
      repeats.set(answer.global_id, of);
    }
  }
  return { counts, unknowns, repeats };
}

/** Compares the pages of a gateway with the count of its callers. */
async function compare(page, gateway, count) {
  let shown;
  await until('all answers are counted', async () => {
    await page.goto(`${gateway.console}/console/operations`);
    shown = await Promise.all(
      NAMES.map(async (name) => (await page.locator('tbody tr', { hasText: name }).locator('td').allInnerTexts()).map((text) => text.split('\n')[0])),
    );
    const all = shown.reduce((sum, [calls]) => sum + Number(calls), 0);
    return all === [...count.operations.values()].reduce((sum, { calls }) => sum + calls, 0);
  });
  const wanted = [...count.operations.values()].map((of) => [of.calls, of.granted, `${of.in_progress} / ${of.succeeded} / ${of.unknown}`, of.mismatches, 0].map(String));
  assert.deepEqual(shown.map((cells) => cells.slice(0, 5)), wanted, gateway.console);
  await until('the repeats of today are those of the callers', async () => {
    await page.goto(`${gateway.console}/console/`);
    const [, operations, answers] = /(\d+) operations met a repeat .* \((\d+) answers\)/.exec(await page.textContent('.today'));
    // A sketch counts distinct operations, within 5 %.
    return Number(answers) === count.answers && Math.abs(operations - count.repeated.size) <= count.repeated.size * 0.05;
  });
  const overview = await page.textContent('main');
  assert.ok(!count.doubles || overview.includes(`${count.doubles} operations of app \`default\` may have been executed twice`), overview);
  await page.goto(`${gateway.console}/console/attention?kind=double`);
  assert.equal(await page.locator('[data-row]').count(), Math.min(count.doubles, 50));
}

export function steps({ lab, port, signedIn }) {
  const engines = (database) => ({ primary: `redis://127.0.0.1:${port}/${database}` });

  const one = async () => {
    const gateway = await lab.gateway('truth', engines(2));
    const { counts, unknowns, repeats } = await load([gateway], 7, 150);
    const page = await signedIn(gateway, {}, 'view');
    await compare(page, gateway, counts[0]);
    await page.goto(`${gateway.console}/console/attention?kind=unknown`);
    assert.equal(await page.locator('[data-row]').count(), Math.min(unknowns.size, 50));
    // The timeline of a claim has each of its repeats.
    const [id, [most]] = [...repeats].reduce((best, next) => (next[1][0] > best[1][0] ? next : best));
    await page.goto(`${gateway.console}/console/claims/default/${id}`);
    assert.match(await page.textContent('.timeline'), new RegExp(`${most} × a repeat got 409`));
    await page.context().close();
  };

  const two = async () => {
    const gateways = [await lab.gateway('truth-a', engines(3)), await lab.gateway('truth-b', engines(3))];
    const { counts, unknowns } = await load(gateways, 11, 150);
    for (const [at, gateway] of gateways.entries()) {
      const page = await signedIn(gateway, {}, 'view');
      await compare(page, gateway, counts[at]);
      // What the store has is the same at each.
      await page.goto(`${gateway.console}/console/attention?kind=unknown`);
      assert.equal(await page.locator('[data-row]').count(), Math.min(unknowns.size, 50), gateway.console);
      await page.context().close();
    }
  };

  // Neither the gateways nor their counters are needed: the store has the index.
  const killed = async () => {
    const gateway = await lab.gateway('truth-killed', engines(4));
    const { unknowns } = await load([gateway], 13, 60);
    gateway.child.kill('SIGKILL');
    await until('the gateway has ended', async () => gateway.child.signalCode !== null);
    const again = await lab.again(gateway);
    const page = await signedIn(again, {}, 'view');
    await page.goto(`${again.console}/console/attention?kind=unknown`);
    const shown = await page.locator('[data-row] a code').allTextContents();
    assert.deepEqual(shown.sort(), [...unknowns].sort());
    await page.context().close();
  };

  return [
    ['the numbers of a gateway are those of its callers, and a timeline has each repeat', one],
    ['each of two gateways shows its own numbers, and both what the store has', two],
    ['every unknown outcome is listed after kill -9 of the only gateway', killed],
  ];
}
