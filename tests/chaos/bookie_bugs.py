"""Bugs to plant in journal, flush, recovery, index and deletion: see `planted_bugs`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from geminga.bookie.entry_logs import reader as entry_logs
from geminga.bookie.entry_logs.writer import EntryLogWriter
from geminga.bookie.index import ledger_index
from geminga.bookie.index.index_format import DELETED
from geminga.bookie.journal import scan as journal_scan
from geminga.bookie.journal.files import JournalFiles
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.recovery import directory_replay, index_rebuild
from geminga.bookie.recovery.directory_replay import DirectoryReplay
from geminga.bookie.running import storage
from geminga.bookie.running.bookie import Bookie
from geminga.bookie.running.ledger_writer import LedgerWriter
from geminga.bookie.running.write_caches import WriteCaches
from geminga.errors import StorageError
from simulation.disk.sim_disk import SimDisk, SimFile
from simulation.disk.sim_key_value import SimKeyValue

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


def _skip_sync(patch: Patch, suffix: str) -> None:
    real, write_synced = SimFile.sync, SimFile.write_synced
    patch.setattr(SimFile, "sync", lambda file: None if file.path.endswith(suffix) else real(file))
    patch.setattr(
        SimFile,
        "write_synced",
        lambda file, offset, parts: (SimFile.pwrite_many if file.path.endswith(suffix) else write_synced)(
            file, offset, parts
        ),
    )


def journal_not_synced(patch: Patch) -> None:
    _skip_sync(patch, ".journal")


def journal_groups_not_synced(patch: Patch) -> None:
    patch.setattr(SimFile, "write_synced", SimFile.pwrite_many)


def last_part_of_a_group_not_synced(patch: Patch) -> None:
    """As a short write whose rest is written without the flag."""
    real = SimFile.write_synced

    def write_synced(file: SimFile, offset: int, parts: Any) -> None:
        data = b"".join(parts)
        half = len(data) // 2
        real(file, offset, [data[:half]])
        file.pwrite(offset + half, data[half:])

    patch.setattr(SimFile, "write_synced", write_synced)


def entry_log_not_synced(patch: Patch) -> None:
    _skip_sync(patch, ".log")


def directories_not_synced(patch: Patch) -> None:
    patch.setattr(SimDisk, "sync_directory", lambda *_: None)


def journal_names_not_synced(patch: Patch) -> None:
    real = SimDisk.sync_directory
    patch.setattr(
        SimDisk, "sync_directory", lambda disk, path: None if path.endswith("/journal") else real(disk, path)
    )


def entry_log_names_not_synced(patch: Patch) -> None:
    real = SimDisk.sync_directory
    patch.setattr(
        SimDisk,
        "sync_directory",
        lambda disk, path: None if path.endswith("/entry-logs") else real(disk, path),
    )


def receipt_before_the_sync(patch: Patch) -> None:
    writers: list[LedgerWriter] = []
    write, durable, made = JournalFiles.write, LedgerWriter.durable, LedgerWriter.__init__

    def note(self: LedgerWriter, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        writers.append(self)

    def early(self: JournalFiles, batches: Any, *names: Any) -> Any:
        for ledger_id, first, bodies in batches:
            writer = [w for w in writers if w.ledger_id == ledger_id][-1]
            durable(writer, first + len(bodies) - 1)
        return write(self, batches, *names)

    patch.setattr(LedgerWriter, "__init__", note)
    patch.setattr(LedgerWriter, "durable", lambda self, last: None)
    patch.setattr(JournalFiles, "write", early)


def failed_sync_tried_again(patch: Patch) -> None:
    real = SimFile.sync

    def sync(file: SimFile) -> None:
        try:
            real(file)
        except StorageError:
            real(file)

    def write_synced(file: SimFile, offset: int, parts: Any) -> None:
        file.pwrite_many(offset, parts)
        file.sync()

    patch.setattr(SimFile, "sync", sync)
    patch.setattr(SimFile, "write_synced", write_synced)


def failed_write_ignored(patch: Patch) -> None:
    real = SimFile.pwrite

    def pwrite(file: SimFile, offset: int, data: Any) -> None:
        try:
            real(file, offset, data)
        except StorageError:
            pass

    patch.setattr(SimFile, "pwrite", pwrite)


def index_not_synced(patch: Patch) -> None:
    real = SimKeyValue.write
    patch.setattr(
        SimKeyValue, "write", lambda self, puts, deletes=(), *, sync: real(self, puts, deletes, sync=False)
    )


def mark_too_far(patch: Patch) -> None:
    real = WriteCaches.swap

    def swap(self: WriteCaches) -> Any:
        cache = real(self)
        self.flushing_positions = tuple(JournalPosition(p.journal_id + 1, 0) for p in self.positions)
        return cache

    patch.setattr(WriteCaches, "swap", swap)


def mark_before_the_rows(patch: Patch) -> None:
    real = ledger_index.LedgerIndex.flushed

    def flushed(self: ledger_index.LedgerIndex, rows: Any, marks: Any, **others: Any) -> None:
        real(self, [], marks, **others)
        real(self, rows, marks, **others)

    patch.setattr(ledger_index.LedgerIndex, "flushed", flushed)


def cache_swap_loses_an_entry(patch: Patch) -> None:
    real = WriteCaches.swap

    def swap(self: WriteCaches) -> Any:
        cache = real(self)
        for _, segments in cache.sorted_segments():
            del segments[-1:]
        return cache

    patch.setattr(WriteCaches, "swap", swap)


def journal_released_before_the_index(patch: Patch) -> None:
    real = storage.LedgerStorage.flush

    async def flush(self: storage.LedgerStorage, cache: Any, marks: Any, release: Any) -> None:
        self._index.marks = marks
        release()
        await real(self, cache, marks, lambda: None)

    patch.setattr(storage.LedgerStorage, "flush", flush)


def journal_checksum_skipped(patch: Patch) -> None:
    patch.setattr(journal_scan, "damaged_record", lambda segment: None)


def torn_end_taken_for_damage(patch: Patch) -> None:
    patch.setattr(journal_scan.JournalScan, "_was_synced", lambda self, offset, end: True)


def last_group_not_replayed(patch: Patch) -> None:
    real = journal_scan.JournalScan.groups

    def groups(self: journal_scan.JournalScan, offset: int) -> Iterator[Any]:
        found = list(real(self, offset))
        return iter(found[:-1])

    patch.setattr(journal_scan.JournalScan, "groups", groups)


def last_entry_of_a_run_not_replayed(patch: Patch) -> None:
    real = DirectoryReplay.take

    def take(self: DirectoryReplay, segment: Any) -> None:
        if segment.last > segment.first:
            segment = segment.part(segment.first, segment.last - 1)
        real(self, segment)

    patch.setattr(DirectoryReplay, "take", take)


def replay_not_idempotent(patch: Patch) -> None:
    patch.setattr(DirectoryReplay, "_last_entry_id", lambda self, ledger_id: -1)


def replay_served_without_flushing(patch: Patch) -> None:
    real = DirectoryReplay._flush

    def flush(self: DirectoryReplay, marks: Any, lost: Any, **others: Any) -> None:
        self._index.flushed = lambda rows, marks, **kept: None  # type: ignore[method-assign]
        real(self, marks, lost, **others)

    patch.setattr(DirectoryReplay, "_flush", flush)


def fence_not_persisted(patch: Patch) -> None:
    async def set_state(self: storage.LedgerStorage, ledger_id: int, state: Any) -> None:
        if state.kind == DELETED:
            self._index.set_state(ledger_id, state)

    patch.setattr(storage.LedgerStorage, "set_state", set_state)


def deletion_not_persisted(patch: Patch) -> None:
    async def set_state(self: storage.LedgerStorage, ledger_id: int, state: Any) -> None:
        if state.kind == DELETED:
            self._index.states[ledger_id] = state
        else:
            self._index.set_state(ledger_id, state)

    patch.setattr(storage.LedgerStorage, "set_state", set_state)


def deletion_forgotten_before_the_journal(patch: Patch) -> None:
    real = ledger_index.LedgerIndex.purge

    def purge(self: ledger_index.LedgerIndex, *args: Any) -> Any:
        for ledger_id, state in self.states.items():
            self.states[ledger_id] = state._replace(position=JournalPosition(0, 0))
        return real(self, *args)

    patch.setattr(ledger_index.LedgerIndex, "purge", purge)


def log_with_a_living_ledger_deleted(patch: Patch) -> None:
    real = storage.LedgerStorage._delete_dead_logs

    def delete_dead_logs(self: storage.LedgerStorage) -> int:
        usage = self._index.usage
        self._index.usage = {log_id: ledgers for log_id, ledgers in usage.items() if len(ledgers) > 1}
        return real(self)

    patch.setattr(storage.LedgerStorage, "_delete_dead_logs", delete_dead_logs)


def index_written_after_the_unlink(patch: Patch) -> None:
    async def collect(self: storage.LedgerStorage) -> None:
        usage, states = self._index.usage, self._index.states
        self._index.usage = {
            log_id: {key: row for key, row in ledgers.items() if not _is_deleted(states, key)}
            for log_id, ledgers in usage.items()
        }
        patch.setattr(self._index, "forget_log", lambda log_id: None)
        self._delete_dead_logs()
        self._index.usage = usage
        self._index.purge()

    patch.setattr(storage.LedgerStorage, "collect", collect)


def _is_deleted(states: Any, ledger_id: int) -> bool:
    return ledger_id in states and states[ledger_id].kind == DELETED


def deletion_does_not_wait_for_its_mark(patch: Patch) -> None:
    async def delete_ledger(self: Bookie, ledger_id: int) -> None:
        self._set.of(ledger_id).caches.active.discard(ledger_id)

    patch.setattr(Bookie, "delete_ledger", delete_ledger)


def failure_not_told(patch: Patch) -> None:
    patch.setattr(LedgerWriter, "failed", lambda self, error: None)


def footer_synced_with_its_records(patch: Patch) -> None:
    real = EntryLogWriter.finish

    def finish(self: EntryLogWriter) -> None:
        if self._file is not None:
            self._write_parts()
        self._synced = self._end
        real(self)

    patch.setattr(EntryLogWriter, "finish", finish)


def rebuild_forgets_the_last_log(patch: Patch) -> None:
    real = index_rebuild.rebuild_index
    patch.setattr(
        directory_replay,
        "rebuild_index",
        lambda disk, directory, log_ids, *args, **kwargs: real(
            disk, directory, log_ids[:-1], *args, **kwargs
        ),
    )


def entry_log_checksum_skipped(patch: Patch) -> None:
    patch.setattr(entry_logs, "damaged_record", lambda segment: None)


BY_CRASHES: tuple[Plant, ...] = (
    journal_not_synced,
    journal_groups_not_synced,
    last_part_of_a_group_not_synced,
    entry_log_not_synced,
    directories_not_synced,
    journal_names_not_synced,
    entry_log_names_not_synced,
    receipt_before_the_sync,
    failed_sync_tried_again,
    failed_write_ignored,
    index_not_synced,
    mark_too_far,
    mark_before_the_rows,
    cache_swap_loses_an_entry,
    journal_released_before_the_index,
    journal_checksum_skipped,
    torn_end_taken_for_damage,
    last_group_not_replayed,
    last_entry_of_a_run_not_replayed,
    replay_not_idempotent,
    replay_served_without_flushing,
    fence_not_persisted,
    deletion_not_persisted,
    deletion_forgotten_before_the_journal,
    log_with_a_living_ledger_deleted,
    index_written_after_the_unlink,
    deletion_does_not_wait_for_its_mark,
    failure_not_told,
    rebuild_forgets_the_last_log,
)
BY_LOST_INDEXES: tuple[Plant, ...] = (footer_synced_with_its_records,)
"""These need a crash at one operation and a lost index: only such cases are tried."""
BY_FLIPS: tuple[Plant, ...] = (entry_log_checksum_skipped,)
