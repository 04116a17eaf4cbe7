"""The figures of topics that are not loaded, while topics are loaded, changed and closed meanwhile."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import pytest
import trio

from geminga.broker.operator.partitioned_topics import PartitionedTopics
from geminga.broker.operator.statistics import StatisticsOperator
from geminga.broker.policies.policies import EffectivePolicies
from geminga.broker.policies.values import BacklogQuota, Retention
from geminga.broker.subscription.statistics import statistics_of
from geminga.broker.subscription.unread_delays import READ_ENTRIES_MAX, read_delays
from geminga.broker.topic import unloaded
from geminga.broker.topic.backlog_quota import EVICT
from geminga.broker.topic.topic import Topic
from geminga.errors import StorageError
from geminga.names import TopicName
from tests.broker.topics_rig import TOPIC, open_topics, publish, subscription_of

HOUR_S = 3600
EVICTING = BacklogQuota(1, -1, EVICT)


async def no_rest() -> None:
    await trio.lowlevel.checkpoint()


async def test_a_topic_that_changed_during_its_reading_is_read_once_more(autojump_clock, monkeypatch) -> None:
    async with open_topics() as rig:
        await subscription_of(rig)
        await rig.topics.unload(TOPIC)
        read, read_count = unloaded.read_unopened, 0

        async def read_slowly(storage):
            nonlocal read_count
            read_count += 1
            found = await read(storage)
            assert figures() == (0, 1, 1)  # loaded, not loaded, unread
            if read_count == 1:
                await publish(rig, 3)
                await rig.topics.unload(TOPIC)
            return found

        def figures() -> tuple[int, int, int]:
            told = StatisticsOperator(rig.topics, rig.rooms, SimpleNamespace(created=0, active=0)).of_broker()
            return told.topics_loaded, told.topics_unloaded, told.topics_unread

        assert figures() == (0, 1, 2), "1 more while topics are still to be listed"
        monkeypatch.setattr(unloaded, "read_unopened", read_slowly)
        rig.nursery.start_soon(rig.topics.unloaded_topics.run)
        await trio.sleep(10)
        found = rig.topics.unloaded_topics.get(str(TOPIC))
        assert found is not None
        assert found.entries == 3
        assert figures() == (0, 1, 0)


@pytest.mark.parametrize("ending", ["unload", "due"])
async def test_the_note_stays_where_the_index_may_still_get_something(autojump_clock, ending: str) -> None:
    """Without it the next start would not load the topic, and tell no delayed message."""
    async with open_topics() as rig:
        await subscription_of(rig)
        await publish(rig, 2 * READ_ENTRIES_MAX, delay_s=HOUR_S)
        topic = await rig.topics.get(TOPIC, create=False)
        await topic.ledger.life.note_delayed(True)
        if ending == "unload":
            reads = await read_delays(topic.subscription("s"), partial(rig.topics.unload, TOPIC))
            assert reads is False
        else:
            await trio.sleep(2 * HOUR_S)
            assert await read_delays(topic.subscription("s"), no_rest)
            assert statistics_of(topic.subscription("s")).msg_overdue == 2 * READ_ENTRIES_MAX
            await topic.delays.note_held()
        assert topic.ledger.holds_delayed


async def test_a_topic_is_told_once_while_its_backlog_goes(autojump_clock) -> None:
    async with open_topics() as rig:
        await subscription_of(rig)
        await publish(rig, 3)
        topic = await rig.topics.get(TOPIC, create=False)
        other = TopicName.parse(f"{TOPIC}-other")
        await rig.topics.get(other, create=True)
        told = []
        for found in StatisticsOperator(rig.topics, rig.rooms, None).of_topics():
            if found is not None:
                told.append(found.name)
                await topic.subscription("s").clear_backlog()
        assert sorted(told) == sorted([str(TOPIC), str(other)])


async def test_figures_are_read_and_nothing_is_written(autojump_clock) -> None:
    """A load would close the open ledger and make another one."""
    async with open_topics() as rig:
        for number in range(3):
            name = TopicName.parse(f"{TOPIC}{number}")
            await subscription_of(rig, name)
            await publish(rig, number, name)
        rig = await rig.restart()
        await trio.sleep(60)

        def written() -> tuple[int, int, int, int]:
            bookie = rig.bookie.statistics()
            records = rig.rooms.metadata.statistics().requests
            return (
                records,
                bookie.entries_written,
                bookie.journal_groups,
                rig.bookie.inventory.counts().ledgers,
            )

        before = written()
        rig.nursery.start_soon(rig.topics.unloaded_topics.run)
        await trio.sleep(60)
        found = [
            one for one in StatisticsOperator(rig.topics, rig.rooms, None).of_topics() if one is not None
        ]
        assert {one.name: one.subscriptions["s"].msg_backlog for one in found} == {
            f"{TOPIC}{number}": number for number in range(3)
        }
        assert (written(), rig.topics.loaded) == (before, {})


async def test_topics_with_a_backlog_are_told_first(autojump_clock) -> None:
    """A page of metrics keeps as many as its bound has room for."""
    empty, loaded, unloaded = (TopicName.parse(f"{TOPIC}-{kind}") for kind in "abc")
    async with open_topics() as rig:
        for name in (empty, loaded, unloaded):
            await subscription_of(rig, name)
        for name in (loaded, unloaded):
            await publish(rig, 3, name)
        rig.nursery.start_soon(rig.topics.unloaded_topics.run)
        await rig.topics.unload(unloaded)
        await trio.sleep(60)
        assert list(rig.topics.loaded) == [str(empty), str(loaded)]
        found = [
            one for one in StatisticsOperator(rig.topics, rig.rooms, None).of_topics() if one is not None
        ]
        assert [(one.name, one.is_loaded) for one in found] == [
            (str(loaded), True),
            (str(unloaded), False),
            (str(empty), True),
        ]


async def test_loads_leave_most_of_the_time_to_clients_and_wait_for_memory(autojump_clock) -> None:
    async with open_topics() as rig:
        for number in range(5):
            name = TopicName.parse(f"{TOPIC}{number}")
            await subscription_of(rig, name)
            await publish(rig, 1, name, delay_s=HOUR_S)
            await (await rig.topics.get(name, create=False)).ledger.life.note_delayed(True)
        rig = await rig.restart()
        unloaded_topics = rig.topics.unloaded_topics
        began: list[float] = []
        has_room = False

        async def load(name: TopicName) -> Topic:
            began.append(trio.current_time())
            topic = await rig.topics.get(name, create=False)
            await trio.sleep_until(began[-1] + 0.1)
            return topic

        rig.nursery.start_soon(unloaded_topics.run)
        rig.nursery.start_soon(
            unloaded_topics.load_wanted, rig.rooms.policies, load, lambda: has_room, HOUR_S
        )
        await trio.sleep(60)
        assert not began
        has_room = True
        await trio.sleep(60)
        assert [after - before for before, after in pairwise(began)] == [pytest.approx(0.5)] * 4


async def test_the_checks_reach_topics_that_nobody_has_loaded(autojump_clock) -> None:
    """The TTL after a restart, a quota that is set later; and no others are loaded or looked at again."""
    empty = TopicName.parse(f"{TOPIC}-empty")
    async with open_topics() as rig:
        await subscription_of(rig)
        await publish(rig, 3)
        await rig.topics.get(empty, create=True)
        rig = await rig.restart()
        rig.nursery.start_soon(rig.topics.unloaded_topics.run)
        rig.nursery.start_soon(rig.topics.load_wanted, lambda: True)
        looks = 0
        policies = rig.rooms.policies
        effective = policies.effective

        def counted(topic: TopicName) -> EffectivePolicies:
            nonlocal looks
            looks += 1
            return effective(topic)

        policies.effective = counted
        await trio.sleep(HOUR_S)
        assert (list(rig.topics.loaded), looks) == ([], 1)

        for change in (EffectivePolicies(message_ttl_s=60), EffectivePolicies(quota_size=EVICTING)):
            await policies.change_defaults(change)
            await trio.sleep(HOUR_S)
            assert list(rig.topics.loaded) == [str(TOPIC)]
            assert (await rig.topics.get(TOPIC, create=False)).subscription("s").backlog() == 0
            await rig.topics.unload(TOPIC)
            await trio.sleep(HOUR_S)
            assert not rig.topics.loaded
            await policies.change_defaults(EffectivePolicies())
            await publish(rig, 3)
            await rig.topics.unload(TOPIC)

        await policies.change_defaults(EffectivePolicies(retention=Retention(60, -1)))
        await trio.sleep(HOUR_S)
        assert list(rig.topics.loaded) == [str(TOPIC)]


async def test_what_holds_delayed_messages_is_loaded_first_and_again_after_an_error(autojump_clock) -> None:
    expiring, delayed, early, idle = (TopicName.parse(f"{TOPIC}-{kind}") for kind in "abcd")
    async with open_topics() as rig:
        for name in (expiring, delayed, early, idle):
            await subscription_of(rig, name)
        await publish(rig, 3, expiring)
        for name in (delayed, early):
            await publish(rig, 5, name, delay_s=HOUR_S)
            await (await rig.topics.get(name, create=False)).ledger.life.note_delayed(True)
        rig = await rig.restart()
        await rig.rooms.policies.change_defaults(EffectivePolicies(message_ttl_s=2 * HOUR_S))
        await rig.topics.get(early, create=False)
        unloaded_topics = rig.topics.unloaded_topics
        tries: list[TopicName] = []

        async def load(name: TopicName) -> Topic:
            tries.append(name)
            if tries == [early, delayed]:
                raise StorageError("the disk")
            return await rig.topics.get(name, create=False)

        rig.nursery.start_soon(unloaded_topics.run)
        rig.nursery.start_soon(unloaded_topics.load_wanted, rig.rooms.policies, load, lambda: True, 60)
        await trio.sleep(30)
        assert tries == [early, delayed, expiring]
        await trio.sleep(60)
        assert tries[3:] == [delayed]
        for name in (delayed, early):
            assert len((await rig.topics.get(name, create=False)).subscription("s").delayed) == 5
        await rig.topics.unload(delayed)
        await trio.sleep(5)
        assert tries[4:] == [delayed], "at once, not with the next look"


@pytest.mark.parametrize("is_loaded", [True, False])
async def test_a_deleted_partition_with_delayed_messages_is_not_made_again(
    autojump_clock, is_loaded: bool
) -> None:
    """Its partitioned topic is still on record while the partitions are deleted one after the other."""
    async with open_topics() as rig:
        partitioned = PartitionedTopics(rig.topics, rig.rooms)
        await rig.topics.catalog.create_partitioned(TOPIC, 3, {})
        parts = [TOPIC.partition(index) for index in range(3)]
        for part in parts:
            await subscription_of(rig, part)
            await publish(rig, 5, part, delay_s=HOUR_S)
            await (await rig.topics.get(part, create=False)).ledger.life.note_delayed(True)
        if not is_loaded:
            rig = await rig.restart()
            partitioned = PartitionedTopics(rig.topics, rig.rooms)
        rig.nursery.start_soon(rig.topics.unloaded_topics.run)
        rig.nursery.start_soon(rig.topics.load_wanted, lambda: True)
        for part in parts[:2]:
            await rig.topics.delete(part, force=True)
            await trio.sleep(10)
        await partitioned.delete(TOPIC, force=True)
        await trio.sleep(10)
        assert not any(rig.topics.catalog.exists(part) for part in parts)
        assert not rig.topics.loaded
        assert len(rig.topics.unloaded_topics) == 0
