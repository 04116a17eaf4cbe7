"""An index that is older than the entry logs beside it: a directory was copied while a bookie wrote to it."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from geminga.bookie.index.database import IndexDatabase
from geminga.bookie.index.index_format import COVERED_KEY, DEAD_KEY, Kept
from geminga.bookie.offline.held_ledgers import StoppedLedgerFiles, held_ledgers
from geminga.bookie.records.records import Run
from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.running.bookie import Bookie
from geminga.errors import CorruptData, StorageError
from geminga.storage.disk import RealDisk

SETTINGS = BookieSettings(
    journal_file_bytes=16 << 10,
    journal_free_files_max=1,
    write_cache_bytes=64 << 10,
    entry_log_bytes=6 << 10,
    row_entries_max=7,
)
ROUND = 30
"""Entries of each ledger between two moments of a copy."""


class Live:
    """A running bookie, and ledgers that grow."""

    def __init__(self, path: Path, bookie: Bookie, values: IndexDatabase) -> None:
        self.path = path
        self.bookie = bookie
        self.values = values
        self.lasts: dict[int, int] = {}
        self._writers = {}
        self._told = trio.Event()

    def create(self, *ledger_ids: int) -> None:
        for ledger_id in ledger_ids:
            self.lasts[ledger_id] = -1
            self._writers[ledger_id] = self.bookie.create_ledger(
                ledger_id,
                on_durable=lambda last, ledger_id=ledger_id: self._durable(ledger_id, last),
                on_failed=self._failed,
            )

    def _durable(self, ledger_id: int, last: int) -> None:
        self.lasts[ledger_id] = last
        self._told.set()

    @staticmethod
    def _failed(error: StorageError) -> None:
        raise AssertionError(error)

    async def add(self, *ledger_ids: int, count: int = ROUND) -> None:
        """Durable and flushed on return."""
        wanted = {ledger_id: self.lasts[ledger_id] + count for ledger_id in ledger_ids}
        for ledger_id, last in wanted.items():
            for entry_id in range(last - count + 1, last + 1):
                self.append(ledger_id, entry_id)
        for ledger_id, last in wanted.items():
            await self.durable(ledger_id, last)
        await self.bookie.flush()

    def append(self, ledger_id: int, entry_id: int) -> None:
        self._writers[ledger_id].append(body(ledger_id, entry_id))

    async def durable(self, ledger_id: int, last: int) -> None:
        while self.lasts[ledger_id] < last:
            self._told = trio.Event()
            await self._told.wait()

    async def delete(self, ledger_id: int) -> None:
        del self._writers[ledger_id]
        await self.bookie.fence(ledger_id)
        await self.bookie.delete_ledger(ledger_id)
        del self.lasts[ledger_id]

    def copy_index(self, copy: Path) -> None:
        copy.mkdir(exist_ok=True)
        self.values.checkpoint(str(copy / "index"))

    def copy_folder(self, copy: Path, name: str) -> None:
        shutil.copytree(self.path / "bookie" / name, copy / "bookie" / name)


def body(ledger_id: int, entry_id: int) -> bytes:
    return b"%d:%d " % (ledger_id, entry_id) + b"x" * (40 + entry_id % 5)


@asynccontextmanager
async def live(path: Path, settings: BookieSettings = SETTINGS, *, close: bool = True) -> AsyncIterator[Live]:
    disk = RealDisk()
    disk.make_directory(str(path))
    values = IndexDatabase(disk, str(path / "index"))
    try:
        bookie = await Bookie.open(disk, values, str(path / "bookie"), settings)
        async with trio.open_nursery() as nursery:
            await nursery.start(bookie.run)
            yield Live(path, bookie, values)
            if close:
                await bookie.close()
            nursery.cancel_scope.cancel()
    finally:
        values.close()


def logs(path: Path) -> set[str]:
    return {file.name for file in (path / "bookie" / "entry-logs").glob("*.log")}


async def assert_served(bookie: Bookie, lasts: dict[int, int]) -> None:
    for ledger_id, last in lasts.items():
        assert bookie.last_entry_id(ledger_id) == last
        found: list[bytes] = []
        while len(found) <= last:
            found += await bookie.read(ledger_id, len(found), last, bytes_max=1 << 20)
        assert found == [body(ledger_id, entry_id) for entry_id in range(last + 1)]


async def copied(path: Path, copy: Path, *, settings: BookieSettings = SETTINGS) -> dict[int, int]:
    """Copies the index first, then the journals, then the entry logs, with entries in between. Returns the
    last entry of each ledger that was there until the end.
    """
    async with live(path, settings) as source:
        source.create(1, 2, 3)
        await source.add(1, 2, 3)
        source.copy_index(copy)
        await source.add(1, 2, 3)
        source.copy_folder(copy, "journal")
        source.create(4)
        await source.add(1, 2, 3, 4)
        await source.add(1, 4)
        await source.delete(2)
        source.copy_folder(copy, "entry-logs")
        return dict(source.lasts)


@pytest.mark.parametrize("log_bytes", [6 << 10, 1 << 20], ids=["many logs", "one log"])
async def test_each_entry_of_the_logs_is_served_and_no_log_is_deleted(tmp_path: Path, log_bytes: int) -> None:
    settings = replace(SETTINGS, entry_log_bytes=log_bytes)
    copy = tmp_path / "copy"
    lasts = await copied(tmp_path / "live", copy, settings=settings)
    there = logs(copy)
    held = held_ledgers(RealDisk(), [str(copy / "bookie")], [stopped_files(copy)])
    assert held.held.keys() == {1, 2, 3, 4}
    assert held.doubtful == {1, 2, 3, 4}
    async with live(copy, settings) as again:
        report = again.bookie.recovery
        assert report.entries_found > 0
        assert "neither the index nor a journal" in report.mismatch
        await assert_served(again.bookie, lasts)
        # Ledger 2 may have been deleted, or not: whoever knows decides, and until then its bytes stay.
        assert again.bookie.inventory.unsorted() == {1, 2, 3, 4}
        await again.bookie.delete_ledger(2)
        await again.bookie.delete_ledger(3)
        await again.bookie.compact(1.0)
        await again.bookie.collect_garbage()
        assert there <= logs(copy)
    async with live(copy, settings) as later:
        assert later.bookie.recovery.mismatch == ""
        await assert_served(later.bookie, {1: lasts[1], 4: lasts[4]})
        await later.bookie.collect_garbage()
        assert there <= logs(copy)
        index = later.bookie.directories[0].storage.index
        index.keep(Kept())
        await later.bookie.compact(1.0)
        await later.bookie.collect_garbage()
        assert len(there - logs(copy)) >= (1 if log_bytes == 1 << 20 else 3)
        await assert_served(later.bookie, {1: lasts[1], 4: lasts[4]})


def stopped_files(copy: Path) -> StoppedLedgerFiles:
    from geminga.storage.key_value import RocksKeyValue

    return StoppedLedgerFiles(str(copy / "bookie"), RocksKeyValue(str(copy / "index"), read_only=True))


async def test_an_index_of_the_earlier_version_is_not_believed_either(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    lasts = await copied(tmp_path / "live", copy)
    values = IndexDatabase(RealDisk(), str(copy / "index"))
    values.write([], [COVERED_KEY], sync=True)
    values.close()
    async with live(copy) as again:
        assert again.bookie.recovery.entries_found > 0
        await assert_served(again.bookie, lasts)


async def test_what_no_file_has_is_named(tmp_path: Path) -> None:
    """A log is gone, and the index does not know it."""
    copy = tmp_path / "copy"
    lasts = await copied(tmp_path / "live", copy)
    newest = sorted(logs(copy))
    (copy / "bookie" / "entry-logs" / newest[-2]).unlink()
    async with live(copy) as again:
        missing = again.bookie.missing_at_start
        assert missing
        assert again.bookie.recovery.entries_missing == sum(run.last - run.first + 1 for run in missing)
        served = 0
        for ledger_id in lasts:
            last = again.bookie.last_entry_id(ledger_id)
            gone = {
                entry_id
                for run in missing
                if run.ledger_id == ledger_id
                for entry_id in range(run.first, run.last + 1)
            }
            for entry_id in range(last + 1):
                if entry_id in gone:
                    with pytest.raises(CorruptData, match="no file of the bookie has it"):
                        await again.bookie.read(ledger_id, entry_id, entry_id, bytes_max=1)
                else:
                    [found] = await again.bookie.read(ledger_id, entry_id, entry_id, bytes_max=1)
                    assert found == body(ledger_id, entry_id)
                    served += 1
        assert served > 0


async def test_what_a_rebuilt_index_told_of_is_named(tmp_path: Path) -> None:
    """Logs are copied first, then the index, and the journals last: they begin behind the index's mark. What
    the logs got between is in no file, and stands at the end of its ledger.
    """
    copy = tmp_path / "copy"
    async with live(tmp_path / "live") as source:
        source.create(1, 2, 3, 5)
        await source.add(1, 2, 5)
        source.copy_folder(copy, "entry-logs")
        await source.add(1, 3, 5)
        source.copy_index(copy)
        await source.delete(5)
        for _ in range(20):
            await source.add(2)
        source.copy_folder(copy, "journal")
    for _ in range(2):
        async with live(copy) as again:
            bookie = again.bookie
            missing = {run for run in bookie.missing_at_start if run.ledger_id in (1, 3)}
            assert missing == {Run(1, ROUND, 2 * ROUND - 1), Run(3, 0, ROUND - 1)}
            assert (bookie.last_entry_id(1), bookie.last_entry_id(3)) == (2 * ROUND - 1, ROUND - 1)
            for ledger_id, first in ((1, ROUND), (3, 0)):
                with pytest.raises(CorruptData):
                    await bookie.read(ledger_id, first, first, bytes_max=1)
            assert await bookie.read(1, 0, 0, bytes_max=1) == [body(1, 0)]
            assert bookie.recovery.logs_missing
            gone = {f"{log_id:020d}.log" for log_id in bookie.recovery.logs_missing}
            assert not gone & logs(copy)


async def test_a_flush_that_a_kill_cut_short_is_no_mismatch(tmp_path: Path) -> None:
    """The journals have what the index does not cover."""
    copy = tmp_path / "copy"
    async with live(tmp_path / "live") as source:
        source.create(1, 2)
        await source.add(1, 2)
        source.copy_index(copy)
        await source.add(1, 2)
        source.copy_folder(copy, "entry-logs")
        source.copy_folder(copy, "journal")
        lasts = dict(source.lasts)
    async with live(copy) as again:
        assert again.bookie.recovery.mismatch == ""
        assert again.bookie.recovery.entries_found == 0
        await assert_served(again.bookie, lasts)


@pytest.mark.parametrize("ledger_ids", [[5], [5, 6]])
async def test_deleted_ledgers_do_not_come_back(tmp_path: Path, ledger_ids: Sequence[int]) -> None:
    """Also not those whose rows and states are gone, with records at the end of the newest log."""
    async with live(tmp_path / "live") as source:
        source.create(1, *ledger_ids)
        await source.add(1)
        await source.add(*ledger_ids)
        for ledger_id in ledger_ids:
            await source.delete(ledger_id)
        await source.bookie.flush()
        await source.bookie.collect_garbage()
    for _ in range(2):
        async with live(tmp_path / "live") as again:
            assert again.bookie.recovery.mismatch == ""
            assert again.bookie.inventory.ledgers() == {1}


@pytest.mark.parametrize(
    ("index_lost", "released"),
    [(False, False), (True, False), (True, True)],
    ids=["kept", "made", "released"],
)
async def test_a_log_that_is_put_back_is_served_and_not_deleted(
    tmp_path: Path, index_lost: bool, released: bool
) -> None:
    """Also where the index was made anew while it was away, and what that start kept was released since."""
    path = tmp_path / "live"
    async with live(path) as source:
        source.create(1, 2)
        await source.add(1, 2)
        await source.add(1)
        await source.add(1, 2)
        lasts = dict(source.lasts)
    away = path / "bookie" / "entry-logs" / min(logs(path))
    away.rename(tmp_path / "away")
    shutil.rmtree(path / "bookie" / "journal")
    if index_lost:
        shutil.rmtree(path / "index")
    async with live(path) as again:
        assert again.bookie.recovery.entries_missing > 0
        await again.bookie.collect_garbage()
        if released:
            index = again.bookie.directories[0].storage.index
            index.keep(index.kept._replace(below=0))
    (tmp_path / "away").rename(away)
    async with live(path) as later:
        assert bool(later.bookie.recovery.entries_found) == index_lost
        assert later.bookie.recovery.entries_missing == 0
        await assert_served(later.bookie, lasts)
        await later.bookie.collect_garbage()
        assert away.exists()


async def test_a_compacted_log_does_not_bring_back_what_was_deleted_before(tmp_path: Path) -> None:
    """Its living entries were copied out of it, and a kill came before it was deleted."""
    settings = replace(SETTINGS, entry_log_bytes=1 << 20, journal_file_bytes=4 << 10)
    path = tmp_path / "live"
    async with live(path, settings) as source:
        source.create(1, 2)
        await source.add(1, 2)
    old = path / "bookie" / "entry-logs" / min(logs(path))
    async with live(path, settings) as again:
        await again.bookie.delete_ledger(2)
        # The journals pass the deletion, so that its state goes with its rows.
        again.create(3)
        await again.add(3)
        await again.add(3)
        await again.bookie.collect_garbage()
        assert 2 not in again.bookie.directories[0].storage.index.states
        shutil.copy(old, tmp_path / "old")
        await again.bookie.compact(1.0)
        assert not old.exists()
    (tmp_path / "old").rename(old)
    async with live(path, settings) as later:
        assert later.bookie.recovery.mismatch == ""
        assert later.bookie.inventory.ledgers() == {1, 3}


async def test_a_log_that_was_cut_when_the_index_was_made_may_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "live"
    async with live(path, replace(SETTINGS, entry_log_bytes=1 << 20)) as source:
        source.create(1, 2)
        await source.add(1, 2)
        await source.add(1, 2)
        lasts = dict(source.lasts)
    log = path / "bookie" / "entry-logs" / min(logs(path))
    shutil.copy(log, tmp_path / "whole")
    shutil.rmtree(path / "bookie" / "journal")
    shutil.rmtree(path / "index")
    os.truncate(log, log.stat().st_size // 2)
    async with live(path) as cut:
        assert cut.bookie.last_entry_id(2) < lasts[2]
        await cut.bookie.collect_garbage()
    shutil.copy(tmp_path / "whole", log)
    async with live(path) as later:
        assert later.bookie.recovery.entries_found > 0
        await assert_served(later.bookie, lasts)


async def test_a_log_that_is_put_back_while_the_bookie_runs_is_not_deleted(tmp_path: Path) -> None:
    path = tmp_path / "live"
    async with live(path) as source:
        source.create(1, 2, 3)
        await source.add(1, 2)
        await source.add(1, 3)
        await source.add(1, 2)
        lasts = dict(source.lasts)
    log = path / "bookie" / "entry-logs" / min(logs(path))
    log.rename(tmp_path / "away")
    shutil.rmtree(path / "bookie" / "journal")
    shutil.rmtree(path / "index")
    async with live(path) as running:
        (tmp_path / "away").rename(log)
        await running.bookie.delete_ledger(3)
        await running.bookie.collect_garbage()
        assert log.exists()
    async with live(path) as later:
        assert later.bookie.recovery.entries_found > 0
        await assert_served(later.bookie, {1: lasts[1], 2: lasts[2]})


async def test_a_journal_that_is_put_back_is_read_and_not_overwritten(tmp_path: Path) -> None:
    path, copy = tmp_path / "live", tmp_path / "copy"
    settings = replace(SETTINGS, write_cache_bytes=1 << 20)
    async with live(path, settings) as source:
        source.create(1)
        await source.add(1)
        source.copy_folder(copy, "journal")
    async with live(path, settings) as source:
        source.create(2)
        for entry_id in range(ROUND):
            source.append(2, entry_id)
        await source.durable(2, ROUND - 1)
        killed = tmp_path / "killed"
        source.copy_index(killed)
        for folder in ("journal", "entry-logs"):
            source.copy_folder(killed, folder)
    journals = killed / "bookie" / "journal"
    journals.rename(tmp_path / "right")
    shutil.copytree(copy / "bookie" / "journal", journals)
    async with live(killed, settings) as wrong:
        assert "is not there" in wrong.bookie.recovery.mismatch
        assert wrong.bookie.last_entry_id(2) == -1
        wrong.create(3)
        await wrong.add(3)
    right = {file.name: file.read_bytes() for file in (tmp_path / "right").iterdir()}
    for name, content in right.items():
        (journals / name).write_bytes(content)
    async with live(killed, settings) as later:
        assert right.items() <= {file.name: file.read_bytes() for file in journals.iterdir()}.items()
        assert "journals from before the index's mark" in later.bookie.recovery.mismatch
        await assert_served(later.bookie, {1: ROUND - 1, 2: ROUND - 1, 3: ROUND - 1})


async def test_an_upgrade_finds_no_mismatch_at_its_second_start(tmp_path: Path) -> None:
    """The earlier version left logs of deleted ledgers, which no garbage collection has met yet."""
    path, old = tmp_path / "live", tmp_path / "old"
    async with live(path) as source:
        source.create(1, 2)
        await source.add(1)
        await source.add(2)
        for name in ("journal", "entry-logs"):
            source.copy_folder(old, name)
        await source.delete(2)
        await source.bookie.flush()
        await source.bookie.collect_garbage()
        source.copy_index(old)
        shutil.rmtree(old / "bookie" / "journal")
        source.copy_folder(old, "journal")
    values = IndexDatabase(RealDisk(), str(old / "index"))
    values.write([], [COVERED_KEY, DEAD_KEY], sync=True)
    values.close()
    for number in range(3):
        # Killed: no end in order has a garbage collection.
        async with live(old, close=number == 2) as again:
            assert again.bookie.recovery.mismatch == ""
            assert again.bookie.inventory.ledgers() == {1}
