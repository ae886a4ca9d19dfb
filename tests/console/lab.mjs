// Servers and a browser for the tests of the console: a Redis, gateways on it, and calls of their API.

import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export const TOKENS = { act: 'token_of_act_0123456789abcdef', view: 'token_of_view_0123456789abcdef' };

/** Waits until a condition holds. */
export async function until(what, condition, seconds = 30) {
  const end = Date.now() + seconds * 1000;
  while (!(await condition().catch(() => false))) {
    if (Date.now() > end) throw new Error(`not within ${seconds} s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

// Below the range of outgoing connections, one of which could take a port before its server has started. Browsers refuse 10080.
const PORTS = { first: 11_000, count: 21_000 };
let next = Math.floor(Math.random() * PORTS.count);

async function freePort() {
  for (;;) {
    const port = PORTS.first + (next++ % PORTS.count);
    const server = createServer();
    const isFree = await new Promise((resolve) => {
      server.once('error', () => resolve(false)).listen(port, '127.0.0.1', () => resolve(true));
    });
    if (!isFree) continue;
    await new Promise((resolve) => server.close(resolve));
    return port;
  }
}

const answers = (port) =>
  new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1', () => resolve(socket.end() && true)).on('error', () => resolve(false));
  });

/** A folder, and the processes that are stopped with it. */
export class Lab {
  folder = mkdtempSync(join(tmpdir(), 'oncegate-console-'));
  processes = [];

  start(program, args) {
    const child = spawn(program, args, { stdio: ['ignore', 'ignore', 'pipe'], cwd: this.folder });
    child.log = '';
    child.stderr.on('data', (piece) => (child.log += piece));
    this.processes.push(child);
    return child;
  }

  async redis() {
    const port = await freePort();
    const child = this.start('redis-server', ['--port', `${port}`, '--save', '', '--appendonly', 'no', '--dir', this.folder]);
    await until('redis-server listens', () => answers(port));
    return { port, child };
  }

  /** A gateway with operators and a proxy, on the chain `default` of these engines. */
  async gateway(name, engines) {
    const [api, admin] = [await freePort(), await freePort()];
    const digest = (token) => createHash('sha256').update(token).digest('hex');
    const tokens = Object.entries(TOKENS).map(([role, token]) => `${role} = { digest = "sha256:${digest(token)}", role = "${role}" }`);
    const urls = Object.entries(engines).map(([engine, url]) => `${engine} = "${url}"`);
    const chain = `engines = [${Object.keys(engines).map((engine) => `"${engine}"`)}]`;
    const proxy = await freePort();
    const route = ['[proxy]', `listen = "127.0.0.1:${proxy}"`, '[proxy.upstreams.orders]', 'urls = ["http://127.0.0.1:9"]'];
    route.push('[[proxy.routes]]', 'name = "orders.create"', 'app = "default"', 'path = "/orders"', 'methods = ["POST"]');
    route.push('upstream = "orders"', 'principal = ["authorization"]');
    const config = ['[admin.tokens]', ...tokens, '[engines]', ...urls, '[chains.default]', chain, ...route, ''].join('\n');
    const file = join(this.folder, `${name}.toml`);
    writeFileSync(file, config);
    const listen = ['--listen', `127.0.0.1:${api}`, '--admin-listen', `127.0.0.1:${admin}`];
    const args = ['serve', '--config', file, '--data-dir', join(this.folder, name), ...listen];
    return this.again({ name, engines, args, proxy: `http://127.0.0.1:${proxy}`, api: `http://127.0.0.1:${api}`, console: `http://127.0.0.1:${admin}` });
  }

  /** Starts a gateway again that has ended, with its folder and its addresses. */
  async again(gateway) {
    const child = this.start(process.env.ONCEGATE_BIN, gateway.args);
    await until(`${gateway.name} is in service: ${child.log}`, async () => (await fetch(`${gateway.console}/readyz`)).ok);
    return { ...gateway, child };
  }

  stop() {
    for (const child of this.processes) child.kill('SIGKILL');
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** Sends a JSON body to the API of a gateway. */
export async function post(gateway, path, body) {
  const answer = await fetch(gateway.api + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  return { status: answer.status, ...(await answer.json()) };
}
