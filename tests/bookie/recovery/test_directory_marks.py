"""Ledger directories whose marks are at different places: what each is given, and which ids are free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from geminga.bookie.records.file_names import JOURNAL_SUFFIX, parse_id
from geminga.bookie.recovery.recovery import SKIPPED_IDS
from geminga.errors import CorruptData, LedgerNotFound
from simulation.bookie.world import TINY, BookieWorld, Layout

JOURNALS = "data/journal"
FIRST, SECOND = 0, 1
"""Ledger directories; with two of them these are also ledgers that belong there."""


@pytest.fixture
def world() -> BookieWorld:
    return BookieWorld(0, replace(TINY, write_cache_bytes=120_000), Layout(1, 2))


def run(world: BookieWorld, script: Callable[[BookieWorld], Any]) -> None:
    assert world.run(script)


def journal_ids(world: BookieWorld) -> list[int]:
    ids = (parse_id(name, JOURNAL_SUFFIX) for name in world.disk.list(JOURNALS))
    return sorted(id_ for id_ in ids if id_ is not None)


def test_journals_that_are_gone_leave_their_ids_used(world: BookieWorld) -> None:
    """The directory that was flushed last knows how far they went. An index that is older than the new
    journals is found out by their ids, and is made anew.
    """
    marks: list[int] = []

    async def before(world: BookieWorld) -> None:
        async with world.running(close=False) as bookie:
            world.create(bookie, FIRST)
            world.create(bookie, SECOND)
            await world.add(bookie, FIRST, SECOND, count=30, size=900)
            await bookie.directories[SECOND].flush()
            marks.extend(directory.storage.index.marks[0].journal_id for directory in bookie.directories)

    async def between(world: BookieWorld) -> None:
        async with world.running(close=False) as bookie:
            assert bookie.recovery.damages
            assert min(journal_ids(world)) == marks[SECOND] + 1 + SKIPPED_IDS
            world.create(bookie, 3)
            await world.add(bookie, 3, count=5)
            await bookie.flush()

    async def after(world: BookieWorld) -> None:
        async with world.running(close=False) as bookie:
            assert bookie.recovery.index_rebuilt.endswith("it is older than the journal")
            assert await world.read_back(bookie, SECOND) == 29
            assert await world.read_back(bookie, 3) == 4

    run(world, before)
    assert marks[FIRST] + 1 < marks[SECOND]
    world.crash("keep")
    for name in world.disk.list(JOURNALS):
        world.disk.unlink(f"{JOURNALS}/{name}")
    run(world, between)
    world.crash("keep")
    world.lose_index(2, number=SECOND)
    run(world, after)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_ledger_that_was_deleted_does_not_come_back_by_another_directory_s_mark(
    world: BookieWorld, damaged: bool
) -> None:
    """For one directory's sake a journal is read again. Its last group is the last that the other has
    flushed, and of a ledger whose deletion that other one has forgotten.
    """
    world.settings = replace(world.settings, journal_file_bytes=100_000)

    async def before(world: BookieWorld) -> None:
        async with world.running(close=False) as bookie:
            world.create(bookie, FIRST)
            world.create(bookie, SECOND)
            await world.add(bookie, FIRST, count=3)
            await world.add(bookie, SECOND)
            await world.delete(bookie, SECOND)
            await bookie.directories[SECOND].flush()
            await bookie.directories[SECOND].flush()
            assert SECOND not in bookie.directories[SECOND].storage.index.states
            if damaged:  # a group that nothing follows counts as torn
                await world.add(bookie, FIRST)

    async def after(world: BookieWorld) -> None:
        async with world.running(close=False) as bookie:
            assert len(bookie.recovery.damages) == damaged
            assert bookie.recovery.entries_lost == 0
            assert bookie.recovery.entries_replayed == 3 + damaged
            assert bookie.inventory.ledgers() == {FIRST}
            assert await world.read_back(bookie, FIRST) == 2 + damaged
            with pytest.raises(LedgerNotFound):
                await bookie.read(SECOND, 0, 0, bytes_max=1)

    run(world, before)
    (name,) = world.disk.list(JOURNALS)
    content = world.disk.read_file(f"{JOURNALS}/{name}")
    world.crash("keep")
    if damaged:
        offset = content.index(world.ledgers[SECOND].bodies[0])
        world.disk.flip_bit(f"{JOURNALS}/{name}", offset + 3, 1)
    run(world, after)


def test_damage_behind_a_directory_s_mark_is_its_loss(world: BookieWorld) -> None:
    """Before the mark it is not: its entries are in a log."""
    world.settings = replace(world.settings, journal_file_bytes=100_000)

    async def before(world: BookieWorld) -> None:
        async with world.running(close=False) as bookie:
            world.create(bookie, FIRST)
            world.create(bookie, SECOND)
            await world.add(bookie, FIRST, SECOND, count=2)
            await bookie.directories[SECOND].flush()
            await world.add(bookie, FIRST, SECOND, count=2)
            await world.add(bookie, FIRST)

    async def after(world: BookieWorld) -> None:
        async with world.running(close=False) as bookie:
            assert bookie.recovery.entries_lost == 2
            for ledger_id, lost in ((FIRST, 0), (SECOND, 2)):
                with pytest.raises(CorruptData, match=f"entry {lost} of ledger {ledger_id} is lost"):
                    await bookie.read(ledger_id, lost, lost, bytes_max=1)
            bodies = world.ledgers[SECOND].bodies
            assert await bookie.read(SECOND, 0, 1, bytes_max=1000) == bodies[:2]

    run(world, before)
    (name,) = world.disk.list(JOURNALS)
    content = world.disk.read_file(f"{JOURNALS}/{name}")
    world.crash("keep")
    for ledger_id, entry_id in ((FIRST, 0), (SECOND, 0), (SECOND, 2)):
        offset = content.index(world.ledgers[ledger_id].bodies[entry_id])
        world.disk.flip_bit(f"{JOURNALS}/{name}", offset + 3, 1)
    run(world, after)
