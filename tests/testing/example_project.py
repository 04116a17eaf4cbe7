"""Tests as an application's project has them; `test_kit.py` runs them in an empty folder."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest
import trio

from geminga.testing.tenant import Tenant

SETTINGS = {
    "delayedDeliveryMinIndexCountPerBucket": "20",
    "managedLedgerMaxEntriesPerLedger": "20",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "delayedDeliveryTrackerFactoryClassName": "org.apache.pulsar.broker.delayed."
    "BucketDelayedDeliveryTrackerFactory",
    "isDelayedDeliveryDeliverAtTimeStrict": "true",
}


@pytest.fixture(scope="session")
def geminga_settings() -> dict[str, str]:
    return SETTINGS


@pytest.fixture
def client(geminga_tenant: Any) -> Iterator[pulsar.Client]:
    made = pulsar.Client(
        geminga_tenant.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "client.log")
    )
    yield made
    made.close()


def test_a_month(geminga_tenant: Any, client: pulsar.Client) -> None:
    topic = geminga_tenant.topic("reminders")
    consumer = client.subscribe(topic, "app", pulsar.ConsumerType.Shared)
    client.create_producer(topic).send(b"renew", deliver_after=datetime.timedelta(days=30))
    began = geminga_tenant.now()
    geminga_tenant.advance("29d23h")
    geminga_tenant.drain()
    with pytest.raises(AssertionError, match="1 not due yet"):
        geminga_tenant.assert_delivered("reminders", "app", timeout_s=0)
    moved = geminga_tenant.advance("2h")
    assert moved["waiting"] == []
    assert geminga_tenant.now() - began >= datetime.timedelta(days=30, hours=1)
    message = consumer.receive(10_000)
    with pytest.raises(AssertionError, match="entries are not acknowledged"):
        geminga_tenant.drain(timeout_s=0)
    consumer.acknowledge(message)
    geminga_tenant.assert_delivered("reminders", "app")


def test_to_a_moment_and_to_the_next(geminga_tenant: Any, client: pulsar.Client) -> None:
    topic = geminga_tenant.topic("reminders")
    consumer = client.subscribe(topic, "app", pulsar.ConsumerType.Shared)
    client.create_producer(topic).send(b"renew", deliver_after=datetime.timedelta(days=2))
    geminga_tenant.advance_to(geminga_tenant.now() + datetime.timedelta(days=1))
    geminga_tenant.advance_to_next()
    assert consumer.receive(10_000).data() == b"renew"
    assert geminga_tenant.now().year - datetime.datetime.now().year in (19, 20, 21)
    with pytest.raises(ValueError, match="never goes back"):
        geminga_tenant.advance_to(geminga_tenant.now() - datetime.timedelta(days=1))
    with pytest.raises(ValueError, match="no time zone"):
        geminga_tenant.advance_to(datetime.datetime(2030, 1, 1))
    with pytest.raises(ValueError, match="a duration such as"):
        geminga_tenant.advance("a month")


def test_a_chain_of_reminders(geminga_tenant: Any, client: pulsar.Client) -> None:
    topic = geminga_tenant.topic("reminders")
    producer = client.create_producer(topic)
    came = []

    def remind(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        came.append(int(message.data()))
        producer.send(b"%d" % (came[-1] + 1), deliver_after=datetime.timedelta(hours=1))
        consumer.acknowledge(message)

    client.subscribe(topic, "app", pulsar.ConsumerType.Shared, message_listener=remind)
    producer.send(b"0", deliver_after=datetime.timedelta(hours=1))
    geminga_tenant.advance("5h30m", until_acknowledged=True)
    assert came == [0, 1, 2, 3, 4]


def test_a_lost_bucket_costs_nothing(geminga_tenant: Any, client: pulsar.Client) -> None:
    topic = geminga_tenant.topic("many")
    consumer = client.subscribe(topic, "app", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    for number in range(200):
        producer.send_async(b"%d" % number, lambda *_: None, deliver_after=datetime.timedelta(days=1))
    producer.flush()
    assert len(geminga_tenant.peek("many", "app", 300)) == 200
    assert geminga_tenant.peek("many", "app")[0].data == b"0"
    assert geminga_tenant.lose_bucket("many", "app")["ledgerId"] >= 0
    geminga_tenant.advance("2d")
    found = set()
    for _ in range(200):
        message = consumer.receive(10_000)
        found.add(int(message.data()))
        consumer.acknowledge(message)
    assert found == set(range(200))
    geminga_tenant.assert_delivered("many", "app")
    told = [event["kind"] for event in geminga_tenant.events()]
    assert told.index("bucket-sealed") < told.index("bucket-lost") < told.index("clock-moved")


def test_a_slow_wire(geminga_tenant: Any, client: pulsar.Client) -> None:
    rule = geminga_tenant.set_fault(place="wire", kind="latency", latency_ms=50)
    client.create_producer(geminga_tenant.topic("t")).send(b"slow")
    geminga_tenant.clear_fault(rule)
    geminga_tenant.set_fault(place="wire", kind="latency", latency_ms=1, count=1)


def test_faults_end_with_their_test(geminga_tenant: Any, geminga_broker: Any) -> None:
    """Here as another test's tenant would do it: the tests run in any order."""
    other = Tenant(geminga_broker, "test-of-faults")
    other.set_fault(place="wire", kind="latency", latency_ms=1, command="SEEK")
    assert [state["rule"]["kind"] for state in geminga_tenant._ask("GET", "/geminga/faults")] == ["latency"]
    other.close()
    assert geminga_tenant._ask("GET", "/geminga/faults") == []


def test_other_tests_topics_are_gone(geminga_tenant: Any) -> None:
    assert geminga_tenant.topics() == []
    tenants = geminga_tenant._ask("GET", "/admin/v2/tenants")
    assert [name for name in tenants if name.startswith("test-")] == [geminga_tenant.name]


async def test_from_trio(geminga_tenant: Any, client: pulsar.Client) -> None:
    topic = geminga_tenant.topic("t")
    consumer = client.subscribe(topic, "app", pulsar.ConsumerType.Shared)
    client.create_producer(topic).send(b"later", deliver_after=datetime.timedelta(days=1))
    await trio.to_thread.run_sync(geminga_tenant.advance, "1d1m")
    message = await trio.to_thread.run_sync(consumer.receive, 10_000)
    assert message.data() == b"later"
