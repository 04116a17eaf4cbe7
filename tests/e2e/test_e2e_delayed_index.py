"""Delayed messages whose index is kept in buckets on the bookie: restarts, kills, and buckets that break."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest
from pulsar import ConsumerType

from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import ROOT, BrokerProcess
from tests.e2e.waiting import assert_quiet, eventually, now_ms, payloads, receive_count

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
LATE_MS = 1500
FAR_MS = 3_600_000


@pytest.fixture(scope="module")
def process(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    shared = {"delayedDeliverySharedIndexEnabled": str(request.param == "shared").lower()}
    process = BrokerProcess(
        tmp_path_factory.mktemp("buckets") / "data", settings={**SETTINGS, **shared}, arguments=["--chaos"]
    )
    process.start()
    yield process
    assert process.stop() == 0, process.log_tail()


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
    for number, at_ms in enumerate(due_ms):
        producer.send_async(b"%d" % number, lambda *_: None, deliver_at=at_ms)
    producer.flush()
    return due_ms


def _sealed(web: Admin, topic: str) -> bool:
    """Whether all but the last, growing part is sealed."""
    return sum(bucket["messages"] for bucket in buckets(web, topic)) >= 950


def check_times(messages: list[tuple[pulsar.Message, int]], due_ms: list[int], *, late_ms: int) -> None:
    for message, at_ms in messages:
        due = due_ms[int(message.data())]
        assert due <= at_ms <= due + late_ms, (
            f"{message.data()!r} due {due}, came {at_ms - due} ms after that"
        )


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
def test_each_comes_at_its_time_and_the_buckets_go(client: pulsar.Client, web: Admin, topic: str) -> None:
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    start_ms = now_ms()
    chance = random.Random(1)
    due = [start_ms + chance.randrange(1500, 3500) for _ in range(400)]
    publish(client.create_producer(topic), due)
    eventually(lambda: buckets(web, topic))
    check_times(receive_timed(consumer, 400), due, late_ms=LATE_MS)
    assert_quiet(consumer)
    eventually(lambda: not buckets(web, topic))
    assert waiting(web, topic) == 0


@pytest.mark.parametrize(
    ("process", "how"),
    [("own", "stopped"), ("own", "killed"), ("shared", "killed")],
    indirect=["process"],
    scope="module",
)
def test_a_restart_in_the_middle_loses_nothing(
    process: BrokerProcess, make_client: Make, web: Admin, topic: str, how: str
) -> None:
    first = make_client(process.endpoints.service_url)
    consumer = first.subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=10)
    start_ms = now_ms()
    chance = random.Random(2)
    due = [start_ms + chance.randrange(1500, 5500) for _ in range(300)]
    publish(first.create_producer(topic), due)
    eventually(lambda: waiting(web, topic) > 200)
    early = receive_timed(consumer, 20)
    check_times(early, due, late_ms=LATE_MS)
    acked = {int(message.data()) for message, _ in early}
    eventually(lambda: buckets(web, topic))
    if how == "killed":
        process.kill()
    else:
        assert process.stop() == 0
    process.start()
    found: set[int] = set()
    while len(found | acked) < 300:
        message = consumer.receive(15_000)
        assert now_ms() >= due[int(message.data())], "never early"
        found.add(int(message.data()))
        consumer.acknowledge(message)
    if how == "stopped":
        # What was acknowledged before an orderly stop does not come again.
        assert not found & acked or len(found & acked) <= 10
    eventually(lambda: web.backlog(topic, "s") == 0)


@pytest.mark.parametrize(
    ("process", "damage"),
    [("own", "lose"), ("own", "truncate"), ("own", "corrupt"), ("shared", "corrupt")],
    indirect=["process"],
    scope="module",
)
def test_a_bucket_that_breaks_while_running_costs_nothing(
    client: pulsar.Client, web: Admin, topic: str, damage: str
) -> None:
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    start_ms = now_ms()
    due = [start_ms + 62_500 + 7 * n if n < 150 else start_ms + 1500 + 7 * n for n in range(300)]
    publish(client.create_producer(topic), due)
    eventually(lambda: len(buckets(web, topic)) >= 2)
    delayed(web, topic, f"/{damage}-bucket", {"ledgerId": buckets(web, topic)[0]["ledgerId"]})
    messages = receive_timed(consumer, 150)
    check_times(messages, due, late_ms=LATE_MS)
    # Only when its first segment is loaded, a minute ahead of its time, the damage can be found.
    eventually(lambda: waiting(web, topic) == 150)
    assert {int(m.data()) for m, _ in messages} == set(range(150, 300))
    assert_quiet(consumer)


@pytest.mark.parametrize(
    ("process", "damage", "how"),
    [("own", "lose", "killed"), ("own", "truncate", "stopped"), ("shared", "corrupt", "killed")],
    indirect=["process"],
    scope="module",
)
def test_a_bucket_that_is_broken_at_a_start_costs_nothing(
    process: BrokerProcess, make_client: Make, web: Admin, topic: str, damage: str, how: str
) -> None:
    first = make_client(process.endpoints.service_url)
    consumer = first.subscribe(topic, "s", ConsumerType.Shared)
    producer = first.create_producer(topic)
    start_ms = now_ms()
    due = [start_ms + 2500 + 4 * n for n in range(300)]
    publish(producer, due)
    eventually(lambda: len(buckets(web, topic)) >= 3)
    delayed(web, topic, f"/{damage}-bucket", {"ledgerId": buckets(web, topic)[1]["ledgerId"]})
    if how == "killed":
        process.kill()
    else:
        assert process.stop() == 0
    process.start()
    found = receive_timed(consumer, 300)
    assert sorted(int(message.data()) for message, _ in found) == list(range(300))
    assert all(at_ms >= due[int(message.data())] for message, at_ms in found), "never early"
    assert_quiet(consumer)


@BOTH
def test_a_new_start_knows_what_waits_and_reads_it_once(
    process: BrokerProcess, make_client: Make, web: Admin, topic: str
) -> None:
    """As Pulsar's testBucketDelayedDeliveryWithAllConsumersDisconnecting."""
    client = make_client(process.endpoints.service_url)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    due = [now_ms() + FAR_MS + n for n in range(1000)]
    publish(client.create_producer(topic), due)
    eventually(lambda: waiting(web, topic) == 1000 and len(buckets(web, topic)) <= 10 and _sealed(web, topic))
    consumer.close()
    eventually(lambda: not web.subscription(topic, "s")["consumers"])
    before = [(b["startLedger"], b["endLedger"], b["ledgerId"]) for b in buckets(web, topic)]
    again = client.subscribe(topic, "s", ConsumerType.Shared)
    assert_quiet(again)
    assert waiting(web, topic) == 1000
    after = [(b["startLedger"], b["endLedger"], b["ledgerId"]) for b in buckets(web, topic)]
    assert after == before
    process.kill()
    process.start()
    eventually(lambda: waiting(web, topic) == 1000)
    assert_quiet(again)
    assert web.backlog(topic, "s") == 1000


@pytest.mark.parametrize("end", ["unsubscribe", "delete-topic", "skip-all", "seek"])
@BOTH
def test_buckets_go_with_what_they_are_for(
    process: BrokerProcess, client: pulsar.Client, web: Admin, topic: str, end: str
) -> None:
    """As Pulsar's testUnsubscribe, testDelete and testClearDelayedMessagesWhenClearBacklog."""
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    publish(producer, [now_ms() + FAR_MS] * 200)
    ledgers = eventually(lambda: {bucket["ledgerId"] for bucket in buckets(web, topic)})
    if end == "unsubscribe":
        consumer.unsubscribe()
    elif end == "delete-topic":
        consumer.close()
        producer.close()
        assert web.delete(f"/admin/v2/{topic_path(topic)}?force=true").status == 204
    elif end == "skip-all":
        assert web.post(f"/admin/v2/{topic_path(topic)}/subscription/s/skip_all").status == 204
        eventually(lambda: waiting(web, topic) == 0)
    else:
        consumer.seek(pulsar.MessageId.latest)
        eventually(lambda: waiting(web, topic) == 0)

    def are_gone() -> bool:
        """What the stop leaves half done the next load of the topic, or the next start, finishes."""
        if end in ("skip-all", "seek"):
            waiting(web, topic)
        return not ledgers & bucket_ledgers(process)

    eventually(are_gone, 30)


@BOTH
def test_undelayed_messages_do_not_wait_for_delayed_ones(
    client: pulsar.Client, web: Admin, topic: str
) -> None:
    """As Pulsar's testInterleavedMessages."""
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    due_ms = now_ms() + 2000
    for number in range(100):
        producer.send_async(b"delayed-%d" % number, lambda *_: None, deliver_at=due_ms)
        producer.send_async(b"plain-%d" % number, lambda *_: None)
    producer.flush()
    assert payloads(receive_count(consumer, 100)) == [b"plain-%d" % number for number in range(100)]
    assert now_ms() < due_ms
    assert payloads(receive_count(consumer, 100)) == [b"delayed-%d" % number for number in range(100)]
    assert now_ms() >= due_ms
