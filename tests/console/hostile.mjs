// Text of callers and operators that would run, or change the order of a line, if a page showed it as it is. And other sites that
// put the console into a frame.

import assert from 'node:assert/strict';
import { createServer } from 'node:http';

import { post, until } from './lab.mjs';

const RUN = 'document.title=1';

const MARKUP = [
  `<script>${RUN}</script>`,
  `</script><script>${RUN}</script>`,
  `</pre><script>${RUN}</script>`,
  `</title><script>${RUN}</script>`,
  `</textarea><script>${RUN}</script>`,
  `<!--><script>${RUN}</script>-->`,
  `]]><script>${RUN}</script>`,
  `<img src=x onerror="${RUN}">`,
  `"><img src=x onerror=${RUN}>`,
  `'><img src=x onerror=${RUN}>`,
  '`><img src=x onerror=1>',
  `<svg onload=${RUN}>`,
  `<svg><script>${RUN}</script></svg>`,
  `<svg><animate onbegin=${RUN} attributeName=x dur=1s>`,
  `<math><mtext><img src=x onerror=${RUN}></math>`,
  `<body onload=${RUN}>`,
  `<details open ontoggle=${RUN}>`,
  `<input autofocus onfocus=${RUN}>`,
  `<video src=x onerror=${RUN}>`,
  `<marquee onstart=${RUN}>`,
  `<iframe srcdoc="<script>parent.${RUN}</script>">`,
  '<iframe src=//evil.example>',
  '<object data=//evil.example>',
  '<embed src=//evil.example>',
  '<link rel=stylesheet href=//evil.example>',
  '<style>*{display:none}</style>',
  '<base href=//evil.example>',
  '<meta http-equiv=refresh content="0;url=//evil.example">',
  '<form action=//evil.example><button>send</button></form>',
  `<a href="javascript:${RUN}">a</a>`,
  `javascript:${RUN}`,
  `" onmouseover="${RUN}`,
  `' onmouseover='${RUN}`,
  '" style="display:none',
  '&lt;script&gt;',
  '&#60;script&#62;',
  '&quot;&gt;&amp;amp;',
  '%3Cscript%3E',
  '\\u003cscript\\u003e',
  '{{7*7}}${7*7}<%= 7*7 %>#{7*7}',
  '<template><script></script></template>',
  '<noscript><p title="</noscript><img src=x onerror=1>">',
  '<xmp><img src=x></xmp>',
  '<plaintext>',
  '<table><tr><td>',
  '</main></body></html>',
  '\u{1f}\u{7f}<b>',
  'https://evil.example/?a=b&c=d',
  "'; DROP TABLE claims; --",
  '../../etc/passwd',
];

/** Characters without a width, of direction, of control, and ends of lines. */
const INVISIBLE = [
  ...Array.from({ length: 32 }, (_, code) => code),
  ...Array.from({ length: 33 }, (_, code) => 0x7f + code),
  ...[0xad, 0x34f, 0x61c, 0x115f, 0x1160, 0x17b4, 0x17b5, 0x180e, 0x2028, 0x2029, 0x3164, 0xfeff, 0xffa0],
  ...Array.from({ length: 5 }, (_, code) => 0x200b + code),
  ...Array.from({ length: 5 }, (_, code) => 0x202a + code),
  ...Array.from({ length: 16 }, (_, code) => 0x2060 + code),
  ...[0xfff9, 0xfffa, 0xfffb, 0xe0001, 0xe0020, 0xe007f],
];

const LONG = ['x'.repeat(30_000), '\u00a0'.repeat(5000), 'مرحبا '.repeat(500), '漢'.repeat(5000), 'a\u0301'.repeat(3000), 'Z\u0351'.repeat(2000)];

/** Every text, with marks before and behind it. */
export function corpus() {
  const invisible = INVISIBLE.map((code) => `a${String.fromCodePoint(code)}b`);
  const turned = MARKUP.slice(0, 34).map((text) => `\u202e${text}\u200b\u2028`);
  const all = [...MARKUP, ...invisible, ...turned, ...LONG];
  assert.ok(all.length >= 200, `${all.length} texts`);
  return all.map((text, number) => ({ number, text: `m${number}m${text}n${number}n` }));
}

const deep = (text) => Array.from({ length: 28 }).reduce((inner) => ({ a: [inner] }.a), { [text]: text });

/** Looks at an open page: nothing ran, nothing was added, nothing is invisible. */
async function check(page, what) {
  const found = await page.evaluate(() => ({
    title: document.title,
    added: document.querySelectorAll('img, iframe, object, embed, base, style, video, math, marquee, template, [onload], [onerror], [onclick], [style]').length,
    scripts: document.scripts.length,
    metas: document.querySelectorAll('meta[http-equiv]').length,
    away: [...document.querySelectorAll('[href], [action], [src]')].map((of) => of.getAttribute('href') ?? of.getAttribute('action') ?? of.getAttribute('src')).filter((to) => !/^([/?#]|$)/.test(to) || to.startsWith('//')),
    wide: document.documentElement.scrollWidth > innerWidth,
    text: document.body.textContent,
  }));
  assert.notEqual(found.title, '1', what);
  assert.deepEqual([found.added, found.scripts, found.metas, found.away, found.wide], [0, 1, 0, [], false], what);
  const invisible = /[\p{Cf}\p{Zl}\p{Zp}\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0]|[\u0000-\u0009\u000b-\u001f\u007f-\u009f]/u.exec(found.text);
  assert.equal(invisible && invisible[0].codePointAt(0).toString(16), null, what);
  assert.deepEqual(page.problems, [], what);
  return found.text;
}

export function steps({ a, signedIn, isSample }) {
  const texts = corpus().filter(({ number }) => !isSample || number % 20 === 0);

  const ofCallers = async () => {
    const page = await signedIn(a);
    page.on('dialog', (dialog) => page.problems.push(dialog.message()));
    for (const { number, text } of texts) {
      const contents = number % 7 === 0 && text.length < 2000 ? deep(text) : { [text.slice(0, 900)]: text };
      const claim = await post(a, '/v1/claims', { operation: 'hostile', contents, fingerprint: text });
      assert.equal(claim.status, 201, text);
      await post(a, `/v1/claims/${claim.global_id}/outcome`, { attempt: claim.attempt, outcome: 'success', result: { [text]: [text] } });
      await page.goto(`${a.console}/console/claims/default/${claim.global_id}`);
      const shown = await check(page, JSON.stringify(text.slice(0, 100)));
      assert.ok(shown.includes(`m${number}m`), `${number} is shown`);
      if (text.length < 500) assert.ok(shown.includes(`n${number}n`), `${number} is shown whole`);
    }
    await page.context().close();
  };

  const ofOperators = async () => {
    const page = await signedIn(a);
    // One line, and no invisible characters: others are refused by the form, and shown in its error.
    const some = texts.filter(({ number, text }) => text.length < 300 && number % 3 === 0);
    for (const { number, text } of some) {
      const claim = await post(a, '/v1/claims', { operation: 'hostile.reason', contents: { number, unique: `${Math.random()}` } });
      await page.goto(`${a.console}/console/claims/default/${claim.global_id}/release`);
      await page.fill('#reason', text.replace(/[\r\n]/g, ' '));
      await page.click('main button');
      await check(page, JSON.stringify(text));
    }
    await page.goto(`${a.console}/console/audit?action=claim.release`);
    await check(page, 'the audit trail');
    await page.context().close();
  };

  const lists = async () => {
    const unknown = texts.slice(0, 60);
    const items = unknown.map(({ text }) => ({ operation: 'hostile.unknown', contents: { [text.slice(0, 60)]: text } }));
    const granted = (await post(a, '/v1/claims/batch', { items })).items;
    const outcomes = granted.map(({ global_id, attempt }) => ({ global_id, attempt, outcome: 'unknown' }));
    await post(a, '/v1/outcomes/batch', { items: outcomes });
    const page = await signedIn(a);
    await page.goto(`${a.console}/console/attention?kind=unknown`);
    await check(page, 'the list of unknown outcomes');
    await post(a, '/v1/outcomes/batch', { items: outcomes.map((outcome) => ({ ...outcome, outcome: 'failure' })) });
    await page.context().close();
  };

  const frames = async () => {
    const page = await signedIn(a);
    const target = `${a.console}/console/`;
    const site = createServer((request, answer) => {
      answer.setHeader('content-type', 'text/html');
      const tags = { '/iframe': `<iframe src="${target}"></iframe>`, '/object': `<object data="${target}"></object>`, '/embed': `<embed src="${target}">` };
      answer.end(`<p>other</p>${tags[request.url] ?? ''}`);
    }).listen(0, '127.0.0.1');
    await until('the other site listens', async () => site.listening);
    // The first is another site, the second another port of the same: its frame would have the session's cookie.
    for (const host of ['localhost', '127.0.0.1']) {
      for (const tag of isSample ? ['iframe'] : ['iframe', 'object', 'embed']) {
        await page.goto(`http://${host}:${site.address().port}/${tag}`);
        await page.waitForTimeout(500);
        for (const frame of page.frames().slice(1)) {
          assert.equal(await frame.locator('nav, #token').count(), 0, `${tag} at ${host}: ${frame.url()}`);
        }
      }
    }
    await page.goto(target);
    assert.ok(await page.locator('nav').count(), 'the session is still there');
    site.close();
    await page.context().close();
  };

  const further = [
    ['nor do the reasons of operators', ofOperators],
    ['nor do lists of many', lists],
  ];
  return [
    [`${texts.length} texts of callers are shown, and none runs, adds to a page or turns a line`, ofCallers],
    ...(isSample ? [] : further),
    ['no other site shows the console in a frame', frames],
  ];
}
