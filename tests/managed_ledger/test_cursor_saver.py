"""The cursors of many topics are written down together, in few groups and short turns."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest
import trio

from geminga.broker.flow.broker_figures import LoopTurns
from geminga.broker.flow.outbox import Outgoing
from geminga.managed_ledger import cursor_saver
from geminga.managed_ledger.cursor.cursor import Cursor
from geminga.managed_ledger.cursor.cursor_ledger import CursorLedger
from geminga.managed_ledger.cursor_saver import CursorSaver
from geminga.managed_ledger.managed_ledger import ManagedLedger
from geminga.names import TopicName
from geminga.position import Position
from geminga.server.loop_edges import LoopEdges
from geminga.storage.disk_errors import DiskFull

TOPICS = 30


def name_of(number: int) -> TopicName:
    return TopicName.parse(f"persistent://public/default/topic-{number}")


class Topics:
    """Managed ledgers with one saver, three entries and one cursor each, which has a ledger already."""

    def __init__(self, rooms: Any, saver: CursorSaver) -> None:
        self.rooms = rooms
        self.saver = saver
        self.ledgers: list[ManagedLedger] = []
        self.cursors: list[Cursor] = []
        self.positions: list[list[Position]] = []

    async def open(self, publish: Any, count: int = TOPICS) -> None:
        for number in range(count):
            ledger = await self.rooms.open(topic=name_of(number), saver=self.saver)
            cursor = await ledger.open_cursor("s", initial="earliest")
            positions = await publish(ledger, [b"1", b"2", b"3"])
            cursor.acknowledge([positions[0]])
            await cursor.persist()
            self.ledgers.append(ledger)
            self.cursors.append(cursor)
            self.positions.append(positions)
        await self.saved()

    def acknowledge(self, index: int = 1) -> None:
        for cursor, positions in zip(self.cursors, self.positions, strict=True):
            cursor.acknowledge([positions[index]])

    async def saved(self) -> None:
        with trio.fail_after(30):
            while any(cursor.is_dirty or cursor._persisting.locked() for cursor in self.cursors):
                await trio.lowlevel.checkpoint()

    def written(self) -> tuple[int, int]:
        """Groups and entries in the journal."""
        statistics = self.rooms.bookie.statistics()
        return statistics.journal_groups, statistics.entries_written


def following_turns(rooms: Any) -> AbstractContextManager[None]:
    """As in the broker: the journal's thread begins at the end of a turn, and not with the first state."""
    return LoopEdges(rooms.bookie.journals, Outgoing(), LoopTurns()).followed()


@pytest.fixture
def topics(rooms: Any, publish: Any) -> Any:
    def of(r: Any, interval_ms: int = 1) -> Topics:
        return Topics(r, CursorSaver(r.bookie, r.nursery, interval_ms))

    return of


async def test_a_round_is_one_group(rooms: Any, publish: Any, topics: Any) -> None:
    async with rooms(crash=True) as r:
        all_topics = topics(r, 50)
        await all_topics.open(publish)
        groups, entries = all_topics.written()
        with following_turns(r):
            all_topics.acknowledge()
            await all_topics.saved()
        assert all_topics.written() == (groups + 1, entries + TOPICS)
        assert [cursor.cursor_ledger.last_entry_id for cursor in all_topics.cursors] == [1] * TOPICS
        expected = [cursor.mark_delete for cursor in all_topics.cursors]
    async with rooms() as r:
        found = [(await r.open(topic=name_of(number))).cursors["s"].mark_delete for number in range(TOPICS)]
        assert found == expected


async def test_more_than_a_group_takes_several_and_a_pause_between_them(
    rooms: Any, publish: Any, topics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursor_saver, "GROUP_STATES_MAX", 8)
    async with rooms(crash=True) as r:
        all_topics = topics(r, 20)
        await all_topics.open(publish)
        groups, entries = all_topics.written()
        held_max = 0
        with trio.fail_after(30), following_turns(r):
            all_topics.acknowledge()
            while any(cursor.is_dirty or cursor._persisting.locked() for cursor in all_topics.cursors):
                held_max = max(held_max, sum(cursor._persisting.locked() for cursor in all_topics.cursors))
                await trio.lowlevel.checkpoint()
        assert held_max <= 8, "one that waits for the next group can be written by itself"
        assert all_topics.written() == (groups + 4, entries + TOPICS)


async def test_a_change_while_it_is_written_is_written_after_it(
    rooms: Any, publish: Any, topics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = CursorLedger.add
    async with rooms(crash=True) as r:
        all_topics = topics(r)
        await all_topics.open(publish, 3)

        def acknowledge_then_add(self: CursorLedger, data: bytes) -> None:
            monkeypatch.undo()
            all_topics.acknowledge(2)
            add(self, data)

        monkeypatch.setattr(CursorLedger, "add", acknowledge_then_add)
        all_topics.acknowledge(1)
        await all_topics.saved()
    async with rooms() as r:
        for number, positions in enumerate(all_topics.positions):
            ledger = await r.open(topic=name_of(number))
            assert ledger.cursors["s"].mark_delete == positions[2]


async def test_what_a_full_disk_refuses_is_written_when_there_is_space(
    rooms: Any, publish: Any, topics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rooms(crash=True) as r:
        all_topics = topics(r)
        await all_topics.open(publish, 3)
        refused = trio.Event()

        def refuse(*_: object) -> None:
            trio.from_thread.run_sync(refused.set, trio_token=token)
            raise DiskFull("journal: disk full, cannot reserve space: no space")

        token = trio.lowlevel.current_trio_token()
        monkeypatch.setattr(r.bookie.journals.only.files, "write", refuse)
        all_topics.acknowledge()
        with trio.fail_after(10):
            await refused.wait()
        monkeypatch.undo()
        await r.bookie._space.check()
        await all_topics.saved()
        assert not any(ledger.fenced for ledger in all_topics.ledgers)
    async with rooms() as r:
        for number, positions in enumerate(all_topics.positions):
            ledger = await r.open(topic=name_of(number))
            assert ledger.cursors["s"].mark_delete == positions[1]


async def test_a_refused_save_is_due_again_although_its_round_is_over(
    rooms: Any, publish: Any, topics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rooms() as r:
        all_topics = topics(r, 3_600_000)
        await all_topics.open(publish, 1)
        cursors = all_topics.ledgers[0].life.cursors
        token = trio.lowlevel.current_trio_token()

        def refuse(*_: object) -> None:
            found = trio.from_thread.run_sync(cursors.take_changed, trio_token=token)
            assert found == [], "it is being written"
            raise DiskFull("journal: disk full, cannot reserve space: no space")

        all_topics.acknowledge()
        with monkeypatch.context() as full:
            full.setattr(r.bookie.journals.only.files, "write", refuse)
            with pytest.raises(DiskFull):
                await all_topics.cursors[0].persist()
        assert cursors.due
        assert cursors.take_changed() == all_topics.cursors


async def test_a_fenced_topic_is_not_written_and_the_others_are(
    rooms: Any, publish: Any, topics: Any
) -> None:
    async with rooms(crash=True) as r:
        all_topics = topics(r, 20)
        await all_topics.open(publish, 3)
        all_topics.acknowledge()
        all_topics.ledgers[0].fence(DiskFull("for the test"))
        fenced = all_topics.cursors.pop(0)
        await all_topics.saved()
        assert fenced.is_dirty
        assert fenced.cursor_ledger is not None
        assert fenced.cursor_ledger.last_entry_id == 0


async def test_a_round_that_is_cancelled_leaves_all_due(
    rooms: Any, publish: Any, topics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rooms() as r:
        all_topics = topics(r)
        async with trio.open_nursery() as nursery:
            all_topics.saver = CursorSaver(r.bookie, nursery, 1)
            await all_topics.open(publish, 3)
            waits = trio.Event()

            async def wait_room() -> None:
                waits.set()
                await trio.sleep_forever()

            monkeypatch.setattr(r.bookie, "wait_room", wait_room)
            all_topics.acknowledge()
            with trio.fail_after(10):
                await waits.wait()
            assert all(cursor._persisting.locked() for cursor in all_topics.cursors)
            nursery.cancel_scope.cancel()
        monkeypatch.undo()
        assert all(cursor.is_dirty for cursor in all_topics.cursors)
        for cursor in all_topics.cursors:
            await cursor.persist()
        assert not any(cursor.is_dirty for cursor in all_topics.cursors)
