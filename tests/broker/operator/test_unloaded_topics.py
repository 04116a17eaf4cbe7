"""What is done to topics that are not loaded leaves the same as if they were, and meets their loads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from geminga.broker.operator.partitioned_topics import PartitionedTopics
from geminga.broker.operator.subscriptions import SubscriptionsOperator
from geminga.errors import Conflict, SubscriptionNotFound, TopicNotFound
from geminga.managed_ledger.orphans import find_orphan_ledgers
from geminga.metadata import records
from geminga.position import EARLIEST, LATEST
from tests.broker.topics_rig import TOPIC, TopicsRig, open_topics, publish, subscription_of, topic_of

PARTED = records.TopicName.parse("persistent://public/default/parted")


def operator_of(rig: TopicsRig) -> SubscriptionsOperator:
    return SubscriptionsOperator(rig.topics, rig.rooms)


async def backlogs(rig: TopicsRig) -> dict[str, int]:
    topic = await topic_of(rig)
    return {name: subscription.backlog() for name, subscription in topic.subscriptions.items()}


async def ledgers_on_disk(rig: TopicsRig) -> set[int]:
    return {records.ledger_id_of(child) for child in rig.rooms.metadata.children(records.LEDGERS)}


async def create(rig: TopicsRig, name: str, start: object = LATEST) -> None:
    await operator_of(rig).create(TOPIC, name, start=start, properties={"of": name}, replicated=True)  # type: ignore[arg-type]


Change = Callable[[TopicsRig], Awaitable[None]]
CHANGES: dict[str, Change] = {
    "create latest": lambda rig: create(rig, "new"),
    "create earliest": lambda rig: create(rig, "new", EARLIEST),
    "clear": lambda rig: operator_of(rig).skip(TOPIC, "s", None),
    "clear one that is at the end": lambda rig: operator_of(rig).skip(TOPIC, "end", None),
    "delete": lambda rig: operator_of(rig).delete(TOPIC, "s", force=False),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("messages", [0, 20])
async def test_a_change_of_an_unloaded_topic_is_that_of_a_loaded_one(
    change: str, messages: int, autojump_clock: MockClock
) -> None:
    found = []
    for unloaded in (False, True):
        async with open_topics() as rig:
            subscription = await subscription_of(rig)
            await publish(rig, messages)
            await (await topic_of(rig)).create_subscription("end")
            if messages:
                subscription.cursor.acknowledge([subscription.cursor.nth_unacknowledged(3)])  # type: ignore[list-item]
            if unloaded:
                await rig.topics.unload(TOPIC)
            await CHANGES[change](rig)
            assert (str(TOPIC) not in rig.topics.loaded) == unloaded, "by the records alone"
            names = await operator_of(rig).names(TOPIC)
            rig = await rig.restart()
            shown = await backlogs(rig)
            topic = await topic_of(rig)
            properties = {
                name: (dict(s.cursor.subscription_properties), s.cursor.is_replicated)
                for name, s in topic.subscriptions.items()
            }
            assert names == sorted(shown)
            await publish(rig, 5)
            assert await backlogs(rig) == {name: count + 5 for name, count in shown.items()}
            await rig.topics.unload(TOPIC)
            assert find_orphan_ledgers(rig.rooms.metadata) == []
            found.append((shown, properties))
    assert found[0] == found[1]


async def test_the_last_subscription_of_stored_messages_is_deleted_in_the_loaded_topic(
    autojump_clock: MockClock,
) -> None:
    async with open_topics() as rig:
        await subscription_of(rig)
        await publish(rig, 5)
        await rig.topics.unload(TOPIC)
        await operator_of(rig).delete(TOPIC, "s", force=False)
        assert str(TOPIC) in rig.topics.loaded, "only a loaded topic is trimmed"
        with pytest.raises(SubscriptionNotFound):
            await operator_of(rig).delete(TOPIC, "s", force=False)
        assert await operator_of(rig).names(TOPIC) == []


async def test_a_subscription_on_a_partition_that_was_not_used_makes_the_partition(
    autojump_clock: MockClock,
) -> None:
    async with open_topics() as rig:
        await rig.topics.catalog.create_partitioned(PARTED, 3)
        one = PARTED.partition(1)
        assert not await operator_of(rig).has(one, "s")
        assert not rig.topics.catalog.exists(one), "a look makes nothing"
        await operator_of(rig).create(one, "s", start=LATEST, properties={}, replicated=False)
        with pytest.raises(Conflict):
            await operator_of(rig).create(one, "s", start=LATEST, properties={}, replicated=False)
        assert await operator_of(rig).has(one, "s")
        topic = await rig.topics.get(one, create=False)
        assert topic.subscriptions["s"].backlog() == 0
        with pytest.raises(TopicNotFound):
            await operator_of(rig).names(PARTED.partition(3))


async def test_a_load_waits_for_a_change_of_the_records(autojump_clock: MockClock) -> None:
    async with open_topics() as rig:
        await subscription_of(rig)
        with rig.topics.unloaded(TOPIC) as found:
            assert found is None, "it is loaded"
        await rig.topics.unload(TOPIC)
        loaded = trio.Event()

        async def load() -> None:
            await rig.topics.get(TOPIC, create=False)
            loaded.set()

        async with trio.open_nursery() as nursery:
            with rig.topics.unloaded(TOPIC) as found:
                assert found is not None
                with rig.topics.unloaded(TOPIC) as other:
                    assert other is None, "a record has one writer"
                nursery.start_soon(load)
                await trio.testing.wait_all_tasks_blocked()
                assert not loaded.is_set()
            await loaded.wait()


async def test_a_partitioned_topic_is_deleted_without_loading_it(autojump_clock: MockClock) -> None:
    async with open_topics() as rig:
        await rig.topics.catalog.create_partitioned(PARTED, 4)
        for index in (0, 2):
            topic = await rig.topics.get(PARTED.partition(index), create=True)
            await topic.create_subscription("s")
            await rig.topics.unload(topic.name)
        before = await ledgers_on_disk(rig)
        assert len(before) >= 2
        loads = rig.rooms.figures.topic_loads.summary()
        await PartitionedTopics(rig.topics, rig.rooms).delete(PARTED)
        assert rig.rooms.figures.topic_loads.summary() == loads
        assert await ledgers_on_disk(rig) == set()
        assert not any(rig.topics.catalog.exists(PARTED.partition(index)) for index in range(4))
        assert rig.topics.catalog.partitions(PARTED) == 0
