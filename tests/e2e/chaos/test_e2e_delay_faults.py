"""Faults in buckets, topics and cursors: messages come all the same, and none early."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar import ConsumerType

from tests.e2e.admin_http import topic_path
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.chaos.conftest import Faults
from tests.e2e.delays.test_e2e_delayed_index import SETTINGS, publish
from tests.e2e.waiting import eventually, now_ms, receive_count

pytestmark = pytest.mark.geminga_only
COUNT = 150


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data_dir = tmp_path_factory.mktemp("delay-faults") / "data"
    with BrokerProcess(data_dir, settings=SETTINGS, arguments=["--chaos"]) as process:
        yield process


@pytest.fixture
def faults(broker: BrokerProcess) -> Iterator[Faults]:
    found = Faults(broker)
    yield found
    found.clear_all()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[pulsar.Client]:
    made = pulsar.Client(broker.endpoints.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield made
    made.close()


def name_of(request: pytest.FixtureRequest) -> str:
    text = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return f"persistent://public/default/{text}"


class Delayed:
    """Messages that are due in some seconds, and a consumer that waits for them."""

    def __init__(self, faults: Faults, client: pulsar.Client, topic: str, wait_ms: int = 2500) -> None:
        self._faults = faults
        self.topic = topic
        self.consumer = client.subscribe(topic, "s", consumer_type=ConsumerType.Shared)
        producer = client.create_producer(topic, batching_enabled=False)
        self.due_ms = now_ms() + wait_ms
        publish(producer, [self.due_ms + number for number in range(COUNT)])

    def buckets(self) -> list[Any]:
        path = f"/geminga/delayed/{topic_path(self.topic)}/subscription/s/buckets"
        rows = self._faults.web.get(path).json()
        return [row for row in rows if row["ledgerId"] is not None]

    def events(self, kind: str) -> list[Any]:
        found = self._faults.web.get(f"/geminga/events?kind={kind}&limit=1000").json()
        return [event for event in found if event.get("topic") == self.topic]

    def wait_sealed(self) -> list[Any]:
        return eventually(lambda: (rows := self.buckets()) and len(rows) >= 2 and rows)

    def check_delivered(self) -> None:
        messages = receive_count(self.consumer, COUNT)
        assert sorted(int(message.data()) for message in messages) == list(range(COUNT))
        assert now_ms() >= self.due_ms


@pytest.mark.parametrize("kind", ["lose", "truncate", "corrupt"])
@pytest.mark.parametrize("which", ["first", "last", "all"])
def test_damaged_buckets_come_back(
    faults: Faults, client: pulsar.Client, request: pytest.FixtureRequest, kind: str, which: str
) -> None:
    delayed = Delayed(faults, client, name_of(request), wait_ms=1500)
    delayed.wait_sealed()
    sealed = {row["ledgerId"] for row in delayed.buckets()}
    rule = faults.set(f"bucket/{kind}", topic=delayed.topic, subscription="s", which=which)
    assert faults.state(rule)["ended"] == "count"

    def is_lost() -> bool:
        if which == "all":
            return not sealed & {row["ledgerId"] for row in delayed.buckets()}
        return sum(event.get("times", 1) for event in delayed.events("bucket-lost")) == 1

    eventually(is_lost)
    delayed.check_delivered()


def test_a_bucket_that_cannot_be_created_is_sealed_later(
    faults: Faults, client: pulsar.Client, request: pytest.FixtureRequest
) -> None:
    rule = faults.set("bucket/fail", operation="create", count=2)
    delayed = Delayed(faults, client, name_of(request))
    delayed.wait_sealed()
    assert faults.state(rule)["ended"] == "count"
    delayed.check_delivered()


def test_a_bucket_that_cannot_be_loaded_is_loaded_later(
    faults: Faults, client: pulsar.Client, request: pytest.FixtureRequest
) -> None:
    delayed = Delayed(faults, client, name_of(request))
    delayed.wait_sealed()
    rule = faults.set("bucket/fail", operation="load", topic=delayed.topic, count=3)
    # What was sealed lately is in memory. The next load of the topic reads it from the bookie.
    faults.set("topic/unload", topic=delayed.topic)
    delayed.check_delivered()
    assert faults.state(rule)["ended"] == "count"


def test_buckets_that_cannot_be_merged_are_merged_later(tmp_path: Path) -> None:
    small = {"delayedDeliveryMaxNumBuckets": "2", "delayedDeliveryMinIndexCountPerBucket": "20"}
    settings = {**SETTINGS, **small}
    with BrokerProcess(tmp_path / "data", settings=settings, arguments=["--chaos"]) as process:
        merging = Faults(process)
        made = pulsar.Client(
            process.endpoints.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        rule = merging.set("bucket/fail", operation="merge", count=2)
        delayed = Delayed(merging, made, "persistent://public/default/merged")
        eventually(lambda: merging.state(rule)["ended"] == "count")
        eventually(lambda: 0 < len(delayed.buckets()) <= 2)
        delayed.check_delivered()
        made.close()


def test_a_bucket_that_cannot_be_deleted_is_deleted_later(
    faults: Faults, client: pulsar.Client, request: pytest.FixtureRequest
) -> None:
    rule = faults.set("bucket/fail", operation="delete", count=2)
    delayed = Delayed(faults, client, name_of(request), wait_ms=1000)
    delayed.check_delivered()
    eventually(lambda: faults.state(rule)["ended"] == "count")
    eventually(lambda: not delayed.buckets())


@pytest.mark.parametrize("kind", ["unload", "fence"])
def test_a_topic_comes_back(
    faults: Faults, client: pulsar.Client, request: pytest.FixtureRequest, kind: str
) -> None:
    topic = name_of(request)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"before")
    rule = faults.set(f"topic/{kind}", topic=topic)
    assert faults.state(rule)["hits"] == 1
    producer.send(b"after")
    seen: set[bytes] = set()
    while len(seen) < 2:
        message = consumer.receive(10_000)
        seen.add(message.data())
        consumer.acknowledge(message)
    assert seen == {b"before", b"after"}


def test_buckets_whose_names_are_lost_are_read_again(
    faults: Faults, client: pulsar.Client, request: pytest.FixtureRequest
) -> None:
    delayed = Delayed(faults, client, name_of(request))
    delayed.wait_sealed()
    rule = faults.set("cursor/property-lost", topic=delayed.topic, subscription="s")
    assert faults.state(rule)["hits"] == 1
    faults.set("topic/unload", topic=delayed.topic)
    delayed.check_delivered()


@pytest.mark.parametrize("point", ["bucket-sealed-before-metadata", "bucket-sealed"])
def test_a_broker_that_is_killed_around_the_record_of_a_bucket_loses_nothing(
    tmp_path: Path, point: str
) -> None:
    process = BrokerProcess(tmp_path / "data", settings=SETTINGS, arguments=["--chaos"])
    process.start()
    faults = Faults(process)
    client = pulsar.Client(
        process.endpoints.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    client.create_producer("warm").send(b"x")
    faults.set("process/kill", name=point)
    consumer = client.subscribe("t", "s", consumer_type=ConsumerType.Shared)
    producer = client.create_producer("t", batching_enabled=False)
    due_ms = now_ms() + 1500
    for number in range(COUNT):
        producer.send_async(b"%d" % number, lambda *_: None, deliver_at=due_ms)
    assert process.wait() == -9
    with process:
        producer.flush()
        seen: set[int] = set()
        while len(seen) < COUNT:
            message = consumer.receive(10_000)
            consumer.acknowledge(message)
            seen.add(int(message.data()))
        assert now_ms() >= due_ms
        client.close()
