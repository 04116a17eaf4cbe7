"""A bookie whose files something else removes: what it names, and what the next opening has."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio

from geminga.bookie.journal.files import JournalFiles
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.running import bookie_files
from geminga.bookie.running.bookie import Bookie
from geminga.bookie.running.ledger_writer import LedgerWriter
from geminga.errors import StorageError
from geminga.limits import KIB
from geminga.storage.disk import File, RealDisk
from geminga.storage.disk_errors import DiskFull
from geminga.storage.key_value import RocksKeyValue
from geminga.storage.removed_files import UNFINISHED

SMALL = BookieSettings(
    journal_file_bytes=64 * KIB,
    journal_allocate_bytes=16 * KIB,
    entry_log_bytes=64 * KIB,
    disk_free_bytes_min=0,
    compaction_rate_bytes_per_s=0,
    journal_free_files_max=1,
)
ENTRY_BYTES = 1000
SECONDS_MAX = 30.0


class Entries:
    """The entries of some ledgers, as their writer knows them."""

    def __init__(self, bookie: Bookie) -> None:
        self.durable: dict[int, int] = {}
        self._bookie = bookie
        self._writers: dict[int, LedgerWriter] = {}

    async def add(self, ledger_id: int, count: int) -> None:
        """Durable on return."""
        if ledger_id not in self._writers:
            self._writers[ledger_id] = self._bookie.create_ledger(
                ledger_id,
                on_durable=lambda last: self.durable.update({ledger_id: last}),
                on_failed=lambda error: None,
            )
        writer, last = self._writers[ledger_id], -1
        for _ in range(count):
            last = writer.append(body(ledger_id, writer.next_entry_id))
        with trio.fail_after(SECONDS_MAX):
            while self.durable.get(ledger_id, -1) < last:
                await trio.lowlevel.checkpoint()


def body(ledger_id: int, entry_id: int) -> bytes:
    return b"%d-%d " % (ledger_id, entry_id) + bytes(ENTRY_BYTES)


@contextlib.asynccontextmanager
async def running(path: Path) -> AsyncIterator[Bookie]:
    index = RocksKeyValue(str(path / "index"))
    try:
        bookie = await Bookie.open(RealDisk(), index, str(path), SMALL)
        async with trio.open_nursery() as nursery:
            await nursery.start(bookie.run)
            yield bookie
            nursery.cancel_scope.cancel()
    finally:
        index.close()


async def check(path: Path, durable: dict[int, int]) -> None:
    async with running(path) as bookie:
        for ledger_id, last in durable.items():
            for entry_id in range(last + 1):
                assert await bookie.read(ledger_id, entry_id, entry_id, bytes_max=1) == [
                    body(ledger_id, entry_id)
                ]


def files(path: Path, directory: str) -> list[Path]:
    return sorted((path / directory).iterdir())


@pytest.mark.parametrize(
    "chosen",
    [
        lambda path: files(path, "journal")[-1:],
        lambda path: files(path, "journal")[:1],
        lambda path: files(path, "journal"),
        lambda path: files(path, "entry-logs")[-1:],
        lambda path: [*files(path, "journal"), *files(path, "entry-logs")[-1:]],
    ],
    ids=["open journal", "closed journal", "all journals", "current log", "current log and all journals"],
)
async def test_removed_files_are_named_and_their_entries_saved(
    tmp_path: Path, chosen: Callable[[Path], list[Path]]
) -> None:
    with pytest.RaisesGroup(StorageError):
        async with running(tmp_path) as bookie:
            entries = Entries(bookie)
            await entries.add(1, 20)
            await bookie.flush()
            await entries.add(2, 200)
            await entries.add(3, 1)  # in a journal of its own, since the last one is full
            removed = chosen(tmp_path)
            for file in removed:
                file.unlink()
            await entries.add(1, 3)
            assert bookie.files.gone() == [str(file) for file in removed]
            before = dict(entries.durable)
            await bookie.abandon(StorageError("removed"))
            assert entries.durable == before
            with pytest.raises(StorageError, match="removed"):
                await entries.add(1, 1)
    # The bookie may end before any look: a removed journal that it wanted to use again cannot be renamed.
    await check(tmp_path, entries.durable)


@pytest.mark.parametrize("length", [0, 70])
@pytest.mark.parametrize(("directory", "number"), [("journal", -1), ("journal", 0), ("entry-logs", -1)])
async def test_cut_files_are_named_and_their_entries_kept(
    tmp_path: Path, directory: str, number: int, length: int
) -> None:
    with pytest.RaisesGroup(StorageError):
        async with running(tmp_path) as bookie:
            entries = Entries(bookie)
            await entries.add(1, 20)
            await bookie.flush()
            await entries.add(2, 100)
            await entries.add(3, 1)  # in a journal of its own
            assert bookie.files.gone() == []
            cut = files(tmp_path, directory)[number]
            os.truncate(cut, length)
            assert bookie.files.gone() == [str(cut)]
            await bookie.abandon(StorageError("cut"))
    await check(tmp_path, entries.durable)


@pytest.mark.parametrize("is_closed", [False, True])
async def test_no_write_goes_behind_a_cut(tmp_path: Path, is_closed: bool) -> None:
    """The file would be as long as before, with a hole."""
    with pytest.RaisesGroup(StorageError, flatten_subgroups=True):
        async with running(tmp_path) as bookie:
            entries = Entries(bookie)
            await entries.add(1, 20)
            await bookie.flush()
            if is_closed:
                await bookie.directories[0].storage.finish_log()
            log = files(tmp_path, "entry-logs")[0]
            os.truncate(log, 0)
            await entries.add(2, 20)
            if is_closed:
                assert bookie.files.gone() == [str(log)]
                await bookie.abandon(StorageError("cut"))
            with pytest.raises(StorageError, match="cut"):
                await bookie.flush()
            await trio.sleep_forever()
    assert log.stat().st_size == 0
    await check(tmp_path, entries.durable)


async def test_a_log_that_is_removed_before_its_first_look_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had no identity, as little as the path, so it passed for the same file."""
    identity = RealDisk.identity

    def removed(disk: RealDisk, path: str) -> tuple[int, int] | None:
        if path.endswith(".log"):
            monkeypatch.undo()
            os.unlink(path)
        return identity(disk, path)

    monkeypatch.setattr(RealDisk, "identity", removed)
    with pytest.RaisesGroup(StorageError):
        async with running(tmp_path) as bookie:
            entries = Entries(bookie)
            await entries.add(1, 20)
            await bookie.flush()
            assert len(bookie.files.gone()) == 1
            await bookie.abandon(StorageError("removed"))
    assert len(files(tmp_path, "entry-logs")) == 1
    await check(tmp_path, entries.durable)


def test_a_journal_that_is_removed_before_its_first_look_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had no identity, as little as the path, so it passed for the same file."""
    identity = RealDisk.identity

    def removed(disk: RealDisk, path: str) -> tuple[int, int] | None:
        monkeypatch.undo()
        os.unlink(path)
        return identity(disk, path)

    monkeypatch.setattr(RealDisk, "identity", removed)
    journal = JournalFiles(
        RealDisk(), str(tmp_path), SMALL, journal_id=1, previous=JournalPosition(0, 0), free=[]
    )
    [gone] = journal.gone()
    journal.write_again()
    assert journal.gone() == []
    assert os.path.getsize(gone) > 0
    journal.close()


def test_no_last_group_goes_behind_a_cut_of_the_journal(tmp_path: Path) -> None:
    """It ends where the reserved space does, and would make the file as long as before."""
    journal = JournalFiles(
        RealDisk(), str(tmp_path), SMALL, journal_id=1, previous=JournalPosition(0, 0), free=[]
    )
    page_bytes = SMALL.journal_alignment_bytes
    for entry_id in range(1000):
        if journal.position.offset + page_bytes == SMALL.journal_file_bytes:
            break
        journal.write([(1, entry_id, [body(1, entry_id)])])
    [file] = tmp_path.iterdir()
    assert file.stat().st_size == SMALL.journal_file_bytes
    os.truncate(file, 0)
    with pytest.raises(StorageError, match="cut"):
        journal.write([(1, entry_id, [body(1, entry_id)])])
    assert file.stat().st_size == 0
    journal.close()


async def test_a_spare_journal_that_is_missed_at_its_reuse_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Further journals may be removed while the bookie ends, and nothing is in entry logs yet."""
    with pytest.RaisesGroup(StorageError):
        async with running(tmp_path) as bookie:
            entries = Entries(bookie)
            await entries.add(1, 200)
            await entries.add(1, 1)
            await bookie.flush()
            await entries.add(2, 1)
            spare = files(tmp_path, "journal")[0]
            spare.unlink()
            with contextlib.suppress(StorageError):
                await entries.add(2, 200)
                await entries.add(2, 1)
            await trio.sleep_forever()
    assert f"not needed any more, all entries are in entry logs: {spare}" in caplog.text
    for journal in files(tmp_path, "journal"):
        journal.unlink()
    (tmp_path / "journal" / "00000000000000000001.journal").touch()
    await check(tmp_path, entries.durable)


async def test_a_closed_log_is_saved_while_a_reader_has_it_open(tmp_path: Path) -> None:
    with pytest.RaisesGroup(StorageError):
        async with running(tmp_path) as bookie:
            entries = Entries(bookie)
            for ledger_id in (1, 2, 3):
                await entries.add(ledger_id, 100)
                await bookie.flush()
            await bookie.peek(1, 0, 0, bytes_max=1)
            log = files(tmp_path, "entry-logs")[0]
            log.unlink()
            assert bookie.files.gone() == [str(log)]
            await bookie.abandon(StorageError("removed"))
    assert log.exists()
    await check(tmp_path, entries.durable)


async def test_a_removed_log_is_named_although_its_entries_were_healed(tmp_path: Path) -> None:
    with pytest.RaisesGroup(StorageError):
        async with running(tmp_path) as bookie:
            entries = Entries(bookie)
            await entries.add(1, 50)
            await bookie.flush()
            await entries.add(2, 50)
            await bookie.flush()
            log = files(tmp_path, "entry-logs")[0]
            await bookie.directories[0].storage.finish_log()
            log.unlink()
            for ledger_id in (1, 2):
                assert len(await bookie.peek(ledger_id, 0, 49, bytes_max=1 << 20)) == 50
            assert str(log) in bookie.files.gone()
            await bookie.abandon(StorageError("removed"))
    await check(tmp_path, entries.durable)


async def test_a_log_that_is_full_before_anybody_looks_is_saved(tmp_path: Path) -> None:
    with pytest.RaisesGroup(StorageError, flatten_subgroups=True):
        async with running(tmp_path) as bookie:
            entries = Entries(bookie)
            await entries.add(1, 20)
            await bookie.flush()
            files(tmp_path, "entry-logs")[-1].unlink()
            await entries.add(2, 200)
            await bookie.flush()
            await entries.add(3, 1)
            with pytest.raises(StorageError, match="removed, moved, replaced or cut"):
                await bookie.flush()
            await trio.sleep_forever()
    await check(tmp_path, entries.durable)


async def test_what_the_bookie_itself_deletes_is_no_alarm(tmp_path: Path) -> None:
    """Ledgers come and go, logs are compacted and journals are reused, as fast as they can."""
    alarms: list[str] = []
    looks = 0
    is_over = threading.Event()
    async with running(tmp_path) as bookie:

        def look() -> None:
            nonlocal looks
            while not is_over.is_set():
                alarms.extend(bookie.files.gone())
                looks += 1

        thread = threading.Thread(target=look)
        thread.start()
        try:
            entries = Entries(bookie)
            for round_number in range(25):
                first = 10 * round_number + 1
                for ledger_id in range(first, first + 6):
                    await entries.add(ledger_id, 20)
                await bookie.flush()
                for ledger_id in range(first, first + 5):
                    await bookie.delete_ledger(ledger_id)
                    del entries.durable[ledger_id]
                await bookie.collect_garbage()
                await bookie.compact(0.5)
        finally:
            is_over.set()
            thread.join()
        deleted = sum(directory.storage.logs_deleted for directory in bookie.directories)
        await bookie.close()
    assert alarms == []
    assert looks > 50
    assert deleted > 20
    await check(tmp_path, entries.durable)


async def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else has the bytes of a removed journal or log that is still open."""
    monkeypatch.setattr(bookie_files, "RETRY_S", 0)
    create = RealDisk.create
    refused: list[str] = []

    def full_at_first(disk: RealDisk, path: str) -> File:
        if path.endswith(UNFINISHED) and refused.count(path) < 3:
            refused.append(path)
            raise DiskFull(f"{path}: disk full")
        return create(disk, path)

    with pytest.RaisesGroup(StorageError):
        async with running(tmp_path) as bookie:
            entries = Entries(bookie)
            await entries.add(1, 20)
            await bookie.flush()
            await entries.add(2, 10)
            for file in (*files(tmp_path, "journal"), *files(tmp_path, "entry-logs")):
                file.unlink()
            before = dict(entries.durable)
            monkeypatch.setattr(RealDisk, "create", full_at_first)
            await bookie.abandon(StorageError("removed"))
    assert len(refused) == 6
    await check(tmp_path, before)


async def test_spare_journals_stay_from_the_moment_a_closed_log_is_removed(tmp_path: Path) -> None:
    """They are the only other place of its entries, and nobody has looked for removed files yet."""
    with pytest.RaisesGroup(StorageError):
        async with running(tmp_path) as bookie:
            entries = Entries(bookie)
            await entries.add(1, 50)
            await bookie.flush()
            await bookie.directories[0].storage.finish_log()
            await entries.add(2, 50)
            await entries.add(2, 1)  # in the next journal
            await bookie.flush()
            files(tmp_path, "entry-logs")[0].unlink()
            for ledger_id in (3, 4, 5):  # at least two journals more than are kept
                await entries.add(ledger_id, 100)
                await bookie.flush()
            await bookie.abandon(StorageError("removed"))
    await check(tmp_path, entries.durable)
