"""Tests as an application's project has them; `test_kit.py` runs them in an empty folder."""

from __future__ import annotations

import asyncio
import datetime
import functools
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest
import trio

from geminga.errors import GemingaError
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
    client.create_producer(topic).send(b"renew", {"for": "ann"}, deliver_after=datetime.timedelta(days=30))
    began = geminga_tenant.now()
    assert geminga_tenant.peek("reminders", "app")[0].properties == {"for": "ann"}
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
    assert geminga_tenant.now().year - datetime.datetime.now().year in range(19, 24)
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


def test_partitions(geminga_tenant: Any, client: pulsar.Client) -> None:
    """Nine delayed messages over three partitions."""
    topic = geminga_tenant.topic("parts")
    geminga_tenant._ask("PUT", f"/admin/v2/persistent/{geminga_tenant.namespace}/parts/partitions", 3)
    consumer = client.subscribe(topic, "app", pulsar.ConsumerType.Shared)
    routing = pulsar.PartitionsRoutingMode.RoundRobinDistribution
    producer = client.create_producer(topic, message_routing_mode=routing, batching_enabled=False)
    for number in range(9):
        producer.send(b"%d" % number, deliver_after=datetime.timedelta(hours=1))
    assert geminga_tenant.stats("parts")["msgInCounter"] == 9
    assert geminga_tenant.stats("parts-partition-1")["msgInCounter"] == 3
    assert {peeked.data for peeked in geminga_tenant.peek("parts", "app", 9)} == {b"%d" % n for n in range(9)}
    assert len(geminga_tenant.peek("parts", "app", 5)) == 5
    with pytest.raises(AssertionError, match=r"9 entries are not acknowledged: 9 not due yet") as waits:
        geminga_tenant.assert_delivered("parts", "app", timeout_s=0)
    assert str(waits.value).count(" is due 20") == 9
    geminga_tenant.advance("1h")
    for _ in range(9):
        consumer.acknowledge(consumer.receive(10_000))
    geminga_tenant.assert_delivered("parts", "app")


def test_a_lost_bucket_of_a_partition(geminga_tenant: Any, client: pulsar.Client) -> None:
    geminga_tenant._ask("PUT", f"/admin/v2/persistent/{geminga_tenant.namespace}/parts/partitions", 2)
    consumer = client.subscribe(geminga_tenant.topic("parts"), "app", pulsar.ConsumerType.Shared)
    producer = client.create_producer(geminga_tenant.topic("parts-partition-1"))
    for number in range(60):
        producer.send_async(b"%d" % number, lambda *_: None, deliver_after=datetime.timedelta(days=1))
    producer.flush()
    while "bucket-sealed" not in [event["kind"] for event in geminga_tenant.events()]:
        pass
    assert geminga_tenant.lose_bucket("parts", "app")["ledgerId"] >= 0
    with pytest.raises(GemingaError, match="parts-partition-0"):
        geminga_tenant.lose_bucket("parts-partition-0", "app")
    geminga_tenant.advance("1d")
    for _ in range(60):
        consumer.acknowledge(consumer.receive(10_000))
    geminga_tenant.assert_delivered("parts", "app")


def test_what_a_client_still_holds_comes_again(geminga_tenant: Any, client: pulsar.Client) -> None:
    """The client's timers do not follow the broker's clock; an unloaded topic does what their end does."""
    topic = geminga_tenant.topic("work")
    slow = client.subscribe(topic, "slow", pulsar.ConsumerType.Shared)
    quick = client.subscribe(topic, "quick", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    client.create_producer(topic).send(b"job")
    slow.negative_acknowledge(slow.receive(10_000))
    quick.negative_acknowledge(quick.receive(10_000))
    geminga_tenant.advance("1h")
    assert quick.receive(10_000).redelivery_count() == 1
    geminga_tenant.set_fault(place="topic", kind="unload", topic=topic)
    again = slow.receive(10_000)
    assert (again.data(), again.redelivery_count()) == (b"job", 0)


async def test_from_trio(geminga_async_tenant: Any, client: pulsar.Client) -> None:
    await remind(geminga_async_tenant, client, trio.to_thread.run_sync)


def test_from_asyncio(geminga_async_tenant: Any, client: pulsar.Client) -> None:
    asyncio.run(remind(geminga_async_tenant, client, asyncio.to_thread))


async def remind(tenant: Any, client: pulsar.Client, in_thread: Any) -> None:
    """The application runs on the loop of the test: it sends the next reminder when it gets one."""
    topic = tenant.topic("t")
    consumer = client.subscribe(topic, "app", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    hour = datetime.timedelta(hours=1)
    producer.send(b"0", deliver_after=hour)
    began = await tenant.now()
    came = []

    async def application() -> None:
        while len(came) < 3:
            message = await in_thread(consumer.receive, 10_000)
            came.append(message.data())
            await in_thread(functools.partial(producer.send, b"%d" % len(came), deliver_after=hour))
            consumer.acknowledge(message)

    if in_thread is asyncio.to_thread:
        running = asyncio.create_task(application())
        await tenant.advance("3h", until_acknowledged=True)
        await running
    else:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(application)
            await tenant.advance("3h", until_acknowledged=True)
    assert came == [b"0", b"1", b"2"]
    with pytest.raises(AssertionError, match="1 not due yet"):
        await tenant.assert_delivered("t", "app", timeout_s=0)
    assert (await tenant.stats("t"))["msgInCounter"] == 4
    assert (await tenant.peek("t", "app"))[0].data == b"3"
    assert await tenant.topics() == [topic]
    rule = await tenant.set_fault(place="wire", kind="latency", latency_ms=1)
    await tenant.clear_fault(rule)
    await tenant.advance_to_next()
    consumer.acknowledge(await in_thread(consumer.receive, 10_000))
    await tenant.drain()
    await tenant.advance_to(began + datetime.timedelta(days=1))
    assert [event["kind"] for event in await tenant.events()].count("clock-moved") == 3
    with pytest.raises(GemingaError):
        await tenant.lose_bucket("t", "app")
