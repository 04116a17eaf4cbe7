"""The bookie: entries in, durable, and out again. After BookKeeper's journal, double write cache and entry
logs.

A write goes: `LedgerWriter.append` -> the journal's queue -> one write and one sync per group -> the active
write cache -> `on_durable`. A full (or old) cache becomes the flushing one; it is sorted into entry logs,
these are synced, then the index and with it the mark up to which the journal is not needed any more.

A read looks into the active cache, the flushing cache, the read cache, and then goes through index and entry
log.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

import trio

from geminga.bookie.disk_space import DiskSpace
from geminga.bookie.entry_log_writer import EntryLogWriter
from geminga.bookie.entry_logs import EntryLogs
from geminga.bookie.file_names import entry_log_directory, journal_directory
from geminga.bookie.garbage_collector import ExistingLedgers, GarbageCollector
from geminga.bookie.index_format import DELETED, FENCED, State
from geminga.bookie.journal import Adder, Journal
from geminga.bookie.journal_files import JournalFiles, WrittenGroup
from geminga.bookie.ledger_index import LedgerIndex
from geminga.bookie.ledger_writer import LedgerWriter
from geminga.bookie.reader import LedgerReader
from geminga.bookie.recovery import Recovery, RecoveryReport
from geminga.bookie.settings import BookieSettings, BookieStatistics
from geminga.bookie.storage import LedgerStorage
from geminga.bookie.write_caches import WriteCaches
from geminga.disk import Disk
from geminga.errors import LedgerFenced, ReadOnly, StorageError
from geminga.key_value import KeyValue

log = logging.getLogger("geminga.bookie")


class Bookie:
    """All ledgers of one directory. Its methods belong to the event loop.

    Between `open` and `run` it can read; entries appended then wait for `run`. The disk's first failed write
    ends it: `run` raises, every writer with pending entries hears of it, and only a new `open` finds out
    what survived.
    """

    def __init__(
        self,
        settings: BookieSettings,
        storage: LedgerStorage,
        journal_files: JournalFiles,
        recovery: RecoveryReport,
        *,
        directory: str,
        existing_ledgers: ExistingLedgers | None,
        threaded: bool,
    ) -> None:
        """Use `open`."""
        self.recovery = recovery
        self._settings = settings
        self._storage = storage
        self._journal = Journal(
            journal_files, settings, on_group=self._on_group, on_failed=self._fail, threaded=threaded
        )
        self._writers: dict[int, LedgerWriter] = {}
        self._caches = WriteCaches(settings.write_cache_bytes, journal_files.position)
        self._reader = LedgerReader(self._caches, storage, settings.read_cache_bytes)
        self._garbage = GarbageCollector(
            settings,
            storage,
            existing_ledgers,
            cached_ledgers=self._caches.ledgers,
            delete_ledger=self.delete_ledger,
            on_failed=self._fail,
        )
        self._space = DiskSpace(storage.disk, directory, settings, self._space_changed)
        self._privileged: set[int] = set()
        self._failed: StorageError | None = None
        self._flush_lock = trio.Lock()
        self._flush_wanted = trio.Event()
        self._changed = trio.Event()
        self._ended: trio.Event | None = None
        self._running = trio.CancelScope()
        self._collect_wanted = True
        self._deletions = 0
        self._flushes = 0
        self._entries = self._record_bytes = self._groups = self._journal_bytes = 0
        self._sync_s = 0.0

    @classmethod
    async def open(
        cls,
        disk: Disk,
        index: KeyValue,
        directory: str,
        settings: BookieSettings | None = None,
        *,
        existing_ledgers: ExistingLedgers | None = None,
        threaded: bool = True,
    ) -> Bookie:
        """Recover whatever is in `directory` (created if absent). On return everything that can be read is
        synced in entry logs and index, and the journal is empty; `recovery` says what was found.

        `existing_ledgers(ids)` tells which of these ledgers have a metadata record, read after the call; all
        others are deleted. Without it, only `delete_ledger` deletes.

        The caller holds the directory's lock. StorageError if the disk fails; CorruptData if the index is
        damaged. Cancelling or failing leaves a directory that the next `open` recovers.
        """
        settings = settings or BookieSettings()
        bookie = await disk.run(_recover, disk, index, directory, settings, existing_ledgers, threaded)
        log.log(
            logging.DEBUG if bookie.recovery.clean else logging.WARNING,
            "recovered %s: %s",
            directory,
            bookie.recovery,
        )
        return bookie

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write the journal, flush caches and collect garbage, until `close` or cancelled. Cancelling still
        writes what is queued.

        StorageError comes out of here, once every writer with pending entries has been told.
        """
        assert self._ended is None, "run once"
        self._check_alive()
        self._ended = trio.Event()
        try:
            with self._failure_ends_it():
                await self._space.check()
            async with trio.open_nursery() as nursery:
                self._running = nursery.cancel_scope
                nursery.start_soon(self._run_journal)
                nursery.start_soon(self._flush_when_wanted)
                nursery.start_soon(self._reader.run)
                nursery.start_soon(self._garbage.run)
                nursery.start_soon(self._watch_space)
                task_status.started()
            if self._failed is not None:
                raise self._failed
        finally:
            self._fail(StorageError("the bookie is closed"))
            self._ended.set()

    async def _run_journal(self) -> None:
        with contextlib.suppress(StorageError):  # `_fail` has it already
            await self._journal.run()
        self._running.cancel()

    async def _watch_space(self) -> None:
        with contextlib.suppress(StorageError), self._failure_ends_it():
            while True:
                await trio.sleep(self._settings.disk_check_interval_s)
                await self._check_space()

    async def _check_space(self) -> None:
        await self._space.check()
        if self._space.reason:
            await self._garbage.collect()
            await self._space.check()

    def _space_changed(self) -> None:
        for ledger_id, writer in self._writers.items():
            self._pause_or_resume(ledger_id, writer)
        if not self._space.reason and self._caches.flushing is not None:
            self._flush_wanted.set()
        self._notify()

    def _pause_or_resume(self, ledger_id: int, writer: LedgerWriter) -> None:
        if not self._space.reason:
            writer.resume()
        elif ledger_id not in self._privileged:
            writer.pause(ReadOnly(self._space.reason))

    # ---- writing

    @property
    def read_only(self) -> str:
        """Why entries are refused now, as long as the disk is full; "" if they are not."""
        return self._space.reason

    def create_ledger(
        self,
        ledger_id: int,
        *,
        on_durable: Callable[[int], None],
        on_failed: Callable[[StorageError], None],
        topic: str = "",
        high_priority: bool = False,
    ) -> LedgerWriter:
        """The one writer of a new ledger. The caller has already made the ledger's metadata record durable.

        After each group with entries of the ledger `on_durable(last entry id)` is called on the loop: all
        entries up to it are durable and can be read. `on_failed` is called at most once, if the disk fails
        while entries are pending. `topic` goes into entry logs for whoever reads them without the metadata.
        With `high_priority` the ledger takes entries on a full disk too: for the few that help to free space.
        """
        self._check_alive()
        assert ledger_id not in self._writers, f"ledger {ledger_id} has a writer"
        assert self.last_entry_id(ledger_id) == -1, f"ledger {ledger_id} has entries already"
        assert ledger_id not in self._storage.index.states, f"ledger {ledger_id} is fenced or deleted"
        writer = LedgerWriter(ledger_id, self._journal, on_durable=on_durable, on_failed=on_failed)
        self._writers[ledger_id] = writer
        if high_priority:
            self._privileged.add(ledger_id)
        self._pause_or_resume(ledger_id, writer)
        if topic:
            self._storage.topics[ledger_id] = topic
        return writer

    def has_room(self) -> bool:
        """Whether publishers may go on. False while too much waits for the disk: then `wait_room`. True on a
        full disk, so that they are told.
        """
        queued_bytes = self._journal.queued_bytes
        if self._space.reason and self._caches.active.bytes < self._settings.write_cache_bytes:
            return True
        return (
            queued_bytes < self._settings.queue_bytes_max and self._caches.has_room(queued_bytes)
        ) or self._failed is not None

    async def wait_room(self) -> None:
        """Return once `has_room()`; after a failure at once, so that `append` can say what happened."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self.has_room():
            await self._next_change()

    async def fence(self, ledger_id: int) -> int:
        """Refuse entries from now on, whoever writes, and across restarts; durable on return.

        Returns the last entry id (-1: none), which will not change. Cancelling leaves the ledger refused in
        this process and maybe not after a restart.
        """
        await self._end_writing(ledger_id, LedgerFenced(f"ledger {ledger_id} is fenced"))
        if ledger_id not in self._storage.index.states:
            await self._set_state(ledger_id, FENCED)
        return self.last_entry_id(ledger_id)

    async def delete_ledger(self, ledger_id: int) -> None:
        """Forget a ledger: durable on return, and not readable from then on. Its space comes back when no
        other ledger has entries in the same entry logs. Deleting twice, or what never was, is the same as
        once.
        """
        await self._end_writing(ledger_id, LedgerFenced(f"ledger {ledger_id} is deleted"))
        if self._storage.is_deleted(ledger_id):
            return
        await self._set_state(ledger_id, DELETED)
        self._writers.pop(ledger_id, None)
        self._privileged.discard(ledger_id)
        self._storage.topics.pop(ledger_id, None)
        self._caches.active.discard(ledger_id)
        self._reader.forget(ledger_id)
        self._deletions += 1
        self._collect_wanted = True

    async def _end_writing(self, ledger_id: int, reason: StorageError) -> None:
        """On return no entry of the ledger is on its way any more, and none will be."""
        self._check_alive()
        writer = self._writers.get(ledger_id)
        if writer is not None:
            writer.refuse(reason)
            await writer.settle()
            self._check_alive()

    async def _set_state(self, ledger_id: int, kind: int) -> None:
        with self._failure_ends_it():
            await self._storage.set_state(ledger_id, State(kind, self._caches.position))

    # ---- reading

    def last_entry_id(self, ledger_id: int) -> int:
        """The last durable entry, -1 if there is none. Exact: nothing recovered is missing. May read one
        block of the index from disk for a ledger that is not in memory.
        """
        return self._reader.last_entry_id(ledger_id)

    def ledgers(self) -> set[int]:
        """Every ledger with a durable entry here. After the index was lost, deleted ones may be among them:
        whoever knows better deletes them again.
        """
        return self._reader.ledgers()

    def read_cached(self, ledger_id: int, first: int, last: int) -> list[bytes]:
        """The longest run of entries from `first` up to `last` that is in memory; [] if `first` is not."""
        return self._reader.read_cached(ledger_id, first, last)

    async def read(self, ledger_id: int, first: int, last: int, *, bytes_max: int) -> list[bytes]:
        """Entries from `first` on, at least one, up to `last` at most, together at most `bytes_max` long
        unless the first alone is longer. Only bytes that match their checksum.

        LedgerNotFound if the ledger was deleted or never had the first entry; CorruptData, with file and
        offset, if it had and the entry's bytes are damaged.
        """
        return await self._reader.read(ledger_id, first, last, bytes_max)

    # ---- flushing

    async def flush(self) -> None:
        """Everything that is durable now is in entry logs on return, and the journal before it let go.

        ReadOnly if the disk is full: all stays in memory and in the journal. Any other StorageError ends the
        bookie: what a failed flush left on disk is for recovery to find out.
        """
        async with self._flush_lock:
            self._check_alive()
            with self._failure_ends_it():
                await self._flush()

    async def _flush(self) -> None:
        caches = self._caches
        cache = caches.flushing or caches.swap()
        mark = caches.flushing_position
        with trio.CancelScope(shield=True):  # half a flush would be done again
            try:
                await self._storage.flush(cache, mark, lambda: self._journal.files.release(mark))
            except ReadOnly as error:
                self._space.is_full(str(error))
                raise
        caches.flushed()
        self._flushes += 1
        self._forget_closed_writers()
        self._notify()
        if caches.is_full():
            self._start_flush()
        if self._collect_wanted and caches.flushing is None:
            self._collect_wanted = False
            await self._storage.collect()

    def _forget_closed_writers(self) -> None:
        active = self._caches.active
        gone = [id_ for id_, writer in self._writers.items() if writer.is_done() and id_ not in active]
        for ledger_id in gone:
            del self._writers[ledger_id]
            self._privileged.discard(ledger_id)
            self._storage.topics.pop(ledger_id, None)

    async def _flush_when_wanted(self) -> None:
        while True:
            with trio.move_on_after(self._settings.flush_interval_s):
                await self._flush_wanted.wait()
            self._flush_wanted = trio.Event()
            if self._caches.flushing is not None or self._caches.active.entries or self._collect_wanted:
                with contextlib.suppress(StorageError):  # `_fail` has it already
                    await self.flush()

    async def collect_garbage(self) -> None:
        """Delete ledgers without a metadata record, and entry logs without a living ledger; `run` does so
        every `gc_wait_s`. A StorageError ends the bookie.
        """
        self._check_alive()
        await self._garbage.collect()

    async def compact(self, threshold: float) -> None:
        """Copy what lives out of entry logs with less than this share alive, and delete these; `run` does so
        on a schedule. Cancelling leaves the rest for another time. A StorageError ends the bookie.
        """
        self._check_alive()
        await self._garbage.compact(threshold)

    def _start_flush(self) -> None:
        self._caches.swap()
        self._flush_wanted.set()

    async def close(self) -> None:
        """Refuse entries, make those accepted durable, flush all, and end `run`: the next `open` has nothing
        to replay. After a failure it only lets the files go. Cancelling leaves a replay to do.
        """
        self._garbage.stop()
        for writer in self._writers.values():
            writer.close()
        if self._ended is not None:
            while self._journal.queued_bytes and self._failed is None:
                await self._next_change()
        if self._failed is None:
            with contextlib.suppress(ReadOnly):  # then the next `open` has something to replay
                while self._caches.flushing is not None or self._caches.active.entries:
                    await self.flush()
            await self._storage.finish_log()
        self._journal.stop()
        if self._ended is not None:
            await self._ended.wait()
        await self._storage.close(self._journal.files.close)

    def statistics(self) -> BookieStatistics:
        caches, usage = self._caches, self._storage.index.usage
        return BookieStatistics(
            entries_written=self._entries,
            bytes_written=self._record_bytes,
            journal_groups=self._groups,
            journal_bytes=self._journal_bytes,
            journal_sync_s=self._sync_s,
            queued_bytes=self._journal.queued_bytes,
            write_cache_bytes=caches.active.bytes,
            flushing_bytes=caches.flushing.bytes if caches.flushing is not None else 0,
            read_cache_bytes=self._reader.cache_bytes,
            flushes=self._flushes,
            flushed_bytes=self._storage.flushed_bytes,
            reads_from_memory=self._reader.from_memory,
            reads_from_log=self._reader.from_log,
            read_log_bytes=self._reader.log_bytes,
            entry_logs=len(usage),
            entry_log_bytes=sum(row.bytes for ledgers in list(usage.values()) for row in ledgers.values()),
            entry_logs_deleted=self._storage.logs_deleted,
            ledgers_deleted=self._deletions,
            compacted_bytes=self._garbage.compacted_bytes,
            logs_compacted=self._garbage.logs_compacted,
            read_only=bool(self._space.reason),
            space=self._garbage.statistics(),
        )

    # ---- on the loop, once per group

    def _on_group(self, group: WrittenGroup, last: list[tuple[Adder, int]]) -> None:
        if self._failed is not None:
            return  # these entries were reported as failed; recovery will find them
        self._groups += 1
        self._entries += group.entries
        self._record_bytes += group.record_bytes
        self._journal_bytes += group.file_bytes
        self._sync_s += group.sync_s
        caches = self._caches
        caches.add(group.segments, group.end)
        if caches.is_full() and caches.flushing is None:
            self._start_flush()
        for writer, last_entry_id in last:
            writer.durable(last_entry_id)
        self._notify()

    def _fail(self, error: StorageError) -> None:
        """Tell everyone who waits; later errors are consequences of the first."""
        if self._failed is not None:
            return
        self._failed = error
        self._running.cancel()
        for writer in list(self._writers.values()):
            writer.failed(error)
        self._notify()

    def _check_alive(self) -> None:
        if self._failed is not None:
            raise StorageError(str(self._failed))

    @contextlib.contextmanager
    def _failure_ends_it(self) -> Iterator[None]:
        try:
            yield
        except ReadOnly:
            raise
        except StorageError as error:
            self._fail(error)
            raise

    def _notify(self) -> None:
        self._changed.set()

    async def _next_change(self) -> None:
        """Until the next group, flush or failure."""
        if self._changed.is_set():
            self._changed = trio.Event()
        await self._changed.wait()


def _recover(
    disk: Disk,
    key_value: KeyValue,
    directory: str,
    settings: BookieSettings,
    existing_ledgers: ExistingLedgers | None,
    threaded: bool,
) -> Bookie:
    journals, entry_logs = journal_directory(directory), entry_log_directory(directory)
    disk.make_directory(journals)
    disk.make_directory(entry_logs)
    index = LedgerIndex(key_value)
    index.load()
    logs = EntryLogs(disk, entry_logs)
    next_log_id = max(logs.ids(), default=0) + 1
    writer = EntryLogWriter(disk, entry_logs, settings, next_log_id=next_log_id)
    recovery = Recovery(disk, journals, settings, index, logs, writer)
    journal_files = recovery.run()
    storage = LedgerStorage(disk, settings, index, logs, writer)
    return Bookie(
        settings,
        storage,
        journal_files,
        recovery.report,
        directory=directory,
        existing_ledgers=existing_ledgers,
        threaded=threaded,
    )
