// Faults while operators act: a gateway that is killed, and a switch under load. With two gateways on one store.

import assert from 'node:assert/strict';

import { post, until } from './lab.mjs';

/** Rounds of killing a gateway, each a little later after the click. */
const KILLS = 6;

export function steps({ lab, a, b, signedIn }) {
  const killed = async () => {
    for (let round = 0; round < KILLS; round++) {
      const contents = { order_id: `K-${round}` };
      const claim = await post(b, '/v1/claims', { operation: 'order.submit', contents });
      await post(b, `/v1/claims/${claim.global_id}/outcome`, { attempt: claim.attempt, outcome: 'unknown' });
      const victim = await lab.gateway(`victim-${round}`, a.engines);
      const page = await signedIn(victim);
      await page.goto(`${victim.console}/console/claims/default/${claim.global_id}/settle`);
      await page.check('input[value=success]');
      await page.fill('#result', '"settled"');
      await page.fill('#reason', `round ${round}`);
      const clicked = page.click('main button', { noWaitAfter: true }).catch(() => {});
      await new Promise((resolve) => setTimeout(resolve, round * 12));
      victim.child.kill('SIGKILL');
      await clicked;
      await page.context().close();
      await until('the gateway has ended', async () => victim.child.exitCode !== null || victim.child.signalCode !== null);

      // Another gateway shows what stands: it was settled as asked, or not at all.
      const other = await signedIn(b);
      await other.goto(`${b.console}/console/claims/default/${claim.global_id}`);
      const isDone = /Done/.test(await other.textContent('.state'));
      assert.ok(isDone || /unknown/.test(await other.textContent('.state')));
      const repeat = await post(b, '/v1/claims', { operation: 'order.submit', contents });
      assert.deepEqual([repeat.status, repeat.state], [409, isDone ? 'succeeded' : 'unknown']);
      if (isDone) assert.equal(repeat.result, 'settled');
      await other.context().close();

      // What was done is in the trail of the killed gateway: its line was on the disk before.
      const again = await lab.again(victim);
      const trail = await signedIn(again);
      await trail.goto(`${again.console}/console/audit?action=claim.settle`);
      const lines = await trail.locator('tbody tr').count();
      assert.ok(lines <= 1 || isDone, `round ${round}: ${lines} lines`);
      if (isDone) assert.ok(lines >= 1, `round ${round}: settled, and not in the trail`);
      await trail.context().close();
      again.child.kill('SIGKILL');
    }
  };

  const switched = async () => {
    const [statuses, grants] = [new Map(), new Map()];
    let isOver = false;
    const count = (counts, key) => counts.set(key, (counts.get(key) ?? 0) + 1);
    const call = async (gateway, number) => {
      const { status } = await post(gateway, '/v1/claims', { operation: 'load', contents: { number }, lease: '10m' });
      count(statuses, status);
      if (status === 201) count(grants, number);
    };
    const load = [a, b].map(async (gateway) => {
      for (let number = 0; !isOver; number++) await call(gateway, number % 50);
    });
    const [page, other] = [await signedIn(a), await signedIn(b)];
    try {
      await until('there is load', async () => (statuses.get(409) ?? 0) > 100);
      assert.ok([...grants.values()].every((count) => count === 1), 'each was granted once before the switch');
      await page.goto(`${a.console}/console/chains/default/switch`);
      await page.selectOption('#to', 'spare');
      await page.fill('#reason', 'INC-46: its disk fails');
      await page.check('input[name=accept_loss]');
      await page.fill('#typed', 'default');
      await page.click('main button');
      for (const [at, gateway] of [[page, a], [other, b]]) {
        await until(`${gateway.console} has switched`, async () => {
          await at.goto(`${gateway.console}/console/chains/default`);
          const facts = await at.locator('dl.facts dd').allTextContents();
          return facts.includes('spare') && facts.includes('1');
        });
      }
      await until('claims are granted again', async () => grants.size === 50 && [...grants.values()].every((count) => count === 2));
      assert.ok([...statuses.keys()].every((status) => [201, 409, 503].includes(status)), `${[...statuses]}`);
    } finally {
      isOver = true;
      await Promise.allSettled(load);
    }
    await until('both gateways are of one epoch', async () => {
      await page.goto(`${a.console}/console/gateways`);
      const main = await page.textContent('main');
      return (await page.locator('tbody tr').count()) >= 2 && !main.includes('other epoch');
    }, 60);
    assert.deepEqual([...grants.values()].filter((count) => count > 2), [], 'the new engine has granted each once');
    await page.context().close();
    await other.context().close();
  };

  return [
    [`a gateway is killed ${KILLS} times while it settles: done as asked and in its trail, or not at all`, killed],
    ['a switch under load is seen at both gateways, and grants each operation once more', switched],
  ];
}
