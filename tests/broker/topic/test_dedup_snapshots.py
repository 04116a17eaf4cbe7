"""When deduplication writes its state down, how much of it, and what a chunked message leaves in it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterable

import pytest
import trio
from trio.testing import MockClock

from geminga.broker.policies.policies import EffectivePolicies
from geminga.broker.policies.settings import BrokerSettings
from geminga.broker.topic.dedup import PROPERTIES_BYTES_MAX, SequenceIds
from geminga.broker.topic.producer import Producer
from geminga.broker.topic.topic import Topic
from geminga.managed_ledger.cursor.system_cursors import DEDUPLICATION_CURSOR
from geminga.wire.commands import Send
from tests.broker.dispatch_rig import message
from tests.broker.topic.test_dedup_topic import ON, SETTINGS, producer_of, told
from tests.broker.topics_rig import TopicsRig, open_topics, send, topic_of


@pytest.fixture
async def rig() -> AsyncIterator[TopicsRig]:
    """A test asks for `autojump_clock` itself: pytest-trio takes no clock from a fixture's own fixtures."""
    async with open_topics(SETTINGS, defaults=ON) as opened:
        yield opened


async def publish(topic: Topic, producer: Producer, numbers: Iterable[int]) -> None:
    """Durable on return, and time has passed for a snapshot."""
    for number in numbers:
        topic.publishing.publish(producer, send(number))
    await trio.sleep(1)


async def test_each_so_many_entries_there_is_another_snapshot(
    rig: TopicsRig, autojump_clock: MockClock
) -> None:
    topic = await topic_of(rig)
    cursor = topic.ledger.cursors[DEDUPLICATION_CURSOR]
    producer, _ = await producer_of(topic)
    found = []
    for first in range(0, 40, 10):
        await publish(topic, producer, range(first, first + 10))
        found.append((dict(cursor.properties), cursor.backlog_entries()))
    assert found == [({"p": last}, 0) for last in (9, 19, 29, 39)]


@pytest.mark.parametrize(("interval_s", "backlog"), [(0, 5), (10, 0)])
async def test_with_an_interval_of_0_no_snapshot_is_written_for_its_age(
    autojump_clock: MockClock, interval_s: int, backlog: int
) -> None:
    settings = BrokerSettings(dedup_snapshot_entries=10**6, dedup_upkeep_s=5)
    defaults = EffectivePolicies(deduplication=True, deduplication_snapshot_interval_s=interval_s)
    async with open_topics(settings, defaults=defaults) as rig:
        topic = await topic_of(rig)
        producer, _ = await producer_of(topic)
        await publish(topic, producer, range(5))
        await trio.sleep(60)
        assert topic.ledger.cursors[DEDUPLICATION_CURSOR].backlog_entries() == backlog


@pytest.mark.parametrize("letter", ["x", "é"])
def test_a_snapshot_of_long_names_keeps_to_its_bytes_and_to_the_latest(letter: str) -> None:
    """Each value counts for 12 bytes, each name for its bytes in UTF-8."""
    ids = SequenceIds(10_000, lambda: (), itertools.count().__next__)
    width = len(letter.encode())
    names = [f"{number:08}" + letter * ((8192 - 12 - 8) // width) for number in range(100)]
    for number, name in enumerate(names):
        ids.persisted(name, number)
    assert ids.snapshot() == {name: number for number, name in enumerate(names) if number >= 36}
    assert PROPERTIES_BYTES_MAX == 64 * 8192


async def test_long_names_of_many_producers_do_not_keep_a_snapshot_from_being_written(
    rig: TopicsRig, autojump_clock: MockClock
) -> None:
    topic = await topic_of(rig)
    names = [f"{number:03}" + "x" * 8000 for number in range(150)]
    for number, name in enumerate(names):
        producer, _ = await producer_of(topic, name)
        topic.publishing.publish(producer, send(number))
        await trio.sleep(0.01)
        topic.producers.remove(producer)
    await trio.sleep(1)
    cursor = topic.ledger.cursors[DEDUPLICATION_CURSOR]
    assert cursor.backlog_entries() < 20
    assert cursor.properties[names[149 - cursor.backlog_entries()]] == 149 - cursor.backlog_entries()


def chunk(sequence_id: int, number: int, chunks: int) -> Send:
    body = message(b"x", sequence_id=sequence_id, chunk=(number, chunks))
    return Send(1, sequence_id, 1, 0, body, True, is_chunk=True)


async def test_only_the_last_chunk_counts_as_the_message(rig: TopicsRig, autojump_clock: MockClock) -> None:
    topic = await topic_of(rig)
    producer, answers = await producer_of(topic)
    known = []
    for number in range(3):
        topic.publishing.publish(producer, chunk(7, number, 3))
        await trio.sleep(1)
        known.append(topic.dedup.last_sequence_id("p"))
    assert known == [-1, -1, 7]
    for number in range(3):
        topic.publishing.publish(producer, chunk(7, number, 3))
    await trio.sleep(1)
    assert told(answers) == [7, 7, 7, -7, -7, -7]
    assert topic.ledger.number_of_entries == 3


async def test_chunks_of_a_message_that_is_not_complete_are_stored_again_after_a_start(
    rig: TopicsRig, autojump_clock: MockClock
) -> None:
    topic = await topic_of(rig)
    producer, _ = await producer_of(topic)
    for number in range(2):
        topic.publishing.publish(producer, chunk(7, number, 3))
    await trio.sleep(1)
    rig = await rig.restart()
    topic = await topic_of(rig)
    assert topic.dedup.last_sequence_id("p") == -1
    producer, answers = await producer_of(topic)
    for number in range(3):
        topic.publishing.publish(producer, chunk(7, number, 3))
        await trio.sleep(1)
    assert told(answers) == [7, 7, 7]
    rig = await rig.restart()
    assert (await topic_of(rig)).dedup.last_sequence_id("p") == 7
