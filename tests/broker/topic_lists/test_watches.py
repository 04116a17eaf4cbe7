"""Lists of names that follow the metadata store, on topics with real parts."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from geminga.broker.flow.slices import Pace
from geminga.broker.operator.partitioned_topics import PartitionedTopics
from geminga.broker.topic.topics import Topics
from geminga.broker.topic_lists import watches
from geminga.broker.topic_lists.pattern import TopicsPattern, compiled
from geminga.broker.topic_lists.topic_names import TopicNames
from geminga.broker.topic_lists.watches import PatternList
from geminga.errors import GemingaError, NotAllowed
from geminga.metadata import records
from geminga.metadata.watch import Watchers
from geminga.names import NamespaceName, TopicName
from geminga.wire.topic_list import topics_hash
from tests.broker.topics_rig import TopicsRig, open_topics

NAMESPACE = NamespaceName.parse("public/default")
OTHER = NamespaceName.parse("public/other")
PREFIX = "persistent://public/default/"
TEXT = PREFIX + "orders-.*"


def pattern_of(text: str) -> TopicsPattern:
    pattern = compiled(text)
    assert pattern is not None
    return pattern


@dataclass(eq=False)
class Seen:
    """A watch that keeps what it was told."""

    changes: list[tuple[list[str], list[str], str]] = field(default_factory=list)
    is_answered: bool = True

    def changed(self, added: list[str], deleted: list[str], digest: str) -> None:
        self.changes.append(([name.removeprefix(PREFIX) for name in added], deleted, digest))

    @property
    def added(self) -> list[str]:
        return [name for added, _, _ in self.changes for name in added]


async def watch(topics: Topics, seen: Seen, text: str = TEXT) -> PatternList:
    return await topics.lists.watch(NAMESPACE, text, pattern_of(text), seen)


async def watch_other(rig: TopicsRig, seen: Seen, local: str = ".*") -> PatternList:
    text = f"persistent://{OTHER}/{local}"
    return await rig.topics.lists.watch(OTHER, text, pattern_of(text), seen)


async def store_partitioned(rig: TopicsRig, name: str, count: int) -> None:
    """In any namespace, also one that does not exist."""
    path = records.partitioned_topic_path(TopicName.parse(name))
    record = records.PartitionedTopicRecord(partitions=count, properties={}, created_ms=0)
    await rig.rooms.metadata.put(path, records.encode(record))


async def test_what_is_added_and_deleted_is_told_with_the_hash_of_the_whole_list(
    autojump_clock: MockClock,
) -> None:
    async with open_topics() as rig:
        topics, seen = rig.topics, Seen()
        await topics.get(TopicName.parse("orders-a"), create=True)
        kept = await watch(topics, seen)
        assert kept.names == [PREFIX + "orders-a"]
        for name in ("orders-b", "other"):
            await topics.get(TopicName.parse(name), create=True)
        await wait_all_tasks_blocked()
        names = [PREFIX + "orders-a", PREFIX + "orders-b"]
        assert seen.changes == [(["orders-b"], [], topics_hash(names))]
        await topics.delete(TopicName.parse("orders-a"))
        await wait_all_tasks_blocked()
        assert seen.changes[1:] == [([], names[:1], topics_hash(names[1:]))]
        assert list(kept.names) == names[1:]


async def test_partitions_come_with_their_topic_and_with_its_growth_and_go_with_it(
    autojump_clock: MockClock,
) -> None:
    async with open_topics() as rig:
        topics, seen, name = rig.topics, Seen(), TopicName.parse("orders-p")
        kept = await watch(topics, seen)
        await topics.catalog.create_partitioned(name, 2)
        await wait_all_tasks_blocked()
        assert seen.added == ["orders-p-partition-0", "orders-p-partition-1"]
        await topics.get(name.partition(0), create=True)
        await wait_all_tasks_blocked()
        assert len(seen.changes) == 1, "its first use makes it no newer"
        await PartitionedTopics(topics, rig.rooms).grow(name, 3)
        await wait_all_tasks_blocked()
        assert seen.added[2:] == ["orders-p-partition-2"]
        await PartitionedTopics(topics, rig.rooms).delete(name)
        await wait_all_tasks_blocked()
        assert seen.changes[-1][1] == [f"{PREFIX}orders-p-partition-{index}" for index in range(3)]
        assert kept.names == []


async def test_topics_made_at_once_are_told_in_few_pushes(autojump_clock: MockClock) -> None:
    async with open_topics() as rig:
        topics, seen = rig.topics, Seen()
        kept = await watch(topics, seen)
        async with trio.open_nursery() as nursery:
            for number in range(300):
                name = TopicName.parse(f"orders-{number:03}")
                nursery.start_soon(topics.catalog.create_partitioned, name, 1)
        await wait_all_tasks_blocked()
        assert sorted(seen.added) == [f"orders-{number:03}-partition-0" for number in range(300)]
        assert len(kept.names) == 300
        assert len(seen.changes) < 30
        assert seen.changes[-1][2] == topics_hash(kept.names)


async def test_a_topic_of_thousands_of_partitions_is_told_in_slices(autojump_clock: MockClock) -> None:
    """With 10,000 partitions and a hundred patterns the loop stood still for seconds."""
    async with open_topics() as rig, trio.open_nursery() as nursery:
        topics, seen, early = rig.topics, Seen(), Seen(is_answered=False)
        kept = await watch(topics, seen)
        await watch(topics, early)
        turns: list[int] = []

        async def count() -> None:
            while not seen.changes:
                turns.append(len(kept.names))
                await trio.lowlevel.checkpoint()

        await rig.topics.catalog.create_partitioned(TopicName.parse("orders-p"), 3000, {})
        nursery.start_soon(count)
        await wait_all_tasks_blocked()
        assert len(turns) > 3000 // watches.LOOKED_MAX
        assert set(turns) <= {0, 3000}, "the list changes in one step"
        ((added, deleted, digest),) = seen.changes
        assert (len(added), deleted, digest) == (3000, [], topics_hash(kept.names))
        assert kept.names == sorted(kept.names)
        assert early.changes == [], "its answer is going to have them"
        await PartitionedTopics(topics, rig.rooms).delete(TopicName.parse("orders-p"))
        await wait_all_tasks_blocked()
        assert kept.names == []
        assert len(seen.changes[1][1]) == 3000


async def test_many_differences_are_taken_in_slices(autojump_clock: MockClock) -> None:
    """26 names that went of 100,000 took a step of 11 ms."""
    draw, turns, pace = random.Random(1), 0, Pace()
    everything = [f"{PREFIX}orders-{number:05}" for number in range(5000)]
    for added, deleted in ((0, 26), (30, 0), (200, 300), (5000, 0), (0, 5000)):
        names = sorted(draw.sample(everything, 5000 - added))
        lacking = sorted(set(everything) - set(names))
        gone = sorted(draw.sample(names, deleted))

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            turns = 0
            nursery.start_soon(count)
            found = await watches._changed(names, lacking, gone, pace)
            nursery.cancel_scope.cancel()
        assert found == sorted({*names, *lacking} - {*gone})
        assert turns >= len(names) // 200 - 1


async def test_a_watch_that_falls_behind_reads_the_names_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_topics() as rig:
        topics, seen = rig.topics, Seen()
        for number in range(3):
            await topics.catalog.create_partitioned(TopicName.parse(f"orders-old-{number}"), 1)
        kept = await watch(topics, seen)
        async with trio.open_nursery() as nursery:
            for number in range(3):
                old = TopicName.parse(f"orders-old-{number}")
                nursery.start_soon(PartitionedTopics(topics, rig.rooms).delete, old)
            for number in range(600):
                name = TopicName.parse(f"orders-{number:03}")
                nursery.start_soon(topics.catalog.create_partitioned, name, 1)
        await wait_all_tasks_blocked()
        assert len(kept.names) == 600
        assert len(seen.added) == 600
        assert sum(len(deleted) for _, deleted, _ in seen.changes) == 3


async def test_watches_of_one_pattern_share_a_list_and_the_last_frees_it(autojump_clock: MockClock) -> None:
    async with open_topics() as rig:
        topics, first, second = rig.topics, Seen(), Seen()
        before = rig.rooms.metadata.statistics().watchers
        kept = await watch(topics, first)
        assert await watch(topics, second) is kept
        assert rig.rooms.metadata.statistics().watchers == before + 1
        topics.lists.unwatch(kept, first)
        topics.lists.unwatch(kept, first)
        await topics.catalog.create_partitioned(TopicName.parse("orders-p"), 1)
        await wait_all_tasks_blocked()
        assert (first.added, second.added) == ([], ["orders-p-partition-0"])
        topics.lists.unwatch(kept, second)
        again = await watch(topics, first)
        assert again is not kept, "it does not join a list that ends"
        assert again.names == [PREFIX + "orders-p-partition-0"]
        topics.lists.unwatch(again, first)
        await wait_all_tasks_blocked()
        assert rig.rooms.metadata.statistics().watchers == before


async def test_names_that_all_watches_keep_are_bounded(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watches, "NAMES_KEPT_MAX", 5)
    async with open_topics() as rig:
        topics, seen = rig.topics, Seen()
        await topics.catalog.create_partitioned(TopicName.parse("orders-p"), 4)
        kept = await watch(topics, seen)
        with pytest.raises(NotAllowed, match="at most 5 names"):
            await watch(topics, Seen(), PREFIX + "orders-p.*")
        await topics.catalog.create_partitioned(TopicName.parse("orders-q"), 2)
        await wait_all_tasks_blocked()
        assert "not watched any more" in caplog.text
        topics.lists.unwatch(kept, seen)
        assert (await watch(topics, seen, PREFIX + "orders-q")).names == [
            PREFIX + f"orders-q-partition-{index}" for index in range(2)
        ]


async def test_names_kept_for_further_lists_end_no_list_and_refuse_none(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of a large namespace refused the watches of others, and ended them while they were read."""
    monkeypatch.setattr(watches, "NAMES_KEPT_MAX", 13)
    async with open_topics() as rig:
        seen = Seen()
        kept = await watch_other(rig, seen)
        await rig.topics.catalog.create_partitioned(TopicName.parse("orders-p"), 5)
        await watch(rig.topics, Seen())
        await store_partitioned(rig, f"{OTHER}/q", 4)
        await wait_all_tasks_blocked()
        assert not kept.end
        assert len(seen.added) == 4
        assert not (await watch_other(rig, Seen(), "q")).end


async def test_a_change_in_one_namespace_ends_no_list_while_a_larger_one_is_read(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "NAMES_KEPT_MAX", 10)
    async with open_topics() as rig, trio.open_nursery() as nursery:
        kept, changed = await watch_other(rig, Seen()), trio.Event()

        async def change() -> None:
            await store_partitioned(rig, f"{OTHER}/q", 4)
            changed.set()

        gather = PatternList.gather

        async def slow(self: PatternList, names: Sequence[str]) -> None:
            nursery.start_soon(change)
            await changed.wait()
            await trio.sleep(1)
            await gather(self, names)

        monkeypatch.setattr(PatternList, "gather", slow)
        await rig.topics.catalog.create_partitioned(TopicName.parse("orders-p"), 50)
        await watch(rig.topics, Seen(), PREFIX + "none")
        assert not kept.end
        assert len(kept.names) == 4


async def test_a_list_that_grew_too_long_ends_before_its_watches_are_told(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While thousands of watches were told, each change in another namespace ended lists there."""
    kept: list[int] = []

    class Telling(Seen):
        def changed(self, added: list[str], deleted: list[str], digest: str) -> None:
            kept.append(sum(each.names_listed for each in topics.lists._namespaces.values()))

    monkeypatch.setattr(watches, "NAMES_KEPT_MAX", 10)
    async with open_topics() as rig:
        topics = rig.topics
        found = await watch(topics, Telling())
        await topics.catalog.create_partitioned(TopicName.parse("orders-p"), 11)
        await wait_all_tasks_blocked()
        assert found.end
        assert kept == [0]


async def test_names_that_a_client_left_while_they_were_read_are_counted(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, scope = TopicNames.each_name_in, trio.CancelScope()

    def left(self: TopicNames, namespace: NamespaceName) -> Iterator[str]:
        scope.cancel()
        yield from drawn(self, namespace)

    monkeypatch.setattr(watches, "NAMES_KEPT_MAX", 10)
    async with open_topics() as rig:
        await watch(rig.topics, Seen(), PREFIX + "none")
        await rig.topics.catalog.create_partitioned(TopicName.parse("orders-p"), 50)
        await wait_all_tasks_blocked()
        monkeypatch.setattr(TopicNames, "each_name_in", left)
        with scope:
            await watch(rig.topics, Seen(), PREFIX + "nothing")
        assert scope.cancelled_caught
        await wait_all_tasks_blocked()
        assert rig.topics.lists._namespaces[NAMESPACE].names_spare == 0


async def test_pushes_do_not_wait_while_further_lists_are_gathered(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They waited for the turn of each, behind all that lists names on the broker. What changes meanwhile is
    in the list that was gathered.
    """
    async with open_topics() as rig, trio.open_nursery() as nursery:
        topics, seen, further = rig.topics, Seen(), Seen()
        await topics.catalog.create_partitioned(TopicName.parse("orders-gone"), 1)
        await watch(topics, seen)
        gather = PatternList.gather

        async def slow(self: PatternList, names: Sequence[str]) -> None:
            await gather(self, names)
            await trio.sleep(10)

        monkeypatch.setattr(PatternList, "gather", slow)
        async with topics.lists.listing:
            nursery.start_soon(watch, topics, further, PREFIX + "orders.*")
            await wait_all_tasks_blocked()
            await topics.catalog.create_partitioned(TopicName.parse("orders-p"), 1)
            await wait_all_tasks_blocked()
            assert seen.added == ["orders-p-partition-0"]
        await trio.sleep(5)
        await PartitionedTopics(topics, rig.rooms).delete(TopicName.parse("orders-gone"))
        await topics.catalog.create_partitioned(TopicName.parse("orders-q"), 1)
        await wait_all_tasks_blocked()
        assert seen.added == ["orders-p-partition-0", "orders-q-partition-0"]
        await trio.sleep(20)
        found = await watch(topics, Seen(), PREFIX + "orders.*")
        assert list(found.names) == [f"{PREFIX}orders-{name}-partition-0" for name in "pq"]
        assert found.digest == topics_hash(found.names)


async def test_patterns_that_begin_together_share_one_reading_of_the_names(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 patterns over 10,000 topics took 165 s of CPU, as each read and sorted the names for itself."""
    drawn, readings = TopicNames.each_name_in, []

    def counted(self: TopicNames, namespace: NamespaceName) -> Iterator[str]:
        readings.append(namespace)
        return drawn(self, namespace)

    monkeypatch.setattr(TopicNames, "each_name_in", counted)
    async with open_topics() as rig, trio.open_nursery() as nursery:
        topics, found = rig.topics, {}

        async def begin(number: int) -> None:
            found[number] = await watch(topics, Seen(), f"{PREFIX}orders-{number}")

        await topics.catalog.create_partitioned(TopicName.parse("orders-3"), 2)
        for number in range(10):
            nursery.start_soon(begin, number)
        await wait_all_tasks_blocked()
        await topics.get(TopicName.parse("orders-7"), create=True)
        await wait_all_tasks_blocked()
        later = await watch(topics, Seen(), f"{PREFIX}orders-[7-9]")
        assert len(readings) == 1
        assert later.names == [PREFIX + "orders-7"]
        assert {number: list(each.names) for number, each in found.items() if each.names} == {
            3: [f"{PREFIX}orders-3-partition-{index}" for index in range(2)],
            7: [PREFIX + "orders-7"],
        }


@pytest.mark.parametrize("seed", range(20))
async def test_lists_are_the_names_whatever_comes_and_goes(
    seed: int, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Watches begin and end, topics come and go, all at once; with little room for names, and with watchers
    that fall behind in every second run. What a watch was told is what its list has in the end.
    """
    draw = random.Random(seed)
    if seed % 2:
        monkeypatch.setattr(Watchers.__init__, "__defaults__", (3,))
    monkeypatch.setattr(watches, "NAMES_KEPT_MAX", draw.choice((1000, 60, 40)))
    monkeypatch.setattr(watches, "CHANGES_MAX", draw.choice((2, 1000)))
    texts = [
        PREFIX + text for text in (".*", "orders-[0-4]", "orders-[3-9]", ".*[0-9]", "orders-p.*", "none")
    ]
    async with open_topics() as rig:
        topics, names = rig.topics, rig.topics.catalog.names
        watching: dict[Seen, tuple[PatternList, list[str]]] = {}

        async def begin() -> None:
            seen = Seen(is_answered=False)
            with contextlib.suppress(NotAllowed):
                found = await watch(topics, seen, draw.choice(texts))
                seen.is_answered = True
                watching[seen] = (found, [name.removeprefix(PREFIX) for name in found.names])

        async def leave() -> None:
            if watching:
                seen = draw.choice(list(watching))
                topics.lists.unwatch(watching.pop(seen)[0], seen)

        async def come_or_go() -> None:
            name = TopicName.parse(draw.choice(("orders-", "orders-p")) + str(draw.randrange(10)))
            with contextlib.suppress(GemingaError):
                if names.partitions(name):
                    await PartitionedTopics(topics, rig.rooms).delete(name)
                elif names.exists(name):
                    await topics.delete(name)
                elif "p" in name.local:
                    await topics.catalog.create_partitioned(name, draw.randrange(1, 4))
                else:
                    await topics.get(name, create=True)

        for _ in range(30):
            async with trio.open_nursery() as nursery:
                for _ in range(draw.randrange(1, 8)):
                    nursery.start_soon(draw.choices((begin, leave, come_or_go), (2, 1, 5))[0])
        await wait_all_tasks_blocked()
        everything = sorted(set(names.each_name_in(NAMESPACE)))
        kept = {seen: each for seen, each in watching.items() if not each[0].end}
        for seen, (found, answered) in kept.items():
            assert list(found.names) == [name for name in everything if pattern_of(found.text).matches(name)]
            assert found.digest == topics_hash(found.names)
            told = set(answered)
            for added, deleted, _ in seen.changes:
                assert told.isdisjoint(added)
                told.update(added)
                told -= {name.removeprefix(PREFIX) for name in deleted}
            assert sorted(PREFIX + name for name in told) == list(found.names)
        for seen, (found, _) in watching.items():
            topics.lists.unwatch(found, seen)
        await wait_all_tasks_blocked()
        assert not topics.lists._namespaces


async def test_a_damaged_record_ends_the_lists_of_its_namespace_and_not_the_broker(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The two tasks of a namespace share a nursery, whose group of errors was not taken for one of them."""
    async with open_topics() as rig:
        kept, path = await watch(rig.topics, Seen()), records.partitioned_topic_path(TopicName.parse("p"))
        await rig.rooms.metadata.put(path, b"{")
        await wait_all_tasks_blocked()
        assert "not a readable PartitionedTopicRecord" in kept.end
        with pytest.raises(NotAllowed, match="not a readable PartitionedTopicRecord"):
            await watch(rig.topics, Seen())
        assert caplog.text.count("Topics of public/default are not watched any more") == 2
        await rig.rooms.metadata.delete(path)
        assert not (await watch(rig.topics, Seen())).end


async def test_a_cancelled_watch_leaves_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = TopicNames.each_name_in

    def slow(self: TopicNames, namespace: NamespaceName) -> Iterator[str]:
        scope.cancel()
        yield from drawn(self, namespace)

    async with open_topics() as rig:
        before = rig.rooms.metadata.statistics().watchers
        monkeypatch.setattr(TopicNames, "each_name_in", slow)
        with trio.CancelScope() as scope:
            await watch(rig.topics, Seen())
        assert scope.cancelled_caught
        await wait_all_tasks_blocked()
        assert rig.rooms.metadata.statistics().watchers == before
