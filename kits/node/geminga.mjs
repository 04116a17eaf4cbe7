/**
 * A Geminga broker for the tests of a file: copy this file into your project. It needs Node.js 18 or newer and no
 * package, and works with each runner, here with node:test:
 *
 *     import test from 'node:test';
 *     import { Geminga } from './geminga.mjs';
 *
 *     const kit = new Geminga();
 *
 *     test('a month', kit.test(async (broker) => {
 *       // subscribe and publish with broker.serviceUrl and broker.topic('reminders') ...
 *       await broker.advance('30d');
 *     }));
 *
 * The command `geminga` has to be on the path, or the environment variable GEMINGA_COMMAND names it
 * ("python3 -m geminga"). The broker has free ports, a virtual clock, and faults allowed. The first test starts it,
 * in less than half a second; it ends with the process, however that ends. Each test has a namespace of its own. The
 * clock is shared by the tests of the file, so let them run one after another; it begins 20 years ahead of the
 * machine's. A failed test prints the end of the broker's log.
 *
 * With GEMINGA_SERVICE_URL and GEMINGA_WEB_URL in the environment it starts nothing and uses the broker there, which
 * needs a virtual clock and, for faults, --chaos; beyond loopback also GEMINGA_OPERATOR_TOKEN, the broker's. The
 * settings are those it was started with then, and files share its clock: `node --test --test-concurrency=1`.
 */
import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { mkdtempSync, openSync, closeSync, readFileSync, rmSync } from 'node:fs';
import { request } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';

const LOG_SHOWN = 4000;
/** 20 years, to the same day of the week: so a moment of the broker's clock is never one of the machine's. */
const AHEAD_MS = 1044 * 7 * 86_400_000;
const UNITS_MS = {
  ms: 1, s: 1000, m: 60_000, min: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000, y: 31_536_000_000,
};

/** What was published and is not acknowledged. */
export class NotDelivered extends Error {}

/** A broker for several tests. */
export class Geminga {
  #settings;
  #started;
  #directory;
  #process;
  #atExit = () => {
    this.#process.kill('SIGKILL');
    rmSync(this.#directory, { recursive: true, force: true, maxRetries: 3 });
  };

  /** Settings are keys of broker.conf: `{ ttlDurationDefaultInSeconds: 864000 }`. */
  constructor(settings = {}) {
    this.#settings = settings;
  }

  /** A function for the runner: a test with a `Broker` as its first argument, and behind it what the runner gives. */
  test(body) {
    return async (...given) => {
      const broker = await this.begin();
      try {
        return await body(broker, ...given);
      } catch (error) {
        console.error(`the end of the broker's log:\n${this.logEnd()}`);
        throw error;
      } finally {
        await broker.end();
      }
    };
  }

  /** A namespace for one test; its `end` has to be awaited. For runners' hooks; `test` does both. */
  async begin() {
    this.#started ??= this.#start();
    const { serviceUrl, webUrl } = await this.#started;
    // A broker that goes on running has the namespaces of earlier runs.
    const broker = new Broker(serviceUrl, webUrl, `public/test-${randomUUID()}`);
    await broker.ask('PUT', `/admin/v2/namespaces/${broker.namespace}`, {});
    return broker;
  }

  logEnd() {
    return this.#directory ? readFileSync(join(this.#directory, 'log'), 'utf8').slice(-LOG_SHOWN) : 'where it was started';
  }

  /** Stops the broker before the process ends. */
  async stop() {
    if (this.#process && this.#process.exitCode === null) {
      const ended = new Promise((resolve) => this.#process.once('exit', resolve));
      this.#process.ref();
      this.#process.stdin.end();
      await ended;
      process.off('exit', this.#atExit);
      rmSync(this.#directory, { recursive: true, force: true });
    }
  }

  async #start() {
    const { GEMINGA_SERVICE_URL: given, GEMINGA_WEB_URL: givenWeb } = process.env;
    if (!given !== !givenWeb) {
      throw new Error('set both GEMINGA_SERVICE_URL and GEMINGA_WEB_URL, or neither');
    }
    const addresses = given ? { serviceUrl: given, webUrl: givenWeb.replace(/\/$/, '') } : await this.#run();
    const broker = new Broker(addresses.serviceUrl, addresses.webUrl, '');
    const shown = await broker.ask('GET', '/geminga/clock');
    const missingMs = AHEAD_MS - (shown.now_ms - shown.wall_ms);
    if (missingMs > 0) {
      await broker.ask('POST', '/geminga/clock', { ms: missingMs });
    }
    return addresses;
  }

  async #run() {
    this.#directory = mkdtempSync(join(tmpdir(), 'geminga-'));
    const [command, ...first] = (process.env.GEMINGA_COMMAND ?? 'geminga').trim().split(/\s+/);
    const settings = { isDelayedDeliveryDeliverAtTimeStrict: true, ...this.#settings };
    const log = openSync(join(this.#directory, 'log'), 'w');
    const child = spawn(command, [
      ...first, 'standalone', '--port', '0', '--web-port', '0', '--clock', 'virtual', '--chaos', '--stop-with-stdin',
      '--data-dir', join(this.#directory, 'data'),
      ...Object.entries(settings).flatMap(([key, value]) => ['--set', `${key}=${value}`]),
    ], { stdio: ['pipe', 'pipe', log] });
    closeSync(log);
    this.#process = child;
    process.on('exit', this.#atExit);
    const line = await new Promise((resolve, reject) => {
      let text = '';
      child.once('error', (error) => reject(
        new Error(`the command geminga cannot be run (put it on the path, or set GEMINGA_COMMAND): ${error.message}`)));
      child.once('close', () => reject(new Error(`the broker ended before it was ready:\n${this.logEnd()}`)));
      child.stdout.setEncoding('utf8').on('data', (part) => {
        text += part;
        if (text.includes('\n')) {
          resolve(text);
        }
      });
    });
    // Or the process of the tests would never end.
    child.unref();
    child.stdin.unref();
    child.stdout.unref();
    const ready = JSON.parse(line);
    return { serviceUrl: ready.binary, webUrl: ready.web };
  }
}

/** What one test may do to its topics, and to the clock. Topics are named by their last part: `'orders'`. */
export class Broker {
  #rules = [];

  constructor(serviceUrl, webUrl, namespace) {
    /** `pulsar://host:port`, for clients. */
    this.serviceUrl = serviceUrl;
    /** `http://host:port`, for the admin API and metrics. */
    this.webUrl = webUrl;
    this.namespace = namespace;
  }

  /** The full name of a topic that no other test uses. */
  topic(name) {
    return `persistent://${this.namespace}/${name}`;
  }

  // -- time ---------------------------------------------------------------------------------------------------

  /** What the broker's clock shows, as a `Date`. */
  async now() {
    return new Date((await this.ask('GET', '/geminga/clock')).now_ms);
  }

  /**
   * Moves the clock by a length such as '30d' or '1h30m'; a number is seconds. On return all that fell due has
   * happened, in due order: each due message is with its consumer, or waits for one. With `untilAcknowledged` each
   * due time waits until consumers have acknowledged what they got.
   */
  async advance(length, options) {
    return this.#move({ ms: milliseconds(length) }, options);
  }

  /** Moves the clock to a moment of it, a `Date`, which is none of the machine's clock. */
  async advanceTo(moment, options) {
    const now = await this.now();
    if (moment < now) {
      throw new RangeError(`${moment.toISOString()} is in the past: the broker's clock shows ${now.toISOString()} ` +
        "and never goes back. Count from now() of the broker, not from the machine's clock");
    }
    return this.#move({ to_ms: moment.getTime() }, options);
  }

  /** Moves the clock to when the next delayed message is due, a TTL ends or something unused is deleted. */
  async advanceToNext(options) {
    return this.#move({ next: true }, options);
  }

  async #move(where, { untilAcknowledged = false, timeoutSeconds = 30 } = {}) {
    const moved = await this.ask('POST', '/geminga/clock', {
      ...where, wait: untilAcknowledged ? 'acknowledged' : 'dispatched', wait_seconds: timeoutSeconds,
    });
    if (moved.unacknowledged.length) {
      throw new NotDelivered('the clock was moved, but not acknowledged within ' +
        `${timeoutSeconds} s of a due time: ${moved.unacknowledged.join(', ')}`);
    }
    return moved;
  }

  // -- faults -------------------------------------------------------------------------------------------------

  /** Deletes a bucket of the delayed index, and has the broker rebuild it. */
  async loseBucket(topic, subscription) {
    const path = `/geminga/delayed/persistent/${this.namespace}/${encodeURIComponent(topic)}`;
    return this.ask('POST', `${path}/subscription/${encodeURIComponent(subscription)}/lose-bucket`, {});
  }

  /** Puts a rule of docs/faults.md in force until the test ends: `{ place: 'wire', kind: 'latency', latencyMs: 50 }`. */
  async setFault(rule) {
    this.#rules.push((await this.ask('POST', '/geminga/faults', rule)).rule.id);
  }

  /** Ends the rules of this test. */
  async clearFaults() {
    while (this.#rules.length) {
      await this.ask('DELETE', `/geminga/faults/rules/${this.#rules.shift()}`);
    }
  }

  // -- what is left -------------------------------------------------------------------------------------------

  /** Pulsar's statistics of a topic, over all partitions if it has any. */
  async stats(topic) {
    const { partitions } = await this.ask('GET', `${this.#path(topic)}/partitions`);
    return this.ask('GET', this.#path(topic) + (partitions ? '/partitioned-stats?perPartition=false' : '/stats'));
  }

  /** Entries of a subscription that are not acknowledged, delayed ones too; a batch is one. */
  async backlog(topic, subscription) {
    return (await this.#subscription(topic, subscription)).msgBacklog;
  }

  /** The entry of the backlog with that number from 1, or undefined. Nothing is delivered or acknowledged. */
  async peek(topic, subscription, number = 1) {
    const path = `${this.#path(topic)}/subscription/${encodeURIComponent(subscription)}/position/${number}`;
    const { status, headers, body } = await this.#send('GET', path);
    if (status >= 300) {
      return undefined;
    }
    const properties = JSON.parse(headers['x-pulsar-property'] ?? '{}');
    return { messageId: headers['x-pulsar-message-id'], data: body, properties };
  }

  /** Waits until all that may be delivered now is acknowledged; messages that are not due yet do not count. */
  async drain(topic, subscription, { timeoutSeconds = 30 } = {}) {
    await this.#untilNothing(topic, subscription, timeoutSeconds, ({ msgBacklog, msgDelayed, unackedMessages }) =>
      msgBacklog > msgDelayed || unackedMessages > 0);
  }

  /** Fails unless all that was published is acknowledged. */
  async assertDelivered(topic, subscription, { timeoutSeconds = 5 } = {}) {
    await this.#untilNothing(topic, subscription, timeoutSeconds, ({ msgBacklog }) => msgBacklog > 0);
  }

  async #untilNothing(topic, subscription, timeoutSeconds, waits) {
    const endsMs = performance.now() + timeoutSeconds * 1000;
    let found;
    while (waits(found = await this.#subscription(topic, subscription))) {
      if (performance.now() >= endsMs) {
        const { next_due_ms: dueMs } = await this.ask('GET', '/geminga/clock');
        throw new NotDelivered(`not within ${timeoutSeconds} s: ${found.msgBacklog} entries of ${topic} / ` +
          `${subscription} are not acknowledged, ${found.msgDelayed} of them not due yet` +
          (dueMs === null ? '' : `; the broker's next message is due ${new Date(dueMs).toISOString()}`));
      }
      await pause(10);
    }
  }

  async #subscription(topic, subscription) {
    const found = (await this.stats(topic)).subscriptions[subscription];
    if (!found) {
      throw new NotDelivered(`${topic} has no subscription ${subscription}`);
    }
    return found;
  }

  #path(topic) {
    return `/admin/v2/persistent/${this.namespace}/${encodeURIComponent(topic)}`;
  }

  /** Ends the faults of this test and deletes its topics, connected clients or not. */
  async end() {
    while (this.#rules.length) {
      await this.#quietly('DELETE', `/geminga/faults/rules/${this.#rules.shift()}`);
    }
    // The partitions of a topic go with it, so they are not in the second list.
    for (const [list, what] of [['/partitioned', '/partitions'], ['', '']]) {
      for (const topic of await this.#quietly('GET', `/admin/v2/persistent/${this.namespace}${list}`) ?? []) {
        const name = topic.slice(this.topic('').length);
        await this.#quietly('DELETE', `${this.#path(name)}${what}?force=true`);
      }
    }
    await this.#quietly('DELETE', `/admin/v2/namespaces/${this.namespace}`);
  }

  /** The test may have killed the broker, and what it found is to be shown. */
  async #quietly(method, path) {
    try {
      return await this.ask(method, path);
    } catch (error) {
      console.error(`after the test: ${error.message}`);
      return undefined;
    }
  }

  // -- HTTP ---------------------------------------------------------------------------------------------------

  /** The answer's JSON, if it has any. */
  async ask(method, path, body) {
    const { status, body: answer } = await this.#send(method, path, body);
    if (status >= 300) {
      throw new Error(`${method} ${path}: ${status}: ${answer}`);
    }
    return answer.length ? JSON.parse(answer) : undefined;
  }

  /** Without `fetch`, which gives up after five minutes: a move of the clock answers when it is over. */
  #send(method, path, body) {
    const headers = { 'Content-Type': 'application/json' };
    if (process.env.GEMINGA_OPERATOR_TOKEN && path.startsWith('/geminga/')) {
      headers.Authorization = `Bearer ${process.env.GEMINGA_OPERATOR_TOKEN}`;
    }
    return new Promise((resolve, reject) => {
      const sent = request(this.webUrl + path, { method, headers }, (response) => {
        const parts = [];
        response.on('data', (part) => parts.push(part)).on('error', reject).on('end', () =>
          resolve({ status: response.statusCode, headers: response.headers, body: Buffer.concat(parts) }));
      });
      sent.on('error', reject).end(body === undefined ? undefined : JSON.stringify(body));
    });
  }
}

/** Takes what geminga's commands take: 250ms, 1.5h, 1h30m, 2d, 1w; a number without a unit is seconds. */
export function milliseconds(length) {
  let text = String(length).trim();
  if (/^(\d+\.?\d*|\.\d+)$/.test(text)) {
    text += 's';
  }
  const part = /(\d+\.?\d*|\.\d+)\s*(ms|s|min|m|h|d|w|y)\s*/gi;
  if (!text || text.replace(part, '')) {
    throw new RangeError(`expected a duration such as 250ms, 2s, 90m, 1h30m, 2d or 1w, not ${length}`);
  }
  const parts = [...text.matchAll(part)].map(([, number, unit]) => number * UNITS_MS[unit.toLowerCase()]);
  return Math.round(parts.reduce((sum, ms) => sum + ms, 0));
}
