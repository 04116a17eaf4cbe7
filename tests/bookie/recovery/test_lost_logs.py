"""An entry log is lost, and a journal that was kept has its entries: they are put into another log."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from geminga.bookie.entry_logs.missing_logs import gaps, missing_part, replace_missing
from geminga.bookie.entry_logs.scan import read_footer
from geminga.bookie.entry_logs.writer import EntryLogWriter
from geminga.bookie.index.index_format import Row, Usage
from geminga.bookie.index.ledger_index import LedgerIndex, LedgerRow
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.records.segment_map import SegmentMap
from geminga.bookie.running.bookie import Bookie
from geminga.errors import CorruptData, StorageError
from simulation.disk.sim_disk import SimFile
from simulation.disk.sim_key_value import SimKeyValue

World = Any
LOGS = "data/entry-logs"


async def three_logs(world: World) -> None:
    """Three ledgers in several logs each; all is flushed."""
    world.settings = replace(world.settings, journal_file_bytes=100_000)  # so that one keeps it all
    async with world.running() as bookie:
        for ledger_id in (1, 2, 3):
            world.create(bookie, ledger_id)
        for _ in range(6):
            await world.add(bookie, 1, 2, 3, count=7)
            await bookie.flush()
        await world.delete(bookie, 3)
        await bookie.collect_garbage()


def logs(world: World) -> list[str]:
    return [name for name in world.disk.list(LOGS) if name.endswith(".log")]


@pytest.mark.parametrize("index_lost", [False, True])
@pytest.mark.parametrize("lost", [0, 1, -1])
async def test_the_journals_give_it_back(
    new_world: Callable[..., World], lost: int, index_lost: bool
) -> None:
    world = new_world()
    await three_logs(world)
    names = logs(world)
    assert len(names) >= 3
    world.disk.unlink(f"{LOGS}/{names[lost]}")
    if index_lost:
        world.lose_index()
    async with world.running() as bookie:
        assert bookie.recovery.logs_missing == ()
        assert bookie.recovery.entries_replayed > 5
        if not index_lost:
            assert bookie.recovery.entries_moved == bookie.recovery.entries_replayed
        for ledger_id in (1, 2):
            assert await world.read_back(bookie, ledger_id) == 41
        if not index_lost:
            assert bookie.inventory.ledgers() == {1, 2}
    async with world.running() as bookie:
        assert bookie.recovery.clean, bookie.recovery


async def test_no_more_than_a_write_cache_is_in_memory_meanwhile(
    new_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much of the journals the lost log had."""
    world = new_world()
    world.settings = replace(world.settings, journal_file_bytes=100_000, entry_log_bytes=100_000)
    async with world.running() as bookie:
        world.create(bookie, 1)
        await world.add(bookie, 1, count=300)
    (name,) = logs(world)
    world.disk.unlink(f"{LOGS}/{name}")
    flushed_bytes = []
    write = EntryLogWriter.write

    def watched(writer: EntryLogWriter, segments: SegmentMap, *others: Any) -> Any:
        flushed_bytes.append(segments.bytes)
        return write(writer, segments, *others)

    monkeypatch.setattr(EntryLogWriter, "write", watched)
    async with world.running() as bookie:
        assert bookie.recovery.entries_replayed == 300
        assert await world.read_back(bookie, 1) == 299
    half = world.settings.write_cache_bytes // 2
    assert sum(flushed_bytes) > 5 * half
    # A group is given whole, and flushed with what was there before it.
    assert max(flushed_bytes) < half + world.settings.journal_group_bytes_max


@dataclass(frozen=True)
class Cut:
    """How much of a log of so many bytes, with living records up to `records_end`, is left."""

    name: str
    keep: Callable[[int, int], int]
    loses: bool = True
    zeroed: bool = False
    """The file keeps its length: zeros are in the place of the rest."""


CUTS = (
    Cut("to nothing", lambda size, records_end: 0),
    Cut("in the header", lambda size, records_end: 40),
    Cut("in half", lambda size, records_end: size // 2),
    Cut("in the last record", lambda size, records_end: records_end - 1),
    Cut("before the footer", lambda size, records_end: records_end, loses=False),
    Cut("in the trailer", lambda size, records_end: size - 1, loses=False),
    Cut("all zeros", lambda size, records_end: 0, zeroed=True),
    Cut("zeros from half", lambda size, records_end: size // 2, zeroed=True),
    Cut("zeros in the last record", lambda size, records_end: records_end - 5, zeroed=True),
    Cut("zeros for the footer", lambda size, records_end: records_end, loses=False, zeroed=True),
)


def cut_log(world: World, name: str, cut: Cut) -> int:
    """The number of living entries that are lost by it."""
    file = world.disk.open(f"{LOGS}/{name}")
    footer = read_footer(file)
    assert footer is not None
    living = [row for ledger_id, row in footer.rows if ledger_id != 3]
    size = file.size()
    length = cut.keep(size, max(row.offset + row.ends[-1] for row in living))
    file.truncate(length)
    if cut.zeroed:
        file.append(bytes(size - length))
    file.sync()
    file.close()
    return sum(row.offset + end > length for row in living for end in row.ends)


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.name)
async def test_a_log_that_is_cut_short_is_healed_like_one_that_is_gone(
    new_world: Callable[..., World], cut: Cut
) -> None:
    for number in (0, 1, -1):
        world = new_world()
        await three_logs(world)
        name = logs(world)[number]
        lost = cut_log(world, name, cut)
        async with world.running() as bookie:
            assert bookie.recovery.entries_moved == bookie.recovery.entries_replayed == lost
            assert bookie.recovery.entries_missing == 0
            assert bookie.recovery.logs_cut == ()
            for ledger_id in (1, 2):
                assert await world.read_back(bookie, ledger_id) == 41
        async with world.running() as bookie:
            assert bookie.recovery.clean, bookie.recovery


@pytest.mark.parametrize("cut", [cut for cut in CUTS if cut.loses], ids=lambda cut: cut.name)
async def test_what_no_journal_has_is_named_and_all_else_is_read(
    new_world: Callable[..., World], cut: Cut, caplog: pytest.LogCaptureFixture
) -> None:
    world = new_world()
    await three_logs(world)
    world.settings = replace(world.settings, journal_free_files_max=0)
    async with world.running():
        pass  # the journal, which nothing needs, is deleted
    name = logs(world)[1]
    lost = cut_log(world, name, cut)
    left = world.disk.read_file(f"{LOGS}/{name}")
    async with world.running() as bookie:
        assert bookie.recovery.logs_cut == (2,)
        unreadable = [
            f"{ledger_id}:{entry_id}"
            for ledger_id in (1, 2)
            for entry_id in range(42)
            if not await is_readable(world, bookie, ledger_id, entry_id)
        ]
        assert len(unreadable) == bookie.recovery.entries_missing == lost
    (warning,) = [each.getMessage() for each in caplog.records if "cannot be read" in each.getMessage()]
    named = [
        f"{ledger}:{entry}"
        for first, last, ledger in re.findall(r"entr(?:y|ies) (\d+)(?: to (\d+))? of ledger (\d+)", warning)
        for entry in range(int(first), int(last or first) + 1)
    ]
    assert sorted(named) == sorted(unreadable)
    assert "entry log 2 is cut short" in warning
    assert "geminga topics skip" in warning
    async with world.running() as bookie:
        assert bookie.recovery.entries_missing == len(unreadable)
        await bookie.collect_garbage()
    assert world.disk.read_file(f"{LOGS}/{name}") == left


@pytest.mark.parametrize("damage", ["hole", "unreadable"])
async def test_a_log_with_a_hole_or_that_cannot_be_read_is_told_at_each_start(
    new_world: Callable[..., World], damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world()
    await three_logs(world)
    world.settings = replace(world.settings, journal_free_files_max=0)
    async with world.running():
        pass  # the journal, which nothing needs, is deleted
    name = logs(world)[1]
    file = world.disk.open(f"{LOGS}/{name}")
    footer = read_footer(file)
    assert footer is not None
    living = [row for ledger_id, row in footer.rows if ledger_id != 3]
    hole = living[1].offset + living[1].ends[0] if damage == "hole" else file.size()
    if damage == "hole":
        file.pwrite(0, bytes(hole))  # as if the log had been cut under its writer
        file.sync()
    else:
        pread = SimFile.pread

        def fail(file: SimFile, offset: int, length: int) -> bytes:
            if file.path.endswith(name):
                raise StorageError(f"{file.path}: cannot read: Input/output error")
            return pread(file, offset, length)

        monkeypatch.setattr(SimFile, "pread", fail)
    lost = sum(row.offset + end <= hole for row in living for end in row.ends)
    for _ in range(2):
        async with world.running() as bookie:
            assert bookie.recovery.entries_missing == lost
            assert bookie.recovery.logs_cut == (2,)
            assert name in bookie.recovery.logs_damaged[0]
            await bookie.collect_garbage()
    async with world.running() as bookie:
        await world.delete(bookie, 1)
        await world.delete(bookie, 2)
        await bookie.collect_garbage()
        assert name in logs(world)


@pytest.mark.parametrize("failing", range(6))
async def test_reads_that_fail_for_a_moment_are_no_loss_and_keep_no_log(
    new_world: Callable[..., World], failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three reads of each log at the start, from each one on: its two ends, and the last record."""
    world = new_world()
    await three_logs(world)
    pread, reads = SimFile.pread, Counter[str]()

    def fail(file: SimFile, offset: int, length: int) -> bytes:
        if file.path.endswith(".log"):
            reads[file.path] += 1
            if failing < reads[file.path] <= failing + 3:
                raise StorageError(f"{file.path}: cannot read: Input/output error")
        return pread(file, offset, length)

    monkeypatch.setattr(SimFile, "pread", fail)
    async with world.running() as bookie:
        assert bookie.recovery.entries_missing == 0
        assert not bookie.inventory.keeps_logs


async def is_readable(world: World, bookie: Bookie, ledger_id: int, entry_id: int) -> bool:
    try:
        (body,) = await bookie.read(ledger_id, entry_id, entry_id, bytes_max=1)
    except CorruptData:
        return False
    assert body == world.ledgers[ledger_id].bodies[entry_id]
    return True


@pytest.mark.parametrize("is_gone", [False, True], ids=["cut short", "gone"])
def test_a_crash_in_between_leaves_it_to_the_next_start(
    new_world: Callable[..., World], is_gone: bool
) -> None:
    for at in itertools.count(step=3):
        world = new_world(at)
        assert world.run(three_logs)
        name = logs(world)[1]
        if is_gone:
            world.disk.unlink(f"{LOGS}/{name}")
            world.disk.sync_directory(LOGS)
        else:
            cut_log(world, name, CUTS[2])
        world.disk.crash_at = world.disk.operations + at
        whole = world.recover()
        world.crash("torn")
        assert world.run(all_is_there)
        world.check()
        if whole:
            break
    assert at > 5


async def all_is_there(world: World) -> None:
    async with world.running() as bookie:
        for ledger_id in (1, 2):
            assert await world.read_back(bookie, ledger_id) == 41
        assert bookie.inventory.ledgers() == {1, 2}


async def test_the_id_of_a_deleted_log_is_not_used_again(new_world: Callable[..., World]) -> None:
    world = new_world()
    async with world.running() as bookie:
        world.create(bookie, 1)
        await world.add(bookie, 1, count=3)
        await bookie.flush()
        await world.delete(bookie, 1)
    async with world.running() as bookie:
        await bookie.collect_garbage()
    assert logs(world) == []
    async with world.running() as bookie:
        world.create(bookie, 2)
        await world.add(bookie, 2)
        await bookie.flush()
    assert logs(world) == [f"{2:020}.log"]


def test_a_record_without_its_last_byte_is_missing() -> None:
    row = Row(0, 2, 64, range(10, 110, 10))
    assert missing_part(row, {2: 64 + 100}) is None
    assert missing_part(row, {2: 64 + 99}) == Row(9, 2, 64 + 90, range(10, 20, 10))


def test_rows_of_a_missing_log_are_replaced_where_they_overlap() -> None:
    index = LedgerIndex(SimKeyValue())
    marks = (JournalPosition(1, 4096),)
    index.flushed(
        [
            LedgerRow(5, Row(0, 1, 64, range(10, 110, 10))),
            LedgerRow(5, Row(10, 2, 64, range(10, 110, 10))),
            LedgerRow(5, Row(20, 3, 64, range(10, 60, 10))),
        ],
        marks,
    )
    lengths = {2: 0}
    assert gaps(index, 5, lengths) == [(10, 19)]
    new = LedgerRow(5, Row(12, 4, 64, range(10, 40, 10)))
    assert replace_missing(index, new, lengths) == 3
    assert gaps(index, 5, lengths) == [(10, 11), (15, 19)]
    assert [(row.first, row.last, row.log_id, row.offset) for row in index.rows(5)] == [
        (0, 9, 1, 64),
        (10, 11, 2, 64),
        (12, 14, 4, 64),
        (15, 19, 2, 114),
        (20, 24, 3, 64),
    ]
    assert index.usage[2] == {5: Usage(7, 70)}
    assert index.usage[4] == {5: Usage(3, 30)}
    assert replace_missing(index, LedgerRow(5, Row(0, 9, 64, range(10, 20, 10))), {}) == 0
