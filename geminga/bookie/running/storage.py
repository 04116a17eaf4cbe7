"""Flushes write caches to entry logs, reads from them, and deletes ledgers.

Everything that has left the write caches is here. The order of a flush keeps the files consistent after a
crash at any point: sync the entry log, then write index and marks in one synced batch, then release the
journals. A deletion first writes the state "deleted", then removes rows, then files; each step is durable
before the next.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import trio

from geminga.bookie.entry_logs.compaction_plan import LogShare
from geminga.bookie.entry_logs.log_check import LogCheck
from geminga.bookie.entry_logs.missing_logs import replace_rows
from geminga.bookie.entry_logs.reader import EntryLogs
from geminga.bookie.entry_logs.slices import LogSlices
from geminga.bookie.entry_logs.writer import EntryLogWriter
from geminga.bookie.index.index_format import ASIDE, DELETED, Row, State, row_part
from geminga.bookie.index.ledger_index import LedgerIndex, LedgerRow
from geminga.bookie.records.entry_ranges import runs_of
from geminga.bookie.records.file_names import entry_log_path
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.records.ledger_name import LedgerName
from geminga.bookie.records.records import Run, Segment
from geminga.bookie.records.segment_map import SegmentMap
from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.running.disk_space import flush_refusal
from geminga.clock import RealClock
from geminga.errors import CorruptData, LedgerNotFound, ReadOnly, StorageError
from geminga.storage.disk import Disk
from geminga.storage.disk_errors import DiskFull
from geminga.storage.removed_files import is_cut

# Without it a message that is due would wait on a slow disk for a hundred others, each a seek.
LOAD_AHEAD_MS_MAX = 4
"""Of one trip to the disk, before no more is loaded along with the entries that are wanted now."""
_monotonic_s = RealClock().monotonic_s
KEPT_JOURNALS_MAX = 1000
"""The limit of missing journals that the index names."""
DAMAGE_BYTES_MAX = 1 << 20
"""The limit of record bytes that one attempt to heal checks."""


log = logging.getLogger("geminga.bookie")


class KeptLogs(NamedTuple):
    """Entry logs without a living ledger that are not deleted, because a start found a mismatch."""

    logs: int = 0
    bytes: int = 0


class LedgerStorage:
    """Entry logs and index of one ledger directory. Async methods wait on threads; all are called on the
    loop.
    """

    def __init__(
        self,
        disk: Disk,
        settings: BookieSettings,
        index: LedgerIndex,
        logs: EntryLogs,
        writer: EntryLogWriter,
    ) -> None:
        self.names: dict[int, LedgerName] = {}
        """Ledger names, for the entry logs."""
        self.logs_deleted = 0
        self.kept = KeptLogs()
        """As of the last `collect`."""
        self.flushed_bytes = 0
        self.reclaimed_by_deletion_bytes = 0
        self.reclaimed_by_compaction_bytes = 0
        self.disk = disk
        self._settings = settings
        self._index = index
        self._logs = logs
        self._writer = writer
        self._record_bytes: dict[int, int] = {}
        """Record bytes of the closed logs whose size a compaction has looked up."""
        self._unreadable: set[int] = set()
        self._copied: dict[int, int] = {}
        """Bytes that compaction has copied out of logs that still exist."""
        self._log_lock = trio.Lock()
        """Held from a write to the entry log until its rows are in the index, and while logs are deleted,
        because a log that was just closed has no rows yet.
        """
        self._index_lock = trio.Lock()
        self._closed = False
        self._kept = False
        self._overlooked: frozenset[int] = frozenset()
        """Logs that were missing when the bookie was opened."""
        self._lengths: Mapping[int, int] = {}
        """Where the records ended of logs that lacked their last ones then."""
        self._misnamed: set[int] = set()
        """Dead logs whose files were found to be other logs."""
        self._missed: set[int] = set()
        """Logs that a check of damaged entries has not found since. Healing moves the entries away from them.
        """

    @property
    def index(self) -> LedgerIndex:
        return self._index

    async def flush(
        self, cache: SegmentMap, marks: tuple[JournalPosition, ...], release: Callable[[], None]
    ) -> None:
        """Write a cache to entry logs. On return all entries are durable and can be read. `release` is
        called, off the loop, once the journals before `marks` are not needed here. Raises ReadOnly if there
        is no space; nothing has changed then, so the call may be repeated.
        """
        async with self._log_lock:
            # The log lock is held until the rows are in the index: garbage collection would see a closed log
            # that nothing names and delete what was just written.
            # A copy, for the thread, and not of all names: of 10,000 ledgers that took 5 ms.
            names = {ledger_id: self.names[ledger_id] for ledger_id in cache.ledgers() & self.names.keys()}
            rows = await self.disk.run(self._write, cache, names)
            async with self._index_lock:
                covered = self._writer.position
                await self.disk.run(lambda: self._index.flushed(rows, marks, covered=covered))
        self.flushed_bytes += cache.bytes
        # Outside the locks and last. A crash before it replays a journal that is not needed, which changes
        # nothing.
        await self.disk.run(release)

    def _write(self, cache: SegmentMap, names: dict[int, LedgerName]) -> list[LedgerRow]:
        if self._closed:
            raise StorageError(f"{self._logs.directory}: closed")
        free_bytes = self.disk.free_bytes(self._logs.directory)
        # Asked beforehand: a log that ends in the middle of a write for want of space is thrown away as a
        # whole.
        if cache.entries and (why := flush_refusal(free_bytes, cache.bytes, self._settings)):
            raise ReadOnly(why)
        try:
            return self._writer.write(cache, names)
        except DiskFull as error:
            # All of it is in memory and in the journal still, and goes to a new log later: a file whose sync
            # has failed is not used again.
            self._writer.abandon()
            raise ReadOnly(str(error)) from error

    async def finish_log(self) -> None:
        """Close the current entry log."""
        async with self._log_lock:
            try:
                # A footer makes the log's index rows readable without a pass over its records, also after its
                # index is lost.
                await self.disk.run(self._writer.finish)
            except DiskFull:
                self._writer.abandon()  # a log without a footer is read all the same

    async def set_state(self, ledger_id: int, state: State) -> None:
        """Set the state of a ledger. Durable on return."""
        async with self._index_lock:
            await self.disk.run(self._index.set_state, ledger_id, state)

    async def set_aside(self, ledger_ids: Collection[int], lift: Collection[int]) -> None:
        """See `LedgerIndex.set_aside`."""
        async with self._index_lock:
            await self.disk.run(lambda: self._index.set_aside(ledger_ids, lift=lift))

    async def collect(self) -> None:
        """Remove the rows of deleted ledgers, and delete entry logs without a living ledger. Waits for a
        flush that is under way, and for one slice of a compaction.
        """
        async with self._log_lock, self._index_lock:
            # Rows, synced, before files: a row whose log is gone would be reported as damage at the next
            # start.
            await self.disk.run(self._purge)
            self.logs_deleted += await self.disk.run(self._delete_dead_logs)

    def keep_logs(self, kept: bool) -> None:
        """Within this context no entry log is deleted; `collect` catches up later."""
        self._kept = kept

    async def settle_deletions(self) -> None:
        """Return once no deletion of entry logs is under way."""
        async with self._log_lock:
            pass

    async def ledgers(self) -> set[int]:
        """Every served ledger with entries in a log."""
        found = await self.disk.run(self._index.ledgers)
        return {ledger_id for ledger_id in found if self.is_served(ledger_id)}

    async def move_slice(self, slices: LogSlices) -> int | None:
        """Copy the next slice of a log's living records to the current log, then update the index; both
        durable on return. Returns the number of bytes; None if nothing was left. Cancelling may leave copies
        that no row names; they only cost space.
        """
        try:
            piece = await self.disk.run(slices.next)
        except CorruptData as error:
            slices.give_up(error)
            return None
        if piece is None or not piece.taken:
            return None if piece is None else 0
        async with self._log_lock:
            # The lock is taken for each slice: holding it for a whole log would stop flushes, and with them
            # publishers.
            new = await self.disk.run(self._write, piece.records, slices.names)
            async with self._index_lock:
                # BookKeeper's issue 1534: the index has to be durable with the copies before the old log is
                # unlinked.
                covered = self._writer.position
                await self.disk.run(lambda: self._index.move(piece.taken, piece.rest, new, covered=covered))
        copied = sum(row.ends[-1] for _, row in piece.taken)
        self._copied[slices.log_id] = self._copied.get(slices.log_id, 0) + copied
        return copied

    async def shares(self) -> list[LogShare]:
        """The share of living records in each closed log."""
        return await self.disk.run(self._shares)

    def _shares(self) -> list[LogShare]:
        # Each log is asked once for its size.
        writing, usage = self._writer.log_id, dict(self._index.usage)
        shares = []
        for log_id, ledgers in usage.items():
            # A compaction ends with the deletion of the old log, so what is kept is not compacted either.
            if log_id == writing or log_id in self._unreadable or log_id < self._index.kept.below:
                continue
            living = sum(row.bytes for ledger_id, row in ledgers.items() if not self.is_deleted(ledger_id))
            size = self._record_bytes.get(log_id)
            if size is None:
                try:
                    size = self._record_bytes[log_id] = self._logs.records_bytes(log_id)
                except StorageError:
                    continue  # it is missing, or was just deleted
            shares.append(LogShare(log_id, living, size))
        return shares

    def slices(self, log_id: int) -> LogSlices:
        """The slices of a closed log's living records."""
        return LogSlices(self._logs, self._index, log_id, self._settings.compaction_slice_bytes)

    def leave_alone(self, log_id: int) -> None:
        """Exclude this log from compaction: it cannot be read in full."""
        self._unreadable.add(log_id)

    # ---- damage

    @property
    def log_directory(self) -> str:
        return self._logs.directory

    def closed_logs(self) -> list[int]:
        """The closed logs with living entries, newest first."""
        usage, writing = self._index.usage, self._writer.log_id
        return sorted(
            (log_id for log_id, ledgers in usage.items() if ledgers and log_id != writing), reverse=True
        )

    def log_check(self, log_id: int) -> LogCheck:
        """A check of the living records of a closed log."""
        return LogCheck(self._logs, self._index, log_id)

    def remarks(self, log_id: int) -> list[str]:
        """The damage to a closed log's header, footer and trailer. Blocking."""
        is_wanted = self._index.usage.get(log_id) and self._logs.is_there(log_id)
        return self._logs.remarks(log_id) if is_wanted else []

    async def damaged(self, runs: Sequence[Run]) -> list[Run]:
        """The damaged entries among these, at their current offsets in the index. For each run, checks the
        first `DAMAGE_BYTES_MAX` and the rest of that row.
        """
        return await self.disk.run(self._damaged, runs)

    def _damaged(self, runs: Sequence[Run]) -> list[Run]:
        found: list[Run] = []
        for ledger_id, first, last in runs:
            left = DAMAGE_BYTES_MAX
            while first <= last and left > 0 and not self.is_deleted(ledger_id):
                row = self._index.find(ledger_id, first)
                if row is None or row.lost:
                    break
                part = row_part(row, first, row.last)
                fitting = max(1, bisect_right(part.ends, left))
                part = row_part(part, first, min(last, first + fitting - 1))
                self._note_if_missing(ledger_id, row)
                try:
                    damaged = self._logs.damaged_entries(ledger_id, part)
                except StorageError:
                    # A log that is gone is no failure if the row leads to another one by now: a compaction
                    # has moved the entry.
                    if self._index.find(ledger_id, first) == row:
                        raise
                    continue
                found += [Run(ledger_id, *each) for each in runs_of(damaged)]
                left -= part.ends[-1]
                first = part.last + 1
        return found

    def _note_if_missing(self, ledger_id: int, row: Row) -> None:
        if row.log_id in self._overlooked or self._logs.is_there(row.log_id):
            return
        # A compaction replaces the row before it deletes the log.
        if self._index.find(ledger_id, row.first) == row:
            self._missed.add(row.log_id)

    async def rewrite(self, records: SegmentMap) -> int:
        """Rewrite entries whose records in closed logs are damaged to the current log, then update the
        index; both durable on return. Returns the number of entries. Raises ReadOnly if there is no space;
        nothing has changed then.
        """
        async with self._log_lock:
            names = await self.disk.run(self._names_in_logs, records)
            new = await self.disk.run(self._write, records, names | self.names)
            async with self._index_lock:
                for each in new:
                    self._unreadable -= await self.disk.run(replace_rows, self._index, each)
        return records.entries

    def _names_in_logs(self, records: SegmentMap) -> dict[int, LedgerName]:
        """The names of these ledgers in the logs that have the entries."""
        names: dict[int, LedgerName] = {}
        logs: set[int] = set()
        for ledger_id, segments in records.sorted_segments():
            rows = (self._index.find(ledger_id, segment.first) for segment in segments)
            logs |= {row.log_id for row in rows if row is not None and not row.lost}
        for log_id in logs:
            # Names are for readers of the files without the metadata. A damaged footer must not keep entries
            # from being healed.
            with contextlib.suppress(StorageError):
                names |= self._logs.names(log_id)
        return names

    def _purge(self) -> None:
        self._index.purge(self._writer.position, self._logs.ids())

    def _delete_dead_logs(self) -> int:
        if self._kept:
            return 0
        # The index was synced before this: no row names these logs any more, whatever a crash leaves of them.
        dead = self._dead_logs()
        dead = dead[self._note_kept(dead) :]
        deleted = 0
        for log_id in dead:
            freed = self._logs.delete(log_id)
            if freed is None:
                self._name_misnamed(log_id)
                continue
            deleted += 1
            copied = self._copied.pop(log_id, 0)
            # Less what was copied: the space that a compaction gives back is the dead part of the old log
            # only.
            if copied:
                self.reclaimed_by_compaction_bytes += max(0, freed - copied)
            else:
                self.reclaimed_by_deletion_bytes += freed
            self._index.forget_log(log_id)
            self._record_bytes.pop(log_id, None)
            self._writer.closed_bytes.pop(log_id, None)
        if deleted:
            self._logs.sync_directory()
        return deleted

    def _name_misnamed(self, log_id: int) -> None:
        if log_id not in self._misnamed:
            self._misnamed.add(log_id)
            log.error(
                "%s is not deleted: its header names another entry log, so files were renamed; the next "
                "start says which",
                entry_log_path(self._logs.directory, log_id),
            )

    def _dead_logs(self) -> list[int]:
        """The logs without a living entry, ascending, but for the current one."""
        usage, writing = self._index.usage, self._writer.log_id
        return [log_id for log_id in self._logs.ids() if log_id != writing and not usage.get(log_id)]

    def _note_kept(self, dead: Sequence[int]) -> int:
        """Count those of these logs, ascending, that are not deleted; returns their number."""
        # After a mismatch between files and index nothing that was there before is deleted: the files may be
        # two moments of one directory, and which is the right one only an operator can know.
        kept = dead[: bisect_left(dead, self._index.kept.below)]
        self.kept = KeptLogs(len(kept), sum(map(self._logs.size_bytes, kept)))
        return len(kept)

    # ---- files that something else has removed or cut

    def overlook_missing(self, lengths: Mapping[int, int]) -> None:
        """Logs that are missing or cut now were reported by the recovery: `gone_files` does not return them.
        `lengths` says where the records of logs end that were found without their last ones. Blocking.
        """
        self._lengths = lengths
        self._overlooked = frozenset(self._missing_logs())
        for log_id in self._logs.ids():
            size = self.disk.size(entry_log_path(self._logs.directory, log_id))
            self._writer.closed_bytes.setdefault(log_id, size or 0)
        if self._index.kept.below:
            self._note_kept(self._dead_logs())

    def gone_files(self) -> list[str]:
        """The paths of logs with living entries, and of the current log, that something else has removed,
        moved, replaced or cut. Blocking; call on any thread.
        """
        # A log is deleted only after its usage has become empty, which it then stays. So a log with usage now
        # was not deleted before now.
        missing = {log_id for log_id in self._missing_logs() if self._index.usage.get(log_id)} | self._missed
        paths = {entry_log_path(self._logs.directory, log_id) for log_id in missing}
        gone = {path for path in paths if not self.disk.exists(path)}
        gone.update(self._writer.gone())
        for log_id, length in dict(self._writer.closed_bytes).items():
            path = entry_log_path(self._logs.directory, log_id)
            if is_cut(self.disk, path, length) and self._index.usage.get(log_id):
                gone.add(path)
        return sorted(gone)

    async def write_files_again(self) -> None:
        """Write removed logs again, durable on return, that are still open for writing or reading. Entries
        that are flushed later go to a new log. Raises StorageError after all that could be written is; after
        DiskFull the call may be repeated.
        """
        async with self._log_lock:
            await self.disk.run(self._write_files_again)

    def _write_files_again(self) -> None:
        failure: StorageError | None = None
        try:
            self._writer.write_again()
        except DiskFull:
            # The caller repeats this once there is space. The current log stays open until then: nothing else
            # has its bytes.
            raise
        except StorageError as error:
            failure = error
        for log_id in self._missing_logs():
            try:
                self._logs.write_again(log_id)
            except DiskFull:
                raise
            except StorageError as error:
                failure = failure or error
        # Its file is not the one of that name, and a write that something else has disturbed may be half
        # done.
        self._writer.abandon()
        if failure is not None:
            raise failure

    async def keep(self, journals: Collection[tuple[int, int]]) -> None:
        """Confirmed entries are missing: delete no log that exists now until an operator releases them, and
        read these journals if they are put back. Durable on return.
        """
        async with self._log_lock, self._index_lock:
            kept = self._index.kept
            below = max(kept.below, self._writer.position.log_id + 1)
            named = tuple(sorted({*kept.journals, *journals})[-KEPT_JOURNALS_MAX:])
            if (below, named) != (kept.below, kept.journals):
                await self.disk.run(self._index.keep, kept._replace(below=below, journals=named))

    def _missing_logs(self) -> list[int]:
        present = set(self._logs.ids())
        return [
            log_id
            for log_id, ledgers in dict(self._index.usage).items()
            if ledgers and log_id not in present and log_id not in self._overlooked
        ]

    async def close(self) -> None:
        """Close all files once no log is being written; does not disturb reads that are under way."""
        async with self._log_lock:
            self._closed = True
            await self.disk.run(self._logs.close)
            await self.disk.run(self._writer.close)

    def is_deleted(self, ledger_id: int) -> bool:
        return self._index.is_deleted(ledger_id)

    def missing(self, ledger_id: int, entries: int) -> list[tuple[int, int]]:
        """See `LedgerInventory.missing`. Blocking."""
        if self.is_deleted(ledger_id):
            return [(0, entries - 1)] if entries else []
        return self._index.missing(ledger_id, entries, self._log_bytes())

    def _log_bytes(self) -> dict[int, int]:
        sizes = {}
        for log_id in self._logs.ids():
            file = self.disk.open(entry_log_path(self._logs.directory, log_id))
            sizes[log_id] = min(file.size(), self._lengths.get(log_id, sys.maxsize))
            file.close()
        return sizes

    def is_served(self, ledger_id: int) -> bool:
        """Whether the ledger is neither deleted nor set aside."""
        state = self._index.states.get(ledger_id)
        return state is None or state.kind not in (DELETED, ASIDE)

    def last_entry_id(self, ledger_id: int) -> int:
        """The last entry id; -1 if there is none, or the ledger is deleted."""
        return -1 if self.is_deleted(ledger_id) else self._index.last_entry_id(ledger_id)

    async def load(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[Segment]:
        """Checked, contiguous entries from `first` on: at least the first, then the requested ones, then the
        read-ahead. Raises the errors of `Bookie.read`.
        """
        return await self.disk.run(self._load, ledger_id, first, last, bytes_max)

    def _load(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[Segment]:
        segments = [self._load_row(ledger_id, first, last, bytes_max)]
        # One trip to the disk for the entries asked for and those behind them: a consumer in a backlog wants
        # both.
        left = self._settings.read_ahead_bytes - segments[0].record_bytes
        while left > self._settings.read_ahead_bytes // 8:  # a few entries are not worth a read of their own
            first = segments[-1].last + 1
            try:
                segment = self._load_row(ledger_id, first, first, 0, read_ahead_bytes=left)
            except StorageError:
                break  # the read that asks for that entry gets the error
            segments.append(segment)
            left -= segment.record_bytes
        return segments

    async def load_runs(
        self, runs: Sequence[Run], bytes_max: int, ahead: Sequence[Run], ahead_bytes_max: int
    ) -> tuple[list[Segment], list[Segment]]:
        """One segment for each run, in their order, without read-ahead and at most to the end of the row of
        its first entry. Ends after `bytes_max` bytes, or before a run that cannot be read. Returns at least
        the first segment; raises the errors of `Bookie.read` for it. Then the same of `ahead`, in the same
        trip to the disk, but perhaps none.
        """
        return await self.disk.run(self._load_also, runs, bytes_max, ahead, ahead_bytes_max)

    def _load_also(
        self, runs: Sequence[Run], bytes_max: int, ahead: Sequence[Run], ahead_bytes_max: int
    ) -> tuple[list[Segment], list[Segment]]:
        # From before the entries that are asked for: a disk that is slow with them is slow with the others.
        until_s = _monotonic_s() + LOAD_AHEAD_MS_MAX / 1000
        segments = self._load_runs(runs, bytes_max)
        if ahead_bytes_max <= 0 or _monotonic_s() >= until_s:
            return segments, []
        # Whatever is wrong with what was not asked for is the business of the read that asks for it.
        with contextlib.suppress(StorageError):
            return segments, self._load_runs(ahead, ahead_bytes_max, until_s)
        return segments, []

    def _load_runs(self, runs: Sequence[Run], bytes_max: int, until_s: float = math.inf) -> list[Segment]:
        segments: list[Segment] = []
        for ledger_id, first, last in runs:
            try:
                # No read-ahead: due messages with random delays lie anywhere, and it would evict what other
                # consumers read.
                segment = self._load_row(ledger_id, first, last, bytes_max, read_ahead_bytes=0)
            except StorageError:
                if segments:
                    break  # the read that asks for it first gets the error
                raise
            segments.append(segment)
            bytes_max -= segment.record_bytes
            if bytes_max <= 0 or (until_s < math.inf and _monotonic_s() >= until_s):
                break
        return segments

    def _load_row(
        self, ledger_id: int, first: int, last: int, bytes_max: int, *, read_ahead_bytes: int | None = None
    ) -> Segment:
        """Load the requested entries or the read-ahead, from `first` to the end of its row at most."""
        state = self._index.states.get(ledger_id)
        if state is not None and state.kind == DELETED:
            raise LedgerNotFound(f"ledger {ledger_id} is deleted")
        if state is not None and state.kind == ASIDE:
            raise LedgerNotFound(f"ledger {ledger_id} is set aside: the metadata had no record of it")
        row = self._index.find(ledger_id, first)
        if row is None:
            if first > self._index.last_entry_id(ledger_id):
                raise LedgerNotFound(f"ledger {ledger_id} has no entry {first}")
            raise CorruptData(
                f"entry {first} of ledger {ledger_id} is lost: later entries are there, and no file of the "
                "bookie has it; a file is damaged or missing"
            )
        if row.lost:
            raise CorruptData(f"entry {first} of ledger {ledger_id} is lost: {row.lost}")
        index = first - row.first
        begin = row.ends[index - 1] if index else 0
        asked = row.ends[min(last, row.last) - row.first] - begin
        ahead = self._settings.read_ahead_bytes if read_ahead_bytes is None else read_ahead_bytes
        until = max(bisect_right(row.ends, begin + max(min(asked, bytes_max), ahead)), index + 1)
        try:
            return self._logs.load(ledger_id, row, first, row.first + until - 1)
        except StorageError:
            # Compaction replaces a row before it lets the log go that the row names.
            if self._index.find(ledger_id, first) == row:
                raise
        return self._load_row(ledger_id, first, last, bytes_max, read_ahead_bytes=read_ahead_bytes)
