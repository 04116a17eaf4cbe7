import assert from 'node:assert/strict';
import test from 'node:test';
import Pulsar from 'pulsar-client';
import { Geminga, NotDelivered, milliseconds } from './geminga.mjs';

Pulsar.Client.setLogHandler(() => {});

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
const kit = new Geminga({
  delayedDeliveryMinIndexCountPerBucket: 20,
  managedLedgerMaxEntriesPerLedger: 20,
  managedLedgerMinLedgerRolloverTimeMinutes: 0,
  delayedDeliveryTrackerFactoryClassName: 'org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory',
});

/** A test with a client, a shared subscription `app` and a producer of the topic `r`. */
function withClient(body, partitions) {
  return kit.test(async (broker) => {
    if (partitions) {
      await broker.ask('PUT', `/admin/v2/persistent/${broker.namespace}/r/partitions`, partitions);
    }
    const client = new Pulsar.Client({ serviceUrl: broker.serviceUrl });
    try {
      const consumer = await client.subscribe({
        topic: broker.topic('r'), subscription: 'app', subscriptionType: 'Shared',
      });
      const producer = await client.createProducer({ topic: broker.topic('r'), batchingEnabled: false });
      const send = (text, delayMs) => producer.send({ data: Buffer.from(text), deliverAfter: delayMs });
      const receive = async () => {
        const message = await consumer.receive(10_000);
        await consumer.acknowledge(message);
        return message.getData().toString();
      };
      await body({ broker, client, consumer, producer, send, receive });
    } finally {
      await client.close();
    }
  });
}

test('a month', withClient(async ({ broker, consumer, producer, receive }) => {
  await producer.send({ data: Buffer.from('renew'), deliverAfter: 30 * DAY_MS, properties: { for: 'ann' } });
  await broker.advance('29d');
  await assert.rejects(consumer.receive(200));
  const { data, properties } = await broker.peek('r', 'app');
  assert.deepEqual([data.toString(), properties], ['renew', { for: 'ann' }]);
  await assert.rejects(broker.assertDelivered('r', 'app', { timeoutSeconds: 0 }),
    /1 entries of r \/ app are not acknowledged, 1 of them not due yet; the broker's next message is due 20\d\d-/);
  await broker.advance('1d');
  assert.equal(await receive(), 'renew');
  await broker.assertDelivered('r', 'app');
  assert.equal(await broker.peek('r', 'app'), undefined);
}));

test('due order', withClient(async ({ broker, send, receive }) => {
  await send('year', 365 * DAY_MS);
  await send('month', 30 * DAY_MS);
  await send('soon', 2000);
  await broker.advance('366d');
  assert.deepEqual([await receive(), await receive(), await receive()], ['soon', 'month', 'year']);
}));

test('to the next', withClient(async ({ broker, send, receive }) => {
  const before = await broker.now();
  await send('later', 3 * DAY_MS);
  await broker.advanceToNext();
  assert.equal(await receive(), 'later');
  const moved = await broker.now() - before;
  assert.ok(moved >= 3 * DAY_MS && moved < 3 * DAY_MS + 60_000, `${moved}`);
}));

test('a chain, each sent when the one before is acknowledged', withClient(async ({ broker, consumer, send }) => {
  await send('0', HOUR_MS);
  const chain = (async () => {
    for (let number = 0; number < 5; number++) {
      const message = await consumer.receive(30_000);
      assert.equal(message.getData().toString(), String(number));
      await send(String(number + 1), HOUR_MS);
      await consumer.acknowledge(message);
    }
  })();
  await Promise.all([chain, broker.advance('5h30m', { untilAcknowledged: true })]);
}));

test('what is not acknowledged in time is said', withClient(async ({ broker, send }) => {
  await send('m', HOUR_MS);
  await assert.rejects(broker.advance('2h', { untilAcknowledged: true, timeoutSeconds: 0.1 }), NotDelivered);
}));

test('drain leaves what is not due', withClient(async ({ broker, send, receive }) => {
  await send('now', 0);
  await send('later', DAY_MS);
  assert.equal(await receive(), 'now');
  await broker.drain('r', 'app');
  assert.equal(await broker.backlog('r', 'app'), 1);
}));

test('a partitioned topic', withClient(async ({ broker, send, receive }) => {
  for (let number = 0; number < 9; number++) {
    await send(`m${number}`, DAY_MS);
  }
  assert.equal(await broker.backlog('r', 'app'), 9);
  await broker.drain('r', 'app');
  await broker.advance('1d');
  for (let number = 0; number < 9; number++) {
    await receive();
  }
  await broker.assertDelivered('r', 'app');
}, 3));

test('a lost bucket costs nothing', withClient(async ({ broker, send, receive }) => {
  const sent = Array.from({ length: 100 }, (_, number) => `m${number}`);
  await Promise.all(sent.map((text) => send(text, DAY_MS)));
  await broker.loseBucket('r', 'app');
  await broker.advance('2d');
  const found = new Set();
  while (found.size < 100) {
    found.add(await receive());
  }
  assert.deepEqual(found, new Set(sent));
  await broker.assertDelivered('r', 'app');
}));

test('a slow wire', withClient(async ({ broker, send, receive }) => {
  await broker.setFault({ place: 'wire', kind: 'latency', latencyMs: 50, command: 'SEND' });
  const beganMs = performance.now();
  await send('slow', 0);
  assert.ok(performance.now() - beganMs >= 50);
  await broker.clearFaults();
  assert.equal(await receive(), 'slow');
}));

// Twice: as the first thing after the move before, and after one more.
for (const turn of ['first', 'second']) {
  for (const [name, clock] of Object.entries({ "the machine's": async () => new Date(), "the broker's": (b) => b.now() })) {
    test(`a moment of ${name} clock, ${turn}`, withClient(async ({ broker, consumer, producer, receive }) => {
      const now = await broker.now();
      const moment = (await clock(broker)).getTime() + HOUR_MS;
      await producer.send({ data: Buffer.from('m'), deliverAt: moment });
      await broker.advanceTo(new Date(now.getTime() + 59 * 60_000));
      await assert.rejects(consumer.receive(200));
      await broker.advanceTo(new Date(now.getTime() + 61 * 60_000));
      assert.equal(await receive(), 'm');
      await broker.advance('400d');
    }));
  }
}

test("a moment of the machine's clock is none to advance to", withClient(async ({ broker }) => {
  await assert.rejects(broker.advanceTo(new Date(Date.now() + DAY_MS)), /Count from now\(\) of the broker/);
}));

test('a failed test says why, and nothing is left of it', async () => {
  const said = [];
  const print = console.error;
  console.error = (text) => said.push(text);
  let ended;
  try {
    await assert.rejects(kit.test(async (broker) => {
      ended = broker;
      await broker.ask('PUT', `/admin/v2/persistent/${broker.namespace}/parted/partitions`, 3);
      await broker.setFault({ place: 'wire', kind: 'latency', latencyMs: 1 });
      throw new Error('mine');
    })(), /mine/);
  } finally {
    console.error = print;
  }
  assert.match(said.join('\n'), /^the end of the broker's log:\n./);
  assert.equal(said.length, 1);
  assert.ok(!(await ended.ask('GET', '/admin/v2/namespaces/public')).includes(ended.namespace));
  assert.ok((await ended.ask('GET', '/geminga/faults')).every((rule) => rule.latencyMs !== 1));
});

test('lengths', () => {
  const lengths = {
    '250ms': 250, '2s': 2000, '1h30m': 5_400_000, '1.5h': 5_400_000, '2D': 172_800_000, '15min': 900_000, 30: 30_000,
  };
  for (const [text, ms] of Object.entries(lengths)) {
    assert.equal(milliseconds(text), ms, text);
  }
  for (const text of ['', 'soon', '5 fortnights', '1d later']) {
    assert.throws(() => milliseconds(text), RangeError, text);
  }
});
