"""Deduplication of a whole topic: what is on its way, what fails, snapshots, switching it on and off."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from geminga.broker.policies.policies import EffectivePolicies
from geminga.broker.policies.settings import BrokerSettings
from geminga.broker.policies.table import BY_NAME
from geminga.broker.topic.producer import NOWHERE, Producer
from geminga.broker.topic.topic import Topic
from geminga.errors import NotAllowed, ReadOnly, ServerError, StorageError
from geminga.managed_ledger.cursor.system_cursors import DEDUPLICATION_CURSOR
from geminga.wire import pulsar_pb2 as pb
from tests.broker.dispatch_rig import FakeOutbox
from tests.broker.topics_rig import TOPIC, TopicsRig, open_topics, publish, send, topic_of

ON = EffectivePolicies(deduplication=True)
SETTINGS = BrokerSettings(dedup_snapshot_entries=10)


@pytest.fixture
async def rig() -> AsyncIterator[TopicsRig]:
    """A test asks for `autojump_clock` itself: pytest-trio takes no clock from a fixture's own fixtures."""
    async with open_topics(SETTINGS, defaults=ON) as opened:
        yield opened


@pytest.fixture
async def stuck() -> AsyncIterator[TopicsRig]:
    """Nothing is durable until the bookie is started."""
    async with open_topics(SETTINGS, defaults=ON, bookie_runs=False) as opened:
        yield opened


async def producer_of(topic: Topic, name: str = "p") -> tuple[Producer, FakeOutbox]:
    outbox = FakeOutbox()
    producer = Producer(1, name, outbox, message_bytes_max=2**22)  # type: ignore[arg-type]
    await topic.add_producer(producer, None)
    return producer, outbox


def told(outbox: FakeOutbox) -> list[object]:
    """Sequence ids: of receipts as they are, of duplicates negative, of errors by their code."""
    found: list[object] = []
    for command in outbox.commands:
        if isinstance(command, pb.CommandSendReceipt):
            is_duplicate = command.message_id.entryId == NOWHERE
            found.append(-command.sequence_id if is_duplicate else command.sequence_id)
        elif isinstance(command, pb.CommandSendError):
            found.append(ServerError(command.error).name)
        elif isinstance(command, pb.CommandCloseProducer):
            found.append("closed")
    return found


async def test_what_is_on_its_way_is_neither_confirmed_nor_stored_again(
    stuck: TopicsRig, autojump_clock: MockClock
) -> None:
    topic = await topic_of(stuck)
    first, answers = await producer_of(topic)
    for number in (1, 2):
        topic.publishing.publish(first, send(number))
    topic.producers.remove(first)
    second, others = await producer_of(topic)
    topic.publishing.publish(second, send(1))
    assert told(others) == ["UNKNOWN", "closed"]
    assert second.closed
    settled: list[int] = []

    async def settle() -> None:
        settled.append(await topic.dedup.settle("p"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(settle)
        await wait_all_tasks_blocked()
        assert settled == []
        await stuck.nursery.start(stuck.bookie.run)
    assert settled == [2]
    assert told(answers) == [1, 2]
    third, others = await producer_of(topic)
    for number in (1, 2, 3):
        topic.publishing.publish(third, send(number))
    await trio.sleep(1)
    assert told(others) == [-1, -2, 3]
    assert topic.ledger.number_of_entries == 3


async def test_nothing_overtakes_an_entry_that_was_refused(
    rig: TopicsRig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await topic_of(rig)
    producer, answers = await producer_of(topic)
    topic.publishing.publish(producer, send(1))
    append = topic.ledger.append

    def refuse(*_: object) -> None:
        raise ReadOnly("the disk is full")

    monkeypatch.setattr(topic.ledger, "append", refuse)
    topic.publishing.publish(producer, send(2))
    monkeypatch.setattr(topic.ledger, "append", append)
    assert producer.closed, "so that its session gives it nothing more"
    assert [other.name for other in topic.producers] == []
    again, others = await producer_of(topic)
    for number in (2, 3):
        topic.publishing.publish(again, send(number))
    await trio.sleep(1)
    assert told(answers) == ["PERSISTENCE", "closed", 1]
    assert told(others) == [2, 3]
    assert topic.ledger.number_of_entries == 3


async def test_after_a_failure_exactly_what_is_stored_is_known(
    stuck: TopicsRig, autojump_clock: MockClock
) -> None:
    topic = await topic_of(stuck)
    producer, answers = await producer_of(topic)
    for number in (1, 2, 3):
        topic.publishing.publish(producer, send(number))
    topic.ledger._appender.fence(StorageError("it may be on disk or not"))
    assert told(answers) == ["PERSISTENCE"] * 3 + ["closed"]
    await stuck.nursery.start(stuck.bookie.run)
    await trio.sleep(1)
    anew = await topic_of(stuck)
    assert anew is not topic
    stored = anew.ledger.number_of_entries
    again, others = await producer_of(anew)
    for number in (1, 2, 3):
        anew.publishing.publish(again, send(number))
    await trio.sleep(1)
    assert told(others) == [-number if number <= stored else number for number in (1, 2, 3)]
    assert anew.ledger.number_of_entries == 3


async def test_snapshots_move_the_cursor_and_the_rest_is_read_again(
    rig: TopicsRig, autojump_clock: MockClock
) -> None:
    await publish(rig, 25)
    await trio.sleep(1)
    topic = await topic_of(rig)
    cursor = topic.ledger.cursors[DEDUPLICATION_CURSOR]
    assert cursor.properties == {"p": 24}
    assert cursor.backlog_entries() == 0
    await publish(rig, 30)
    await trio.sleep(1)
    assert topic.ledger.number_of_entries == 30
    other, _ = await producer_of(topic, "q")
    for number in range(4):
        topic.publishing.publish(other, send(number))
    await trio.sleep(1)
    assert "q" not in cursor.properties
    rig = await rig.restart()
    topic = await topic_of(rig)
    assert [topic.dedup.last_sequence_id(name) for name in ("p", "q", "r")] == [29, 3, -1]
    assert topic.subscriptions == {}
    with pytest.raises(NotAllowed, match=DEDUPLICATION_CURSOR):
        await topic.create_subscription(DEDUPLICATION_CURSOR)


async def test_the_cursor_holds_back_no_ledger_for_long(autojump_clock: MockClock) -> None:
    settings = BrokerSettings(dedup_snapshot_entries=10**6, dedup_upkeep_s=5)
    defaults = EffectivePolicies(deduplication=True, deduplication_snapshot_interval_s=10)
    async with open_topics(settings, defaults=defaults) as rig:
        await publish(rig, 5)
        cursor = (await topic_of(rig)).ledger.cursors[DEDUPLICATION_CURSOR]
        assert cursor.backlog_entries() == 5
        await trio.sleep(16)
        assert cursor.backlog_entries() == 0


async def test_switched_on_it_knows_what_is_on_its_way_and_off_it_forgets(autojump_clock: MockClock) -> None:
    async with open_topics(SETTINGS) as rig:
        topic = await topic_of(rig)
        producer, answers = await producer_of(topic)
        topic.publishing.publish(producer, send(3))
        policy = BY_NAME["deduplication"]
        await rig.rooms.policies.set_for_topic(TOPIC, policy, True)
        topic.publishing.publish(producer, send(4))
        await topic.dedup.ready()
        await trio.sleep(1)
        for number in (4, 5):
            topic.publishing.publish(producer, send(number))
        await trio.sleep(1)
        assert told(answers) == [3, 4, -4, 5]
        await rig.rooms.policies.set_for_topic(TOPIC, policy, False)
        await topic.dedup.ready()
        await trio.sleep(1)
        topic.publishing.publish(producer, send(5))
        await trio.sleep(1)
        assert told(answers) == [3, 4, -4, 5, 5]
        assert DEDUPLICATION_CURSOR not in topic.ledger.cursors


@pytest.mark.parametrize("highest", [2**63, 2**64 - 1])
async def test_a_highest_id_beyond_all_ids_is_negative_and_counts_for_nothing(
    rig: TopicsRig, autojump_clock: MockClock, highest: int
) -> None:
    topic = await topic_of(rig)
    producer, outbox = await producer_of(topic)
    for sequence_id in (5, 6):
        batch = send(sequence_id)
        batch.highest_sequence_id = highest
        topic.publishing.publish(producer, batch)
        await wait_all_tasks_blocked()
    assert told(outbox) == [5, 6]
    assert topic.dedup.last_sequence_id("p") == 6
