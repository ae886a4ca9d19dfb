// The console in a real browser, with two gateways on one store. See `run`.

import assert from 'node:assert/strict';
import { mkdirSync, readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import { chromium } from 'playwright-core';

import * as faults from './faults.mjs';
import * as hostile from './hostile.mjs';
import { Lab, TOKENS, post, until } from './lab.mjs';
import * as truth from './truth.mjs';

const AXE = readFileSync(join(dirname(fileURLToPath(import.meta.url)), 'node_modules/axe-core/axe.min.js'), 'utf8');
const shots = process.argv[2] === 'screenshots' ? process.argv[3] : undefined;
const isSample = process.argv[2] === 'sample';
const lab = new Lab();
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ['--no-sandbox'] });

/** Signs in at a gateway, with these options of the browser. */
async function signedIn(gateway, options = {}, role = 'act') {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.problems = [];
  page.on('pageerror', (error) => page.problems.push(`${error}`));
  page.on('request', (request) => {
    if (!request.url().startsWith(gateway.console)) page.problems.push(`asks ${request.url()}`);
  });
  await page.goto(`${gateway.console}/console/`);
  await page.fill('#token', TOKENS[role]);
  await page.click('button[type=submit]');
  await page.waitForSelector('nav');
  return page;
}

const heading = (page) => page.textContent('h1');
const steps = [];
const step = (name, run) => steps.push([name, run]);

const { child: redis, port } = await lab.redis();
const engines = { primary: `redis://127.0.0.1:${port}/0`, spare: `redis://127.0.0.1:${port}/1` };
const [a, b] = [await lab.gateway('og-a', engines), await lab.gateway('og-b', engines)];
const order = { operation: 'order.submit', contents: { order_id: 'A-1001' } };

step('an order is found from its number, and settled once; a repeat gets the result at the other gateway', async () => {
  const granted = await post(a, '/v1/claims', order);
  await post(a, `/v1/claims/${granted.global_id}/outcome`, { attempt: granted.attempt, outcome: 'unknown' });
  const page = await signedIn(b);
  await page.click('nav >> text=Find');
  await page.fill('#text', '{"order_id": "A-1001"}');
  await page.fill('#operation', 'order.submit');
  await page.click('main button');
  assert.match(await page.textContent('.state'), /unknown/);
  assert.ok(!page.url().includes('A-1001'), 'no contents in an address');
  await page.click('a.button >> text=Settle');
  await page.check('input[value=success]');
  await page.fill('#result', '{"order_number": 90017}');
  await page.fill('#reason', 'INC-42: found in the ledger');
  await page.dblclick('main button');
  await page.waitForURL(/done=success/);
  assert.match(await page.textContent('.state'), /Done/);
  const repeat = await post(a, '/v1/claims', order);
  assert.deepEqual([repeat.status, repeat.state, repeat.result], [409, 'succeeded', { order_number: 90017 }]);
  await page.goto(`${b.console}/console/audit?action=claim.settle`);
  assert.equal(await page.locator('tbody tr').count(), 1, 'a double click settles once');
  assert.deepEqual(page.problems, []);
  await page.context().close();
});

step('a caller that waits at the other gateway gets what an operator settles', async () => {
  const waited = { operation: 'order.submit', contents: { order_id: 'A-1005' } };
  const granted = await post(a, '/v1/claims', { ...waited, lease: '10m' });
  const answer = post(b, '/v1/claims', { ...waited, wait: '30s' });
  const page = await signedIn(a);
  await until('the caller waits', async () => {
    const { callers } = await (await fetch(`${b.console}/admin/v1/waiting`, { headers: { authorization: `Bearer ${TOKENS.view}` } })).json();
    return callers === 1;
  });
  await page.goto(`${a.console}/console/claims/default/${granted.global_id}/settle`);
  await page.check('input[value=success]');
  await page.fill('#result', '90018');
  await page.fill('#reason', 'INC-48');
  await page.click('main button');
  await page.waitForURL(/done=success/);
  const { status, state, result } = await answer;
  assert.deepEqual([status, state, result], [409, 'succeeded', 90018]);
  await page.context().close();
});

step('what needs a person is found on the overview, and worked off together', async () => {
  const claims = [];
  for (const number of [1, 2, 3]) {
    const granted = await post(a, '/v1/claims', { operation: 'coupon.redeem', contents: { coupon: `SPRING-${number}` } });
    await post(a, `/v1/claims/${granted.global_id}/outcome`, { attempt: granted.attempt, outcome: 'unknown' });
    claims.push(granted);
  }
  const page = await signedIn(a);
  await page.click('.things >> text=What to do');
  assert.match(await page.textContent('.things details[open]'), /Look the effect up/);
  await page.click('.things >> text=Open');
  await page.click('text=Choose all 3 of');
  assert.equal(await page.locator('input[name=row]:checked').count(), 3);
  await page.check('input[name=outcome][value=failure]');
  await page.fill('#settle-reason', 'INC-44: none is in the ledger');
  await page.fill('#settle-typed', '3');
  await page.click('text=Settle the chosen ones');
  assert.match(await page.textContent('[role=status]:visible'), /Settled: 3\./);
  assert.match(await page.textContent('main'), /No outcome is unknown/);
  for (const claim of claims) assert.equal((await post(a, '/v1/claims', { operation: 'coupon.redeem', contents: { coupon: `SPRING-${claims.indexOf(claim) + 1}` } })).status, 201);
  assert.deepEqual(page.problems, []);
  await page.context().close();
});

step('a request of the proxy is found from its key, which is in no address', async () => {
  const key = '51aa03c2-qz7k-4b60-9c0f-2d3f8e6b1a77';
  const headers = { 'idempotency-key': key, authorization: 'alice', 'content-type': 'application/json' };
  // Nothing listens there: the request was not done, so its key is free again.
  const answer = await fetch(`${a.proxy}/orders`, { method: 'POST', headers, body: '{}' });
  assert.equal(answer.status, 502);
  const page = await signedIn(a, {}, 'view');
  await page.click('nav >> text=Proxy');
  assert.match(await page.textContent('main'), /51aa03c2…\s*Upstream or store did not answer/);
  await page.click('nav >> text=Find');
  await page.fill('#key', key);
  await page.click('main >> text=Find a request of the proxy by its key >> nth=-1');
  await page.waitForURL(/claims\/default\/[0-9a-f]{32}\?realm=proxy$/);
  assert.match(await page.textContent('main'), /This gateway has seen it, though/);
  assert.ok(!(await page.content()).includes('qz7k'), 'the key is not shown');
  assert.deepEqual(page.problems, []);
  await page.context().close();
});

step('a form that meets the end of its session comes back filled', async () => {
  const granted = await post(a, '/v1/claims', { operation: 'order.submit', contents: { order_id: 'A-1003' }, lease: '10m' });
  const page = await signedIn(a);
  await page.goto(`${a.console}/console/claims/default/${granted.global_id}/settle`);
  await page.check('input[value=success]');
  await page.fill('#reason', 'INC-45: found "it"');
  await page.context().clearCookies();
  await page.click('main button');
  assert.match(await page.textContent('main'), /nothing was executed/);
  await page.fill('#token', TOKENS.act);
  await page.click('button[type=submit]');
  assert.equal(await page.inputValue('#reason'), 'INC-45: found "it"');
  assert.ok(await page.isChecked('input[value=success]'));
  await page.click('main button');
  assert.match(await page.textContent('.state'), /Done/);
  await page.click('.same a');
  assert.equal(JSON.parse(await page.textContent('body')).state, 'succeeded');
  await page.context().close();
});

step('a refused form is opened again with what was typed', async () => {
  const granted = await post(a, '/v1/claims', { operation: 'order.submit', contents: { order_id: 'A-1004' } });
  const page = await signedIn(a);
  await page.goto(`${a.console}/console/claims/default/${granted.global_id}/settle`);
  await page.check('input[value=success]');
  await page.fill('#result', '{"order_number": 9001');
  await page.fill('#reason', 'INC-47');
  await page.click('main button');
  assert.match(await page.textContent('main'), /not JSON/);
  await page.click('text=Back to the form');
  assert.ok(await page.isChecked('input[value=success]'));
  assert.deepEqual([await page.inputValue('#result'), await page.inputValue('#reason')], ['{"order_number": 9001', 'INC-47']);
  await page.fill('#result', '{"order_number": 9001}');
  await page.click('main button');
  assert.match(await page.textContent('.state'), /Done/);
  assert.deepEqual(page.problems, []);
  await page.context().close();
});

step('the overview keeps itself fresh, and leaves alone what a person has open', async () => {
  const page = await signedIn(a);
  const more = async (number) => {
    const granted = await post(a, '/v1/claims', { operation: 'pay', contents: { number } });
    await post(a, `/v1/claims/${granted.global_id}/outcome`, { attempt: granted.attempt, outcome: 'unknown' });
  };
  await more(1);
  await page.waitForSelector('.things >> text=1 unknown claim', { timeout: 60_000 });
  await page.click('.things summary');
  const loaded = page.waitForResponse((answer) => answer.request().resourceType() === 'xhr', { timeout: 60_000 });
  await more(2);
  await (await loaded).finished();
  assert.equal(await page.locator('.things details[open]').count(), 1, 'an open text stays');
  await page.click('.things summary');
  await page.evaluate(() => document.activeElement.blur());
  await more(3);
  await page.waitForSelector('.things >> text=3 unknown claim', { timeout: 60_000 });
  await page.keyboard.press('/');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'find', 'the box in the header');
  await page.keyboard.type('{"number": 4}');
  await page.keyboard.press('Enter');
  await page.waitForURL(/console\/find$/);
  assert.match(await page.textContent('main'), /No live claim/);
  assert.equal(await page.inputValue('#text'), '{"number": 4}', 'what was typed is kept');
  assert.deepEqual(page.problems, []);
  await page.context().close();
});

step('a tab that is open for an hour does not grow', async () => {
  // An event comes at most every 2 s, so an hour has at most 1800 refreshes. Here they come as fast as the page takes them, and each
  // replaces every region.
  const refreshes = isSample ? 150 : 1800;
  const page = await signedIn(a);
  let count = 0;
  await page.route('**/console/live', (route) =>
    route.fulfill({ contentType: 'text/event-stream', body: 'retry: 5\ndata: summary history engines waiting\n\n' }),
  );
  await page.route('**/console/', async (route) => {
    if (route.request().resourceType() !== 'xhr') return route.continue();
    const answer = await route.fetch();
    count += 1;
    const body = (await answer.text()).replace(/data-live="\w+">/g, (tag) => `${tag}<!--${count}-->`);
    return route.fulfill({ response: answer, body });
  });
  await page.goto(`${a.console}/console/`);
  const devtools = await page.context().newCDPSession(page);
  await devtools.send('Performance.enable');
  const used = async () => {
    await devtools.send('HeapProfiler.collectGarbage');
    const { metrics } = await devtools.send('Performance.getMetrics');
    const of = (name) => metrics.find((metric) => metric.name === name).value;
    return { bytes: of('JSHeapUsedSize'), nodes: of('Nodes'), documents: of('Documents'), listeners: of('JSEventListeners') };
  };
  await until('the page keeps itself fresh', async () => count >= 20, 60);
  const before = await used();
  const end = count + refreshes;
  await until(`${refreshes} refreshes`, async () => count >= end, 600);
  assert.ok(await page.evaluate((least) => Number(document.querySelector('[data-live]').firstChild.data) >= least, end - 5), 'regions are replaced');
  const after = await used();
  console.log(`   ${refreshes} refreshes: ${JSON.stringify(before)} then ${JSON.stringify(after)}`);
  assert.ok(after.bytes - before.bytes <= 5 << 20, 'no more than 5 MiB');
  // A page that is just being loaded may add its nodes. If replaced regions were kept, each refresh would.
  assert.ok(after.nodes - before.nodes < 5 * before.nodes, `${after.nodes - before.nodes} nodes`);
  assert.ok(after.documents - before.documents < 20 && after.listeners - before.listeners < 20);
  await page.unrouteAll({ behavior: 'ignoreErrors' });
  assert.deepEqual(page.problems, []);
  await page.context().close();
});

step('seven tabs of one browser all load, also with their streams', async () => {
  const first = await signedIn(a);
  const tabs = [];
  for (let tab = 0; tab < 7; tab++) {
    const page = await first.context().newPage();
    await page.goto(`${a.console}/console/`, { timeout: 60_000 });
    assert.ok(await page.locator('nav').count(), `tab ${tab}`);
    tabs.push(page);
  }
  // Four streams of a session; the tabs beyond say that they are not live.
  const live = async () => {
    const hidden = await Promise.all([first, ...tabs].map((page) => page.locator('#live').isHidden()));
    return hidden.filter(Boolean).length;
  };
  await until('four tabs are live', async () => (await live()) === 4, 60);
  assert.match(await tabs[6].textContent('#live'), /Not live/);
  await tabs[6].goto(`${a.console}/console/engines`, { timeout: 60_000 });
  assert.ok(await tabs[6].locator('nav').count());
  await first.context().close();
});

step('a page that gets no stream asks again', async () => {
  const page = await signedIn(a);
  let asked = 0;
  // As for a page that was opened quickly after others: the gateway notices only after seconds that those were left.
  await page.route('**/console/live', (route) => (asked++ ? route.continue() : route.fulfill({ status: 204 })));
  await page.goto(`${a.console}/console/`);
  await page.waitForSelector('#live', { state: 'visible', timeout: 60_000 });
  assert.ok(await page.locator('.old').count(), 'old values are grey');
  await page.waitForSelector('#live', { state: 'hidden', timeout: 60_000 });
  assert.equal(await page.locator('.old').count(), 0);
  assert.equal(asked, 2);
  await page.unrouteAll({ behavior: 'ignoreErrors' });
  await page.context().close();
});

step('a page whose session has ended says so, and leads to the sign-in and back', async () => {
  const first = await signedIn(a);
  const other = await first.context().newPage();
  const list = `${a.console}/console/attention?kind=double`;
  await first.goto(list);
  await other.goto(`${a.console}/console/engines`);
  await other.click('text=Sign out');
  await other.waitForSelector('#token');
  await first.waitForSelector('#over', { state: 'visible', timeout: 60_000 });
  assert.match(await first.textContent('#over'), /Your session has ended/);
  assert.ok(await first.locator('#live').isHidden(), 'one of both sentences');
  await first.click('#over a');
  assert.match(await first.textContent('main'), /Sign in/);
  await first.fill('#token', TOKENS.act);
  await first.click('button[type=submit]');
  await first.waitForSelector('nav');
  assert.equal(first.url(), list);
  assert.ok(await first.locator('#over').isHidden());
  // The page asks for no other stream: only a sign-in helps.
  await first.context().clearCookies();
  let asked = 0;
  await first.route('**/console/live', (route) => {
    asked += 1;
    return route.continue();
  });
  await first.goto(list);
  await first.fill('#token', TOKENS.act);
  await first.click('button[type=submit]');
  await first.waitForSelector('nav');
  await first.context().clearCookies();
  await first.evaluate(() => dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true })));
  await first.waitForSelector('#over', { state: 'visible', timeout: 60_000 });
  const before = asked;
  await first.evaluate(() => dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true })));
  await sleep(1000);
  assert.equal(asked, before);
  await first.unrouteAll({ behavior: 'ignoreErrors' });
  assert.deepEqual(first.problems, []);
  await first.context().close();
});

step('pages are in Chinese for browsers that prefer it', async () => {
  const page = await signedIn(a, { locale: 'zh-CN' });
  assert.equal(await page.getAttribute('html', 'lang'), 'zh-Hans');
  assert.match(await page.textContent('nav'), /概览/);
  await page.context().close();
});

step('two operators on one claim: the second one is told that it has changed', async () => {
  const granted = await post(a, '/v1/claims', { operation: 'order.submit', contents: { order_id: 'A-1002' }, lease: '10m' });
  const claim = `/console/claims/default/${granted.global_id}`;
  const [first, second] = [await signedIn(a), await signedIn(b)];
  for (const [page, gateway] of [[first, a], [second, b]]) {
    await page.goto(`${gateway.console}${claim}/settle`);
    await page.check('input[value=failure]');
    await page.fill('#reason', 'INC-43');
  }
  await first.click('main button');
  assert.match(await first.textContent('main'), /Nothing happened|can be claimed again/);
  await post(a, '/v1/claims', { operation: 'order.submit', contents: { order_id: 'A-1002' }, lease: '10m' });
  await second.click('main button');
  assert.match(await second.textContent('main'), /superseded/);
  await first.context().close();
  await second.context().close();
});

for (const [name, run] of hostile.steps({ a, signedIn, isSample })) step(name, run);

step('a link on another site leads to the page; a form of another port is refused', async () => {
  const page = await signedIn(a);
  const form = `<form method="post" action="${a.console}/console/sign-out"><button>send</button></form>`;
  const other = createServer((_, answer) => {
    answer.setHeader('content-type', 'text/html');
    answer.end(`<a href="${a.console}/console/attention">link</a>${form}`);
  }).listen(0, '127.0.0.1');
  await until('the other site listens', async () => other.listening);
  page.problems.length = 0;
  await page.goto(`http://localhost:${other.address().port}/`).catch(() => page.goto(`http://127.0.0.1:${other.address().port}/`));
  await page.click('a');
  await page.waitForSelector('nav');
  assert.equal(await heading(page), 'Attention');
  await page.goto(`http://127.0.0.1:${other.address().port}/`);
  await page.click('button');
  assert.match(await page.textContent('body'), /forbidden/);
  await page.goto(`${a.console}/console/`);
  assert.ok(await page.locator('nav').count(), 'the session is still there');
  other.close();
  await page.context().close();
});

step('two gateways of one host do not sign each other out', async () => {
  const page = await signedIn(a);
  await page.goto(`${b.console}/console/`);
  await page.fill('#token', TOKENS.view);
  await page.click('button[type=submit]');
  for (const gateway of [a, b]) {
    await page.goto(`${gateway.console}/console/`);
    assert.ok(await page.locator('nav').count(), gateway.console);
  }
  await page.context().close();
});

const granted = await post(a, '/v1/claims', { operation: 'coupon.redeem', contents: { coupon: 'SPRING-25' }, lease: '1h' });
const pages = [
  '/console/',
  '/console/attention',
  '/console/recent',
  '/console/operations',
  '/console/operations/default/coupon.redeem',
  '/console/find',
  `/console/claims/default/${granted.global_id}`,
  `/console/claims/default/${granted.global_id}/settle`,
  `/console/claims/default/${granted.global_id}/release`,
  '/console/engines',
  '/console/chains/default',
  '/console/chains/default/switch',
  '/console/locks',
  '/console/apps',
  '/console/apps/default',
  '/console/config',
  '/console/config?show=all',
  '/console/spool',
  '/console/proxy',
  '/console/proxy/orders.create',
  '/console/gateways',
  '/console/audit',
  '/console/nothing',
];

step('every page in light, dark, narrow and forced colors is accessible, and none is wider than the window', async () => {
  const looks = [
    ['light', { colorScheme: 'light', viewport: { width: 1240, height: 900 } }],
    ['dark', { colorScheme: 'dark', viewport: { width: 1240, height: 900 } }],
    ['narrow', { colorScheme: 'light', viewport: { width: 320, height: 800 } }],
    ['forced', { forcedColors: 'active', viewport: { width: 1240, height: 900 } }],
  ];
  for (const [look, options] of looks) {
    // The checker is a script, which the pages' policy refuses.
    const page = await signedIn(a, { ...options, bypassCSP: true });
    for (const path of isSample && look !== 'light' ? pages.slice(0, 4) : pages) {
      await page.goto(a.console + path);
      await page.evaluate(AXE);
      const found = await page.evaluate(() => axe.run());
      assert.deepEqual(found.violations.map(({ id, nodes }) => [id, nodes[0].html]), [], `${look}: ${path}`);
      const isWide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
      assert.ok(!isWide, `${look}: ${path} is wider than the window`);
    }
    await page.context().close();
  }
});

step('it works without a script and by the keyboard', async () => {
  const page = await signedIn(a, { javaScriptEnabled: false });
  await page.keyboard.press('Tab');
  await page.keyboard.press('Enter');
  assert.match(page.url(), /#content$/, 'the skip link comes first');
  await page.fill('#find', granted.global_id);
  await page.press('#find', 'Enter');
  await page.waitForURL(/claims\/default/);
  await page.goto(`${a.console}/console/find`);
  await page.focus('#text');
  await page.keyboard.type(granted.global_id);
  await page.keyboard.press('Tab');
  await page.keyboard.press('Tab');
  await page.keyboard.press('Tab');
  await page.keyboard.press('Enter');
  await page.waitForURL(/claims\/default/);
  assert.match(await page.textContent('.state'), /In progress/);
  await page.context().close();
});

step('no page fails while the store does not answer', async () => {
  const page = await signedIn(a);
  redis.kill('SIGSTOP');
  for (const path of pages) {
    const answer = await page.goto(a.console + path);
    assert.ok([200, 404, 503].includes(answer.status()), `${path}: ${answer.status()}`);
    assert.ok(await page.locator('nav').count(), `${path} has its frame`);
    const text = await page.locator('main').innerText();
    assert.ok(!text.includes('`'), `${path} shows names as code: ${text}`);
    assert.ok(!/not available.*not available/.test(text), `${path} says it once: ${text}`);
  }
  await page.goto(`${a.console}/console/chains/default/switch`);
  assert.match(await page.textContent('main'), /spare\s*■ does not answer/, 'the engine to switch to');
  await page.goto(`${a.console}/console/`);
  assert.match(await page.textContent('main'), /does not answer/);
  await page.goto(`${a.console}/console/engines`);
  assert.match(await page.textContent('main'), /the active engine does not answer/, 'the chain does not seem to grant');
  await page.goto(`${a.console}/console/`);
  redis.kill('SIGCONT');
  await until('the store is seen again', async () => {
    await page.reload();
    return (await page.textContent('main')).includes('● answers');
  });
  await page.context().close();
});

step('new rows are counted above those that a person reads', async () => {
  const page = await signedIn(a);
  await page.goto(`${a.console}/console/attention?kind=double`);
  const rows = await page.locator('[data-row]').count();
  for (const number of [1, 2, 3]) {
    let claim;
    // The store was away just before.
    await until('a claim is granted', async () => {
      claim = await post(a, '/v1/claims', { operation: 'pay', contents: { twice: number, at: Date.now() }, lease: '10m' });
      return claim.status === 201;
    });
    const late = { attempt: `${claim.timestamp - 1}-0123456789abcdef`, operation: 'pay', outcome: 'success' };
    assert.equal((await post(a, `/v1/claims/${claim.global_id}/outcome`, late)).status, 409);
  }
  await page.waitForSelector('#new >> text=3 new', { timeout: 60_000 });
  assert.equal(await page.locator('[data-row]').count(), rows, 'the rows stay');
  await page.click('#new a');
  assert.equal(await page.locator('[data-row]').count(), rows + 3);
  assert.deepEqual(page.problems, []);
  await page.context().close();
});

if (!isSample) for (const [name, run] of truth.steps({ lab, port, signedIn })) step(name, run);

// At the end: claims of the first engine are not on the second.
if (!isSample) for (const [name, run] of faults.steps({ lab, a, b, signedIn })) step(name, run);

/** A shop for two minutes: orders, some of them clicked twice, and two coupons whose outcome is unknown. */
async function traffic() {
  const end = Date.now() + 120_000;
  for (let number = 0; Date.now() < end; number++) {
    const contents = { order_id: `B-${number}` };
    const claim = await post(a, '/v1/claims', { operation: 'order.submit', contents });
    await post(a, `/v1/claims/${claim.global_id}/outcome`, { attempt: claim.attempt, outcome: 'success' });
    if (number % 4 === 0) await post(a, '/v1/claims', { operation: 'order.submit', contents });
    await sleep(20 + 20 * Math.sin(number / 200));
  }
  for (const coupon of ['AUTUMN-07', 'AUTUMN-12']) {
    const claim = await post(a, '/v1/claims', { operation: 'coupon.redeem', contents: { coupon } });
    await post(a, `/v1/claims/${claim.global_id}/outcome`, { attempt: claim.attempt, outcome: 'unknown' });
  }
}

async function screenshots() {
  mkdirSync(shots, { recursive: true });
  await traffic();
  for (let repeat = 0; repeat < 3; repeat++) await post(a, '/v1/claims', { operation: 'coupon.redeem', contents: { coupon: 'SPRING-25' } });
  for (const [name, path, colorScheme] of [['overview', '/console/', 'light'], ['claim', `/console/claims/default/${granted.global_id}`, 'dark']]) {
    const page = await signedIn(a, { colorScheme, viewport: { width: 1080, height: 620 } });
    await page.goto(a.console + path);
    await page.screenshot({ path: join(shots, `console-${name}.png`) });
    await page.context().close();
  }
}

try {
  if (shots) {
    await screenshots();
  } else {
    for (const [name, run] of steps) {
      const begin = Date.now();
      await run();
      console.log(`ok ${((Date.now() - begin) / 1000).toFixed(1)} s  ${name}`);
    }
  }
} catch (failure) {
  console.error(failure);
  process.exitCode = 1;
} finally {
  redis.kill('SIGCONT');
  await browser.close();
  lab.stop();
}
