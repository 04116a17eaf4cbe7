"""Delayed messages whose index is kept in buckets on the bookie: restarts, kills, and buckets that break."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest
from pulsar import ConsumerType

from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import ROOT, BrokerProcess
from tests.e2e.waiting import assert_quiet, eventually, now_ms, payloads, receive_available, receive_count

pytestmark = pytest.mark.geminga_only
Make = Callable[..., pulsar.Client]
SETTINGS = {
    "delayedDeliveryTrackerFactoryClassName": "org.apache.pulsar.broker.delayed."
    "BucketDelayedDeliveryTrackerFactory",
    "isDelayedDeliveryDeliverAtTimeStrict": "true",
    "delayedDeliveryMinIndexCountPerBucket": "50",
    "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds": "1",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "10",
    "delayedDeliveryMaxNumBuckets": "10",
    "managedLedgerMaxEntriesPerLedger": "50",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
"""Pulsar's own tests of the bucket tracker use these sizes."""
BOTH = pytest.mark.parametrize("process", ["own", "shared"], indirect=True, scope="module")
"""An index for each subscription, and one that a topic's share."""
DAMAGES = ["lose", "truncate", "corrupt"]
FAR_MS = 3_600_000


@pytest.fixture(scope="module")
def process(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    shared = {"delayedDeliverySharedIndexEnabled": str(request.param == "shared").lower()}
    data_dir = tmp_path_factory.mktemp("buckets") / "data"
    with BrokerProcess(data_dir, settings=SETTINGS | shared, arguments=["--chaos"]) as process:
        yield process


@pytest.fixture
def web(process: BrokerProcess) -> Admin:
    return Admin(process.endpoints.web_url)


@pytest.fixture
def client(process: BrokerProcess, make_client: Make) -> pulsar.Client:
    return make_client(process.endpoints.service_url)


def delayed(web: Admin, topic: str, action: str = "", body: Any = None) -> Any:
    path = f"/geminga/delayed/{topic_path(topic)}/subscription/s{action}"
    answer = web.get(path) if body is None else web.post(path, body)
    assert answer.status in (200, 204), answer
    return answer.json() if answer.body else None


def waiting(web: Admin, topic: str) -> int:
    return int(web.subscription(topic, "s")["msgDelayed"])


def publish(producer: pulsar.Producer, due_ms: list[int]) -> list[int]:
    """Numbered messages with these due times; the same times."""
    results = []
    for number, at_ms in enumerate(due_ms):
        producer.send_async(b"%d" % number, lambda result, _: results.append(result), deliver_at=at_ms)
        # A client refuses what comes while 1,000 wait for their receipts, as they do on a slow disk.
        if number % 500 == 499:
            producer.flush()
    producer.flush()
    assert results == [pulsar.Result.Ok] * len(due_ms)
    return due_ms


def _settled(web: Admin, topic: str) -> bool:
    """Whether no bucket is to be sealed or merged any more.

    A part of full size is sealed without another message, so a listing taken before that changes by itself:
    it may be one bucket too many, and all are merged. To be asked where the last part stays well below the 50
    of a full one, also where rows that are read again are cut off at 55.
    """
    rows = delayed(web, topic, "/buckets")
    growing = sum(row["messages"] for row in rows if row["state"] == "growing")
    return {row["state"] for row in rows} <= {"sealed", "growing"} and growing < 50


def assert_never_early(messages: list[tuple[pulsar.Message, int]], due_ms: list[int]) -> None:
    for message, at_ms in messages:
        early_by_ms = due_ms[int(message.data())] - at_ms
        assert early_by_ms <= 0, f"{message.data()!r} came {early_by_ms} ms early"


def receive_timed(consumer: pulsar.Consumer, count: int, *, timeout_ms: int = 15_000) -> list[Any]:
    found = []
    for _ in range(count):
        message = consumer.receive(timeout_ms)
        found.append((message, now_ms()))
        consumer.acknowledge(message)
    return found


def buckets(web: Admin, topic: str) -> list[Any]:
    return [bucket for bucket in delayed(web, topic, "/buckets") if bucket["ledgerId"] is not None]


def bucket_ledgers(process: BrokerProcess) -> set[int]:
    """Ledgers on the bookie; the broker is stopped for it and started again."""
    assert process.stop() == 0
    command = [sys.executable, "-m", "geminga", "bookie", "ledgers", "--data-dir", str(process.data_dir)]
    listed = subprocess.run([*command, "--json"], capture_output=True, check=True, text=True, cwd=ROOT)
    process.start()
    ledgers = map(json.loads, listed.stdout.splitlines())
    return {ledger["ledger"] for ledger in ledgers if ledger["state"] != "deleted"}


@BOTH
def test_none_comes_early_and_the_buckets_go(client: pulsar.Client, web: Admin, topic: str) -> None:
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    start_ms = now_ms()
    chance = random.Random(1)
    due = [start_ms + chance.randrange(1200, 2400) for _ in range(400)]
    publish(client.create_producer(topic), due)
    eventually(lambda: buckets(web, topic))
    assert_never_early(receive_timed(consumer, 400), due)
    assert_quiet(consumer)
    eventually(lambda: not buckets(web, topic))
    assert waiting(web, topic) == 0


@pytest.mark.parametrize(
    ("process", "how", "damages"),
    [
        ("own", "stopped", []),
        ("own", "killed", DAMAGES),
        ("shared", "killed", []),
        ("shared", "stopped", DAMAGES),
    ],
    indirect=["process"],
    scope="module",
)
def test_a_restart_in_the_middle_loses_nothing(
    process: BrokerProcess, make_client: Make, web: Admin, topic: str, how: str, damages: list[str]
) -> None:
    """Whatever is left of three of the buckets."""
    consumer = make_client(process.endpoints.service_url).subscribe(
        topic, "s", ConsumerType.Shared, receiver_queue_size=10
    )
    start_ms = now_ms()
    chance = random.Random(2)
    due = [start_ms + chance.randrange(1200, 3200) for _ in range(400)]
    publish(make_client(process.endpoints.service_url).create_producer(topic), due)
    eventually(lambda: waiting(web, topic) > 300)
    stored = eventually(lambda: (found := buckets(web, topic))[3:] and found)
    early = receive_timed(consumer, 20)
    assert_never_early(early, due)
    acked = {int(message.data()) for message, _ in early}
    eventually(lambda: web.backlog(topic, "s") == 380)
    for bucket, damage in zip(stored, damages, strict=False):
        delayed(web, topic, f"/{damage}-bucket", {"ledgerId": bucket["ledgerId"], "quietly": True})
    if how == "killed":
        process.kill()
    else:
        assert process.stop() == 0
    process.start()
    found: list[int] = []
    while len(acked.union(found)) < 400:
        message = consumer.receive(15_000)
        assert now_ms() >= due[int(message.data())], "never early"
        found.append(int(message.data()))
        consumer.acknowledge(message)
    found += [int(message.data()) for message in receive_available(consumer)]
    if how == "stopped":
        # What was acknowledged before an orderly stop does not come again.
        assert not acked.intersection(found)
    assert len(found) - len(set(found)) <= 10, "only what lay in the consumer's queue"
    eventually(lambda: web.backlog(topic, "s") == 0)


@BOTH
def test_buckets_that_break_while_running_cost_nothing(client: pulsar.Client, web: Admin, topic: str) -> None:
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    start_ms = now_ms()
    due = [start_ms + 61_500 + 7 * n if n < 200 else start_ms + 1200 + 2 * n for n in range(350)]
    publish(client.create_producer(topic), due)
    stored = eventually(lambda: (found := buckets(web, topic))[3:] and found)
    for bucket, damage in zip(stored, DAMAGES, strict=False):
        delayed(web, topic, f"/{damage}-bucket", {"ledgerId": bucket["ledgerId"], "quietly": True})
    messages = receive_timed(consumer, 150)
    assert_never_early(messages, due)
    # Only when its first segment is loaded, a minute ahead of its time, the damage can be found.
    eventually(lambda: web.subscription(topic, "s")["msgDelayed"] == 200)
    eventually(lambda: not {b["ledgerId"] for b in stored[:3]} & {b["ledgerId"] for b in buckets(web, topic)})
    eventually(lambda: waiting(web, topic) == 200)
    assert {int(m.data()) for m, _ in messages} == set(range(200, 350))
    assert_quiet(consumer)


@BOTH
def test_a_new_start_knows_what_waits_and_reads_it_once(
    process: BrokerProcess, make_client: Make, web: Admin, topic: str
) -> None:
    """As Pulsar's testBucketDelayedDeliveryWithAllConsumersDisconnecting."""
    client = make_client(process.endpoints.service_url)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    due = [now_ms() + FAR_MS + n for n in range(1025)]
    publish(client.create_producer(topic), due)
    eventually(
        lambda: waiting(web, topic) == 1025 and len(buckets(web, topic)) <= 10 and _settled(web, topic)
    )
    consumer.close()
    eventually(lambda: not web.subscription(topic, "s")["consumers"])
    before = [(b["startLedger"], b["endLedger"], b["ledgerId"]) for b in buckets(web, topic)]
    again = client.subscribe(topic, "s", ConsumerType.Shared)
    assert_quiet(again)
    assert waiting(web, topic) == 1025
    after = [(b["startLedger"], b["endLedger"], b["ledgerId"]) for b in buckets(web, topic)]
    assert after == before
    process.kill()
    process.start()
    eventually(lambda: waiting(web, topic) == 1025)
    assert_quiet(again)
    assert web.backlog(topic, "s") == 1025


@BOTH
def test_buckets_go_with_what_they_are_for(
    process: BrokerProcess, client: pulsar.Client, web: Admin, topic: str
) -> None:
    """As Pulsar's testUnsubscribe, testDelete and testClearDelayedMessagesWhenClearBacklog."""
    ends = ("unsubscribe", "delete-topic", "skip-all", "seek")
    topics = {end: f"{topic}-{end}" for end in ends}
    consumers = {end: client.subscribe(name, "s", ConsumerType.Shared) for end, name in topics.items()}
    producers = {end: client.create_producer(name) for end, name in topics.items()}
    for producer in producers.values():
        publish(producer, [now_ms() + FAR_MS] * 120)
    ledgers: set[int] = set()
    for name in topics.values():
        ledgers |= eventually(lambda name=name: {bucket["ledgerId"] for bucket in buckets(web, name)})

    consumers["unsubscribe"].unsubscribe()
    consumers["delete-topic"].close()
    producers["delete-topic"].close()
    assert web.delete(f"/admin/v2/{topic_path(topics['delete-topic'])}?force=true").status == 204
    skipped = topic_path(topics["skip-all"])
    assert web.post(f"/admin/v2/{skipped}/subscription/s/skip_all").status == 204
    consumers["seek"].seek(pulsar.MessageId.latest)
    for end in ("skip-all", "seek"):
        eventually(lambda end=end: waiting(web, topics[end]) == 0)

    def are_gone() -> bool:
        """What the stop leaves half done the next load of the topic, or the next start, finishes."""
        for end in ("skip-all", "seek"):
            waiting(web, topics[end])
        return not ledgers & bucket_ledgers(process)

    eventually(are_gone, 30)


@BOTH
def test_new_partitions_begin_without_what_waits_on_the_others(
    client: pulsar.Client, web: Admin, topic: str
) -> None:
    """As Pulsar's testIncrementPartitionsDoesNotCopyBucketDelayedDeliveryState."""
    web.create_partitions(topic, 1)
    first, second = f"{topic}-partition-0", f"{topic}-partition-1"
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(first)
    publish(producer, [now_ms() + FAR_MS] * 120)
    eventually(lambda: buckets(web, first))
    assert web.post(f"/admin/v2/{topic_path(topic)}/partitions", 2).status == 204
    consumer.close()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)

    def stored(name: str) -> list[str]:
        """What names a bucket: properties of the cursor, or of the managed ledger."""
        answer = web.get(f"/admin/v2/{topic_path(name)}/internalStats").json()
        return re.findall("pulsar.internal.delayed.bucket_[0-9_]+", json.dumps(answer))

    assert (waiting(web, first), waiting(web, second)) == (120, 0)
    assert buckets(web, first)
    assert not [bucket for bucket in delayed(web, second, "/buckets") if bucket["ledgerId"] is not None]
    assert stored(first)
    assert not stored(second)
    other = client.create_producer(second)
    publish(other, [0, now_ms() + 300])
    assert sorted(payloads(receive_count(consumer, 2))) == [b"0", b"1"]


@BOTH
def test_undelayed_messages_do_not_wait_for_delayed_ones(
    client: pulsar.Client, web: Admin, topic: str
) -> None:
    """As Pulsar's testInterleavedMessages."""
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    due_ms = now_ms() + 1500
    for number in range(100):
        producer.send_async(b"delayed-%d" % number, lambda *_: None, deliver_at=due_ms)
        producer.send_async(b"plain-%d" % number, lambda *_: None)
    producer.flush()
    assert payloads(receive_count(consumer, 100)) == [b"plain-%d" % number for number in range(100)]
    assert now_ms() < due_ms
    assert payloads(receive_count(consumer, 100)) == [b"delayed-%d" % number for number in range(100)]
    assert now_ms() >= due_ms
