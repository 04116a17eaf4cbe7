"""What truncating, unloading, terminating and deleting a topic makes of what waits, of what is pending, and
of who is connected.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from geminga.broker.delays.settings import DelaySettings
from geminga.broker.dispatch.consumer import SHARED, Consumer
from geminga.broker.operator.topics import TopicsOperator
from geminga.broker.policies.settings import BrokerSettings
from geminga.broker.subscription.statistics import statistics_of
from geminga.broker.topic.producer import Producer
from geminga.broker.topic.topics import CLOSE_WAIT_S
from geminga.errors import ServiceNotReady, TopicTerminated
from geminga.managed_ledger.chain.state import State
from geminga.managed_ledger.lifecycle import Lifecycle
from geminga.managed_ledger.managed_ledger import ManagedLedgerSettings
from geminga.names import TopicName
from geminga.position import Position
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.decoder import Delivery
from tests.broker.dispatch_rig import FakeOutbox, on_loop, position_of
from tests.broker.topics_rig import (
    TOPIC,
    TopicsRig,
    join,
    open_topics,
    publish,
    received,
    send,
    subscription_of,
    topic_of,
)
from tests.generators import finished

INDEXES = {
    "own": DelaySettings(),
    "shared": DelaySettings(is_shared=True),
    "buckets": DelaySettings(keeps_buckets=True, bucket_indexes_min=5),
    "shared buckets": DelaySettings(keeps_buckets=True, is_shared=True, bucket_indexes_min=5),
}


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trio.to_thread, "run_sync", on_loop)


@asynccontextmanager
async def opened(index: str = "own") -> AsyncIterator[TopicsRig]:
    """Ten entries a ledger."""
    ledgers = ManagedLedgerSettings(ledger_entries_max=10, rollover_min_ms=0)
    async with open_topics(BrokerSettings(), ledgers, delay_settings=INDEXES[index]) as rig:
        await subscription_of(rig)
        yield rig


def places(outbox: FakeOutbox) -> list[Position]:
    return [position_of(command) for command in outbox.commands if type(command) is Delivery]


def told(outbox: FakeOutbox, kind: type) -> int:
    return sum(type(command) is kind for command in outbox.commands)


async def acknowledge(rig: TopicsRig, consumer: Consumer, positions: list[Any]) -> None:
    (await topic_of(rig)).subscription("s").acks.acknowledge(consumer, positions)


@pytest.mark.parametrize("index", INDEXES)
async def test_truncate_takes_what_waits_and_what_is_pending_and_leaves_the_consumer(
    autojump_clock: MockClock, index: str
) -> None:
    async with opened(index) as rig:
        consumer, outbox = await join(rig)
        await publish(rig, 10)
        await publish(rig, 12, delay_s=60)
        await trio.sleep(5)
        subscription = (await topic_of(rig)).subscription("s")
        assert (received(outbox), len(subscription.delayed), consumer.unacked) == (10, 12, 10)
        await (await topic_of(rig)).truncate()
        assert (subscription.backlog(), len(subscription.delayed), consumer.unacked) == (0, 0, 0)
        assert subscription.topic.ledger.number_of_entries == 2, "of the ledger that is written"
        await acknowledge(rig, consumer, places(outbox))
        await publish(rig, 3)
        await trio.sleep(100)
        assert received(outbox) == 13, "the three new ones, and nothing that had waited"
        assert told(outbox, pb.CommandCloseConsumer) == 0
        assert (subscription.backlog(), consumer.unacked) == (3, 3)


async def test_truncate_moves_readers_too_and_what_is_to_be_sent_again_is_not(
    autojump_clock: MockClock,
) -> None:
    async with opened() as rig:
        consumer, outbox = await join(rig)
        await publish(rig, 25)
        await trio.sleep(1)
        topic = await topic_of(rig)
        subscription = topic.subscription("s")
        reader = await topic.create_subscription("r", durable=False, start=topic.ledger.first_position())
        subscription.consumers.redeliver(consumer, None, None)
        await topic.truncate()
        await trio.sleep(1)
        assert reader.backlog() == subscription.backlog() == 0
        assert received(outbox) == 25
        assert statistics_of(subscription).msg_in_replay == 0


async def test_a_closing_topic_is_not_truncated(autojump_clock: MockClock) -> None:
    async with opened() as rig:
        topic = await topic_of(rig)
        await topic.close()
        with pytest.raises(ServiceNotReady):
            await topic.truncate()


async def test_who_wants_a_closing_topic_waits_for_its_end_but_not_for_ever(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = trio.Event()

    close = Lifecycle.close

    async def close_slowly(life: Lifecycle) -> None:
        await gate.wait()
        await close(life)

    async with opened() as rig:
        before = await topic_of(rig)
        monkeypatch.setattr(Lifecycle, "close", close_slowly)
        rig.nursery.start_soon(rig.topics.unload, TOPIC)
        await wait_all_tasks_blocked()
        for request in (rig.topics.delete, rig.topics.unload):
            with pytest.raises(ServiceNotReady):
                await request(TOPIC)
        assert trio.current_time() == pytest.approx(2 * CLOSE_WAIT_S)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.topics.unload, TOPIC)
            nursery.start_soon(topic_of, rig)
            await trio.sleep(1)
            gate.set()
        assert await topic_of(rig) is not before


@pytest.mark.parametrize("index", INDEXES)
async def test_unload_is_a_real_close_and_reopen(autojump_clock: MockClock, index: str) -> None:
    """What was acknowledged stays so; what was pending, and what waits, comes in its time."""
    async with opened(index) as rig:
        consumer, outbox = await join(rig)
        await publish(rig, 10)
        await publish(rig, 12, delay_s=60)
        await trio.sleep(5)
        await acknowledge(rig, consumer, places(outbox)[:3])
        before = await topic_of(rig)
        await rig.topics.unload(TOPIC)
        assert told(outbox, pb.CommandCloseConsumer) == 1
        after = await topic_of(rig)
        assert after is not before
        assert len(after.subscription("s").consumers) == 0
        _, again = await join(rig)
        await trio.sleep(5)
        assert places(again) == places(outbox)[3:]
        await trio.sleep(60)
        assert received(again) == 7 + 12


@pytest.mark.parametrize("index", INDEXES)
async def test_a_terminated_topic_gives_out_what_waits_and_then_ends(
    autojump_clock: MockClock, index: str
) -> None:
    async with opened(index) as rig:
        consumer, outbox = await join(rig)
        await publish(rig, 10)
        await publish(rig, 12, delay_s=60)
        await trio.sleep(5)
        topic = await topic_of(rig)
        await topic.ledger.life.terminate()
        with pytest.raises(TopicTerminated):
            await publish(rig, 1)
        await acknowledge(rig, consumer, places(outbox))
        assert told(outbox, pb.CommandReachedEndOfTopic) == 0
        await trio.sleep(60)
        assert received(outbox) == 22
        await acknowledge(rig, consumer, places(outbox))
        await wait_all_tasks_blocked()
        assert told(outbox, pb.CommandReachedEndOfTopic) == 1
        await topic.truncate()
        assert topic.ledger.number_of_entries == 2, "the newest ledger stays with the topic"


async def test_a_producer_of_a_terminated_topic_is_closed_and_gets_no_send_error(
    autojump_clock: MockClock,
) -> None:
    """Its client asks for it again and fails what is pending with the refusal. Go's client fails nothing on
    SEND_ERROR.
    """
    async with opened() as rig:
        topic, outbox = await topic_of(rig), FakeOutbox()
        producer = Producer(1, "p", outbox, message_bytes_max=2**22)  # type: ignore[arg-type]
        await topic.add_producer(producer, None)
        topic.publishing.publish(producer, send(0))
        await wait_all_tasks_blocked()
        await topic.ledger.life.terminate()
        topic.publishing.publish(producer, send(1))
        await TopicsOperator(rig.topics, rig.rooms).terminate(TOPIC)
        topic.publishing.publish(producer, send(2))
        assert [type(command) for command in outbox.commands] == [
            pb.CommandSendReceipt,
            pb.CommandCloseProducer,
        ]
        with pytest.raises(TopicTerminated):
            await topic.add_producer(Producer(2, "p", outbox, message_bytes_max=2**22), None)  # type: ignore[arg-type]


@pytest.mark.parametrize("index", INDEXES)
async def test_a_deleted_topic_leaves_nothing_that_falls_due(autojump_clock: MockClock, index: str) -> None:
    async with opened(index) as rig:
        _, outbox = await join(rig)
        await publish(rig, 14, delay_s=60)
        await trio.sleep(5)
        await rig.topics.delete(TOPIC, force=True)
        assert told(outbox, pb.CommandCloseConsumer) == 1
        await subscription_of(rig)
        assert (await topic_of(rig)).ledger.number_of_entries == 0
        _, again = await join(rig, SHARED)
        await publish(rig, 1)
        await trio.sleep(100)
        assert (received(outbox), received(again)) == (0, 1)
        ledger = (await topic_of(rig)).ledger
        named = {info.ledger_id for info in ledger.ledgers}
        named |= {s.cursor_ledger_id for s in finished(ledger.internal_stats()).cursors.values()}
        kept = set(rig.bookie.inventory.ledgers())
        assert kept <= named, "the deleted topic's ledgers went with it, its buckets' too"


async def test_a_stop_closes_more_topics_than_are_closed_at_once(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr("geminga.broker.topic.topics.CLOSED_AT_ONCE", 2)
    async with open_topics() as rig:
        names = [TopicName.parse(f"persistent://public/default/t-{number}") for number in range(5)]
        topics = [await rig.topics.get(name, create=True) for name in names]
        await rig.topics.close()
        assert [topic.ledger.state for topic in topics] == [State.CLOSED] * 5
        assert not rig.topics.loaded


async def test_a_topic_has_tasks_only_while_something_is_to_be_done(autojump_clock: MockClock) -> None:
    async with open_topics() as rig:
        await subscription_of(rig)
        await publish(rig, 3)
        rig = await rig.restart()
        await wait_all_tasks_blocked()
        before = trio.lowlevel.current_statistics().tasks_living
        topic = await topic_of(rig)
        await wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().tasks_living == before
        cursor = topic.subscriptions["s"].cursor
        cursor.acknowledge([topic.ledger.first_position()])
        await wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().tasks_living > before, "who writes the cursor down?"
        await trio.sleep(1)
        assert not cursor.is_dirty
        assert trio.lowlevel.current_statistics().tasks_living == before
