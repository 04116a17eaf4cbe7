"""The bookie on a real disk and a real RocksDB: what is accepted, durable, read, and there after a
restart.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from geminga.bookie.records.records import Run
from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.running import storage
from geminga.bookie.running.bookie import Bookie
from geminga.bookie.running.ledger_writer import LedgerWriter
from geminga.errors import CorruptData, LedgerFenced, LedgerNotFound, StorageError
from geminga.storage.disk import RealDisk
from geminga.storage.key_value import RocksKeyValue

SMALL = BookieSettings(
    journal_file_bytes=256 * 1024,
    journal_allocate_bytes=64 * 1024,
    queue_bytes_max=64 * 1024,
    write_cache_bytes=256 * 1024,
    read_cache_bytes=64 * 1024,
    read_ahead_bytes=8 * 1024,
    entry_log_bytes=200 * 1024,
    row_entries_max=50,
)


@asynccontextmanager
async def running(
    path: Path, settings: BookieSettings = SMALL, *, close: bool = True
) -> AsyncIterator[Bookie]:
    index = RocksKeyValue(str(path / "index"))
    try:
        bookie = await Bookie.open(RealDisk(), index, str(path / "bookie"), settings)
        async with trio.open_nursery() as nursery:
            await nursery.start(bookie.run)
            yield bookie
            if close:
                await bookie.close()
            nursery.cancel_scope.cancel()
    finally:
        index.close()


class Owner:
    """Whoever writes a ledger: remembers what it was told."""

    def __init__(self, bookie: Bookie, ledger_id: int) -> None:
        self.durable = -1
        self.failure: StorageError | None = None
        self._bookie = bookie
        self._progress = trio.Event()
        self.writer: LedgerWriter = bookie.create_ledger(
            ledger_id, on_durable=self._on_durable, on_failed=self._on_failed, topic=f"t-{ledger_id}"
        )

    def _on_durable(self, last_entry_id: int) -> None:
        assert last_entry_id > self.durable
        self.durable = last_entry_id
        self._progress.set()

    def _on_failed(self, error: StorageError) -> None:
        assert self.failure is None
        self.failure = error
        self._progress.set()

    async def add(self, *bodies: bytes) -> None:
        for body in bodies:
            if not self._bookie.has_room():
                await self._bookie.wait_room()
            self.writer.append(body)
        await self.settled()

    async def settled(self) -> None:
        while self.durable < self.writer.next_entry_id - 1 and self.failure is None:
            self._progress = trio.Event()
            await self._progress.wait()


def bodies(ledger_id: int, count: int, size: int = 100, start: int = 0) -> list[bytes]:
    return [f"{ledger_id}/{i}/".encode().ljust(size + i % 7, b".") for i in range(start, start + count)]


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


async def read_all(bookie: Bookie, ledger_id: int) -> list[bytes]:
    found: list[bytes] = []
    last = bookie.last_entry_id(ledger_id)
    while len(found) <= last:
        found += await bookie.read(ledger_id, len(found), last, bytes_max=10_000)
    return found


async def test_entries_are_readable_once_durable_and_after_a_clean_restart(tmp_path: Path) -> None:
    wanted = bodies(7, 300)
    async with running(tmp_path) as bookie:
        owner = Owner(bookie, 7)
        assert owner.writer.append(wanted[0]) == 0
        assert bookie.read_cached(7, 0, 0) == []
        await owner.settled()
        assert bookie.read_cached(7, 0, 10) == wanted[:1]
        await owner.add(*wanted[1:])
        assert bookie.last_entry_id(7) == 299
        assert await read_all(bookie, 7) == wanted
    async with running(tmp_path) as bookie:
        assert bookie.recovery.clean
        assert bookie.last_entry_id(7) == 299
        assert bookie.read_cached(7, 0, 299) == []
        assert await read_all(bookie, 7) == wanted


async def test_a_crash_is_replayed_from_the_journal(tmp_path: Path) -> None:
    wanted = {ledger_id: bodies(ledger_id, 500) for ledger_id in (1, 2, 3)}
    async with running(tmp_path, close=False) as bookie:
        owners = {ledger_id: Owner(bookie, ledger_id) for ledger_id in wanted}
        for at in range(0, 500, 50):
            for ledger_id, owner in owners.items():
                await owner.add(*wanted[ledger_id][at : at + 50])
    async with running(tmp_path, close=False) as bookie:
        assert bookie.recovery.entries_replayed > 0
        assert bookie.recovery.damages == ()
        for ledger_id in wanted:
            assert await read_all(bookie, ledger_id) == wanted[ledger_id]
    async with running(tmp_path) as bookie:
        assert bookie.recovery.clean
        for ledger_id in wanted:
            assert await read_all(bookie, ledger_id) == wanted[ledger_id]


async def test_more_than_the_caches_hold_goes_through_rolling_journals_and_logs(tmp_path: Path) -> None:
    wanted = bodies(1, 3000, size=900)
    async with running(tmp_path) as bookie:
        owner = Owner(bookie, 1)
        await owner.add(*wanted)
        statistics = bookie.statistics()
        assert statistics.flushes > 5
        assert statistics.write_cache_bytes + statistics.flushing_bytes <= 256 * 1024 + 64 * 1024 + 4096
        assert await read_all(bookie, 1) == wanted
        assert bookie.statistics().reads_from_log < 3000
    assert len(os.listdir(tmp_path / "bookie" / "entry-logs")) > 5
    assert len(os.listdir(tmp_path / "bookie" / "journal")) < 8
    async with running(tmp_path) as bookie:
        assert await read_all(bookie, 1) == wanted


async def test_reads_keep_their_bounds(tmp_path: Path) -> None:
    wanted = bodies(4, 200, size=1000)
    # No flush but the one below: a read ends where the entries of one flush end, and when a full cache is
    # flushed depends on how the adds fall into journal groups.
    settings = replace(SMALL, write_cache_bytes=1 << 20)
    async with running(tmp_path, settings) as bookie:
        await Owner(bookie, 4).add(*wanted)
        for _ in range(2):  # from memory, then from the log
            assert await bookie.read(4, 10, 20, bytes_max=1 << 20) == wanted[10:21]
            assert await bookie.read(4, 10, 199, bytes_max=3 * 1006) == wanted[10:13]
            assert await bookie.read(4, 10, 199, bytes_max=1) == wanted[10:11]
            with pytest.raises(LedgerNotFound):
                await bookie.read(4, 200, 201, bytes_max=100)
            with pytest.raises(LedgerNotFound):
                await bookie.read(5, 0, 0, bytes_max=100)
            await bookie.flush()


async def test_empty_and_largest_entries(tmp_path: Path) -> None:
    large = os.urandom(5 * 1024 * 1024)
    settings = replace(SMALL, journal_group_bytes_max=64 * 1024)
    async with running(tmp_path, settings, close=False) as bookie:
        await Owner(bookie, 1).add(b"", large, b"", b"x")
        assert await read_all(bookie, 1) == [b"", large, b"", b"x"]
    async with running(tmp_path, settings) as bookie:
        assert await read_all(bookie, 1) == [b"", large, b"", b"x"]


async def test_a_closed_or_fenced_writer_refuses(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        one, two = Owner(bookie, 1), Owner(bookie, 2)
        one.writer.append(b"last")
        one.writer.close()
        with pytest.raises(LedgerFenced, match="ledger 1 is closed"):
            one.writer.append(b"late")
        two.writer.append(b"a")
        two.writer.append(b"b")
        assert await bookie.fence(2) == 1
        assert two.durable == 1
        with pytest.raises(LedgerFenced, match="ledger 2 is fenced"):
            two.writer.append(b"c")
        await one.settled()
        assert one.durable == 0
    async with running(tmp_path) as bookie:
        assert await bookie.fence(2) == 1
        with pytest.raises(AssertionError):
            Owner(bookie, 2)


async def test_a_deleted_ledger_is_gone_and_its_space_comes_back(tmp_path: Path) -> None:
    logs = tmp_path / "bookie" / "entry-logs"
    async with running(tmp_path, close=False) as bookie:
        keep, drop = Owner(bookie, 1), Owner(bookie, 2)
        await drop.add(*bodies(2, 1000, size=900))
        await keep.add(*bodies(1, 10))
        await bookie.flush()
        await keep.add(*bodies(1, 10, start=10))
        await drop.add(b"in the journal")
        before = size_of(logs)
        await bookie.delete_ledger(2)
        await bookie.delete_ledger(2)
        with pytest.raises(LedgerFenced):
            drop.writer.append(b"late")
        with pytest.raises(LedgerNotFound):
            await bookie.read(2, 0, 0, bytes_max=100)
        assert bookie.read_cached(2, 0, 5) == []
        assert bookie.last_entry_id(2) == -1
        await bookie.flush()
        assert bookie.statistics().entry_logs_deleted >= 3
        assert size_of(logs) < before / 3
    async with running(tmp_path) as bookie:
        assert bookie.last_entry_id(2) == -1
        with pytest.raises(LedgerNotFound):
            await bookie.read(2, 0, 0, bytes_max=100)
        assert await read_all(bookie, 1) == bodies(1, 20)


async def test_a_flipped_bit_in_an_entry_log_is_an_error_with_its_place(tmp_path: Path) -> None:
    wanted = bodies(1, 20)
    async with running(tmp_path) as bookie:
        await Owner(bookie, 1).add(*wanted)
    (path,) = (tmp_path / "bookie" / "entry-logs").iterdir()
    data = bytearray(path.read_bytes())
    data[data.index(b"1/5/")] ^= 4
    path.write_bytes(data)
    no_journals = replace(SMALL, journal_free_files_max=0)
    async with running(tmp_path, no_journals) as bookie:
        assert await bookie.read(1, 0, 19, bytes_max=1 << 20) == wanted[:5]
        with pytest.raises(CorruptData, match=r"\.log: the record at offset \d+ is not entry 5 of ledger 1"):
            await bookie.read(1, 5, 19, bytes_max=1 << 20)
        assert await bookie.read(1, 6, 19, bytes_max=1 << 20) == wanted[6:]


async def test_a_lost_index_is_made_anew_from_the_logs(tmp_path: Path) -> None:
    wanted = {ledger_id: bodies(ledger_id, 700) for ledger_id in (1, 2)}
    async with running(tmp_path, close=False) as bookie:
        owners = [Owner(bookie, ledger_id) for ledger_id in wanted]
        for owner, entries in zip(owners, wanted.values(), strict=True):
            await owner.add(*entries[:600])
        await bookie.flush()
        for owner, entries in zip(owners, wanted.values(), strict=True):
            await owner.add(*entries[600:])
    os.rename(tmp_path / "index", tmp_path / "elsewhere")
    for start in range(2):
        async with running(tmp_path) as bookie:
            assert bookie.recovery.index_rebuilt == ("" if start else "it was lost")
            assert bookie.recovery.entries_indexed == (0 if start else 1200)
            assert bookie.inventory.ledgers() == {1, 2}
            for ledger_id, entries in wanted.items():
                assert await read_all(bookie, ledger_id) == entries


async def test_an_old_copy_of_the_index_is_noticed(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        await Owner(bookie, 1).add(*bodies(1, 10))
    await trio.to_thread.run_sync(shutil.copytree, tmp_path / "index", tmp_path / "old")
    for ledger_id in (2, 3):
        async with running(tmp_path, replace(SMALL, journal_free_files_max=0)) as bookie:
            await Owner(bookie, ledger_id).add(*bodies(ledger_id, 1000))
    await trio.to_thread.run_sync(shutil.rmtree, tmp_path / "index")
    os.rename(tmp_path / "old", tmp_path / "index")
    async with running(tmp_path) as bookie:
        assert bookie.recovery.index_rebuilt == "it is older than the journal"
        assert await read_all(bookie, 1) == bodies(1, 10)
        for ledger_id in (2, 3):
            assert await read_all(bookie, ledger_id) == bodies(ledger_id, 1000)


async def test_what_a_start_found_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path, close=False) as bookie:
        await Owner(bookie, 1).add(b"x", b"y")
    caplog.set_level("DEBUG")
    async with running(tmp_path):
        pass
    async with running(tmp_path):
        pass
    first, second = [record for record in caplog.records if "recovered" in record.message]
    assert first.levelname == "WARNING"
    assert "entries replayed: 2" in first.message
    assert second.levelname == "DEBUG"


async def test_a_missing_entry_log_is_reported(tmp_path: Path) -> None:
    settings = replace(SMALL, journal_free_files_max=0)
    async with running(tmp_path, settings) as bookie:
        await Owner(bookie, 1).add(b"x")
    async with running(tmp_path, settings):
        pass  # no journal has it any more
    (path,) = (tmp_path / "bookie" / "entry-logs").iterdir()
    path.unlink()
    async with running(tmp_path, settings) as bookie:
        assert bookie.recovery.logs_missing == (1,)
        assert bookie.last_entry_id(1) == 0
        with pytest.raises(StorageError, match=r"1\.log: cannot open"):
            await bookie.read(1, 0, 0, bytes_max=10)
        with pytest.raises(LedgerNotFound):
            await bookie.read(1, 1, 1, bytes_max=10)
        assert bookie.statistics().read_failures == 1, "what was never there is no failure"
        await Owner(bookie, 2).add(b"y")
    async with running(tmp_path) as bookie:
        assert bookie.recovery.logs_missing == (1,), "its id is not another log's now"


async def test_publishers_wait_while_the_disk_is_behind(tmp_path: Path) -> None:
    index = RocksKeyValue(str(tmp_path / "index"))
    bookie = await Bookie.open(RealDisk(), index, str(tmp_path / "bookie"), SMALL)
    owner = Owner(bookie, 1)
    while bookie.has_room():
        owner.writer.append(bytes(1000))
    assert 64 * 1024 <= bookie.statistics().queued_bytes <= 65 * 1024 + 48
    with trio.move_on_after(0) as scope:
        await bookie.wait_room()
    assert scope.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bookie.run)
        with trio.fail_after(5):
            await bookie.wait_room()
        await bookie.close()
    assert owner.durable == owner.writer.next_entry_id - 1
    index.close()


async def test_ending_the_run_writes_what_was_accepted(tmp_path: Path) -> None:
    async with running(tmp_path, close=False) as bookie:
        owner = Owner(bookie, 1)
        for body in bodies(1, 50):
            owner.writer.append(body)
    assert owner.durable == 49
    with pytest.raises(StorageError, match="closed"):
        owner.writer.append(b"late")
    async with running(tmp_path) as bookie:
        assert await read_all(bookie, 1) == bodies(1, 50)


async def test_runs_anywhere_are_read_in_one_trip_and_bring_nothing_else(tmp_path: Path) -> None:
    wanted = {ledger_id: bodies(ledger_id, 1000, size=200) for ledger_id in (1, 2)}
    async with running(tmp_path) as bookie:
        for ledger_id in wanted:
            await Owner(bookie, ledger_id).add(*wanted[ledger_id])
    runs = [
        Run(ledger_id, first, min(first + first % 3, 999))
        for ledger_id in wanted
        for first in range(7, 1000, 41)
    ]
    async with running(tmp_path) as bookie:
        left, trips = runs, 0
        while left:
            brought = await bookie.read_runs(left, bytes_max=1 << 20)
            for (ledger_id, first, last), found in brought.items():
                assert 1 <= len(found) <= last - first + 1
                assert found == wanted[ledger_id][first : first + len(found)]
            left, trips = [run for run in left if run not in brought], trips + 1
        assert trips == 1
        statistics = bookie.statistics()
        assert statistics.reads_from_memory == 0
        assert statistics.read_log_bytes <= 3 * len(runs) * (max(map(len, wanted[1] + wanted[2])) + 24)
        assert statistics.read_cache_bytes == 0


async def test_what_is_wanted_soon_comes_with_the_same_trip_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "LOAD_AHEAD_MS_MAX", 60_000)
    wanted = bodies(1, 100, size=500)
    async with running(tmp_path) as bookie:
        await Owner(bookie, 1).add(*wanted)
    async with running(tmp_path) as bookie:
        asked, gone = Run(1, 10, 10), Run(1, 100, 100)
        soon = [Run(1, 50, 50), Run(1, 90, 90)]
        assert await bookie.read_runs([asked], bytes_max=1, ahead=[*soon, gone]) == {asked: wanted[10:11]}
        assert [bookie.read_cached(*run) for run in (asked, *soon)] == [[], wanted[50:51], wanted[90:91]]
        # What is in memory is not loaded again, and no trip is made for what is wanted soon alone.
        loads = bookie.statistics().found.log_loads
        assert loads == 3
        await bookie.read_runs([asked], bytes_max=1, ahead=soon)
        assert bookie.statistics().found.log_loads == loads + 1
        await bookie.read_runs([soon[0]], bytes_max=1, ahead=[asked])
        assert bookie.read_cached(*asked) == []
        await bookie.read_runs([asked], bytes_max=1, ahead=[Run(1, n, n) for n in range(0, 100, 2)])
        came = sum(bool(bookie.read_cached(1, n, n)) for n in range(0, 100, 2))
        assert 0 < came * 500 <= SMALL.read_ahead_bytes + 1000
        # A disk that is slow at once: the entry that is asked for does not wait for the others.
        monkeypatch.setattr(storage, "LOAD_AHEAD_MS_MAX", 0)
        await bookie.read_runs([Run(1, 98, 98)], bytes_max=1, ahead=[Run(1, n, n) for n in range(1, 100, 2)])
        assert sum(bool(bookie.read_cached(1, n, n)) for n in range(1, 100, 2)) == 0


async def test_runs_are_read_as_far_as_bytes_allow_and_up_to_one_that_cannot_be(tmp_path: Path) -> None:
    wanted = bodies(1, 100, size=200)
    async with running(tmp_path) as bookie:
        await Owner(bookie, 1).add(*wanted)
    async with running(tmp_path) as bookie:
        fresh = bodies(2, 1)
        await Owner(bookie, 2).add(*fresh)
        runs = [Run(1, 10, 10), Run(1, 50, 50), Run(1, 90, 90)]
        assert await bookie.read_runs(runs, bytes_max=1) == {runs[0]: wanted[10:11]}
        gone = Run(1, 100, 100)
        assert list(await bookie.read_runs([runs[0], gone, runs[1]], bytes_max=1 << 20)) == [runs[0]]
        with pytest.raises(LedgerNotFound):
            await bookie.read_runs([gone, runs[1]], bytes_max=1 << 20)
        in_memory = Run(2, 0, 0)
        with pytest.raises(LedgerNotFound):
            await bookie.read_runs([gone, in_memory], bytes_max=1 << 20)
        assert await bookie.read_runs([in_memory, gone], bytes_max=1 << 20) == {in_memory: fresh}
        assert await bookie.read_runs([runs[0], in_memory], bytes_max=1) == {runs[0]: wanted[10:11]}


async def test_reading_in_order_is_read_ahead(tmp_path: Path) -> None:
    wanted = bodies(1, 2000, size=200)
    async with running(tmp_path) as bookie:
        await Owner(bookie, 1).add(*wanted)
    async with running(tmp_path) as bookie:
        found: list[bytes] = []
        while len(found) < len(wanted):
            found += await bookie.read(1, len(found), min(len(found) + 4, 1999), bytes_max=1 << 20)
        assert found == wanted
        statistics = bookie.statistics()
        assert statistics.reads_from_memory > 0.95 * len(wanted)
        assert statistics.read_log_bytes < 1.1 * sum(map(len, wanted)) + 24 * len(wanted)
        assert statistics.read_cache_bytes <= SMALL.read_cache_bytes


async def test_large_reads_in_order_wait_for_the_log_once(tmp_path: Path) -> None:
    """Of more than half of what is read ahead: the next piece is under way before they ask for it."""
    wanted = bodies(1, 2000, size=200)
    async with running(tmp_path) as bookie:
        await Owner(bookie, 1).add(*wanted)
    async with running(tmp_path) as bookie:
        found: list[bytes] = []
        while len(found) < len(wanted):
            found += await bookie.read(1, len(found), min(len(found) + 21, 1999), bytes_max=1 << 20)
            await trio.testing.wait_all_tasks_blocked()
        assert found == wanted
        places = bookie.statistics().found
        assert places.log_entries <= 100
        assert places.log_entries + places.read_cache_entries == 2000
        assert places.log_bytes + places.read_cache_bytes == sum(map(len, wanted))
        assert places.write_cache_entries == 0
