"""The bookie makes entries durable and reads them back. After BookKeeper's journal, double write cache and
entry logs.

A write passes `LedgerWriter.append`, the journal's queue, one write and one sync per group, the active write
cache, and `on_durable`. A full or old cache becomes the flushing cache. A flush sorts it into entry logs and
syncs them, then writes the index and with it the mark, before which the journal is no longer needed.

A read looks into the active cache, the flushing cache and the read cache, and then goes through index and
entry log.

A bookie may have several journals, each with its own disk and thread, and several ledger directories. A
ledger belongs to one of each for good. Every ledger directory has a mark for every journal; a journal is
released up to the earliest of its marks.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Sequence

import trio

from geminga.bookie.journal.files import WrittenGroup
from geminga.bookie.journal.journal_set import JournalSet, LastEntries
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.records.ledger_name import LedgerName
from geminga.bookie.records.records import Run
from geminga.bookie.records.settings import BookieSettings, BookieStatistics
from geminga.bookie.recovery.recovery import RecoveryReport
from geminga.bookie.recovery.report import missing_text
from geminga.bookie.running.bookie_files import BookieFiles
from geminga.bookie.running.directory_set import DirectorySet
from geminga.bookie.running.disk_space import DiskSpace
from geminga.bookie.running.garbage_collector import ExistingLedgers
from geminga.bookie.running.ledger_inventory import LedgerInventory
from geminga.bookie.running.ledger_writer import LedgerWriter
from geminga.bookie.running.lifeline import Lifeline
from geminga.bookie.running.opening import LedgerFiles, Opened, open_all
from geminga.bookie.running.statistics import JournalCounts, statistics_of
from geminga.errors import StorageError
from geminga.storage.disk import Disk
from geminga.storage.disk_errors import DiskFull
from geminga.storage.key_value import KeyValue

__all__ = ["Bookie", "LedgerFiles", "RecoveryReport"]
log = logging.getLogger("geminga.bookie")


class Bookie:
    """All ledgers of some directories. The methods belong to the event loop. Between `open` and `run` the
    bookie can read; entries that are appended then wait for `run`. The disk's first failed write ends the
    bookie: `run` raises, every writer with pending entries gets the error, and only a new `open` finds out
    what survived.
    """

    def __init__(
        self,
        settings: BookieSettings,
        opened: Opened,
        *,
        existing_ledgers: ExistingLedgers | None,
        threaded: bool,
        watched: Sequence[str] = (),
        topic_of: Callable[[int], str] = lambda _: "",
    ) -> None:
        """Use `open`."""
        self.recovery = opened.report
        self.missing_at_start = [run for of_directory in opened.missing for run in of_directory]
        """The entries that the files of the bookie name and do not have, as the recovery found them."""
        self._disk = opened.disk
        self._journal_directories = opened.journal_directories
        self._skipped_journals = opened.skipped
        # First: all that follows reports its failure there, and the first failure decides what publishers are
        # told.
        self._lifeline = Lifeline(self._failed)
        # The edges of the loop's turns and the publishers' wish for a receipt go straight to the journals:
        # each message meets them, and a call that only forwards is paid by each.
        self.journals = JournalSet(
            opened.journals,
            settings,
            on_group=self._on_group,
            on_full=self._journal_full,
            on_failed=self._lifeline.fail,
            threaded=threaded,
        )
        paths = dict.fromkeys((*opened.ledger_directories, *opened.journal_directories, *watched))
        self._space = DiskSpace(opened.disk, list(paths), settings, self._space_changed)
        self._set = DirectorySet(
            opened,
            settings,
            self.journals,
            self._lifeline,
            self._space,
            existing_ledgers=existing_ledgers,
            topic_of=topic_of,
        )
        self.directories = self._set.all
        self.inventory = LedgerInventory(self._set, self._lifeline)
        self.files = BookieFiles(opened.disk, self.journals, self._set.all)
        self._ended: trio.Event | None = None
        self._is_flushed = False
        """Whether `close` has brought all entries into entry logs."""
        self._running = trio.CancelScope()
        self.counts = JournalCounts()
        self._space_told: list[Callable[[str], None]] = []

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
        """`open_directories` with one of each kind, both in `directory`."""
        return await cls.open_directories(
            disk,
            [directory],
            [LedgerFiles(directory, index)],
            settings,
            existing_ledgers=existing_ledgers,
            threaded=threaded,
        )

    @classmethod
    async def open_directories(
        cls,
        disk: Disk,
        journals: Sequence[str],
        ledgers: Sequence[LedgerFiles],
        settings: BookieSettings | None = None,
        *,
        instance_id: str = "",
        existing_ledgers: ExistingLedgers | None = None,
        threaded: bool = True,
        watched: Sequence[str] = (),
        topic_of: Callable[[int], str] = lambda _: "",
    ) -> Bookie:
        """Recover these directories, which are created if absent. The lists must have the order of the first
        start. On return everything that can be read is synced in entry logs and indexes, and the journals
        are empty. `recovery` reports the findings.

        `existing_ledgers(ids)` returns the ledgers that have a metadata record, read after the call; a
        garbage collection logs those without one. Only `delete_ledger` deletes. `watched` are directories of
        other parts: a full disk of one makes the bookie read-only, like its own disks, because ledgers are
        useless without their metadata. On return `read_only` is known. `topic_of(ledger_id)` is used in
        texts about damaged or lost entries; "" if unknown.

        `instance_id` is noted in new journals and entry logs; "" if it is not known. The caller has checked
        that those that are there are of this instance.

        The caller holds the directories' locks. Raises StorageError if a disk fails, and CorruptData if an
        index is damaged. Cancelling or failing leaves directories that the next `open` recovers.
        """
        settings = settings or BookieSettings()
        # On a thread and not cancellable half-way: recovery writes, and every step of it may be repeated by a
        # new start.
        opened = await disk.run(open_all, disk, journals, ledgers, settings, instance_id)
        log.log(
            logging.DEBUG if opened.report.clean else logging.WARNING,
            "recovered %s: %s",
            ", ".join(dict.fromkeys((*journals, *(files.directory for files in ledgers)))),
            opened.report,
        )
        bookie = cls(
            settings,
            opened,
            existing_ledgers=existing_ledgers,
            threaded=threaded,
            watched=watched,
            topic_of=topic_of,
        )
        if bookie.missing_at_start:
            log.warning("%s", missing_text(opened.report, bookie.missing_at_start, topic_of))
        try:
            # Before the first writer exists: a start on a full disk is read-only from its first entry, rather
            # than failing at the first flush.
            await bookie._space.check()
        except BaseException:
            await bookie._close_files()
            raise
        return bookie

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write the journals, flush caches and collect garbage, until `close` or cancelled. Cancelling still
        writes the queues. Raises StorageError after every writer with pending entries got the error. No file
        is open on return, however the run ends. If it does not end by `close`, files that something else has
        removed are written again (`BookieFiles.write_gone_again`).
        """
        assert self._ended is None, "run once"
        self._lifeline.check()
        self._ended = trio.Event()
        try:
            with self._lifeline.failure_ends_it():
                await self._space.check()
            async with trio.open_nursery() as nursery:
                self._running = nursery.cancel_scope
                nursery.start_soon(self._run_journals)
                self._set.start(nursery)
                nursery.start_soon(self._watch_space)
                task_status.started()
            if self._lifeline.failed is not None:
                raise self._lifeline.failed
        finally:
            # However it ends: a writer that waits for a confirmation would otherwise wait for ever.
            self._lifeline.fail(StorageError("the bookie is closed"))
            try:
                # Any other end may come from a file that something else has removed: a journal that cannot be
                # renamed is met before anybody looks.
                if not self._is_flushed:
                    with trio.CancelScope(shield=True):
                        await self.files.write_gone_again()
                await self._close_files()
            finally:
                self._ended.set()

    async def _run_journals(self) -> None:
        await self.journals.run()
        # The journals ended by themselves: `close` stopped them, or a disk failed. No flush may follow a
        # failed journal.
        self._running.cancel()

    async def _watch_space(self) -> None:
        with contextlib.suppress(StorageError), self._lifeline.failure_ends_it():
            await self._space.watch(self.collect_garbage)

    def _space_changed(self) -> None:
        self._set.pause_or_resume(self._space.reason)
        self._lifeline.notify()
        for tell in self._space_told:
            tell(self._space.reason)

    # ---- writing

    @property
    def read_only(self) -> str:
        """Why entries are refused while a disk is full; "" if they are not."""
        return self._space.reason

    def create_ledger(
        self,
        ledger_id: int,
        *,
        on_durable: Callable[[int], None],
        on_failed: Callable[[StorageError], None],
        topic: str = "",
        purpose: str = "",
        high_priority: bool = False,
    ) -> LedgerWriter:
        """The only writer of a new ledger. The caller has already made the ledger's metadata record durable.

        After each group with entries of the ledger, `on_durable(last entry id)` is called on the loop: all
        entries up to this one are durable and can be read. `on_failed` is called at most once, if the disk
        fails while entries are pending. With DiskFull, it is called whenever the journal has no space for the
        pending entries: these are in no file, and the ledger continues with their ids.

        `topic` and `purpose` are those of the metadata record. They become durable with the first entry and
        are copied to entry logs, so that the files can be read without metadata. With `high_priority` the
        ledger takes entries on a full disk, too; that is for the few entries that help to free space.
        """
        self._lifeline.check()
        return self._set.of(ledger_id).create(
            ledger_id,
            self.journals.of(ledger_id),
            on_durable=on_durable,
            on_failed=on_failed,
            name=LedgerName(purpose, topic) if topic else None,
            high_priority=high_priority,
        )

    def has_room(self) -> bool:
        """Whether publishers may continue. False while too many bytes wait for a disk; then use `wait_room`.
        True on a full disk, so that publishers get the error.
        """
        directory, journal = self._set.only, self.journals.only
        # Asked for every chunk that a publisher's socket brings.
        if directory is not None and journal is not None:  # the usual case, quickly
            queued_bytes = journal.queued_bytes
            if queued_bytes < self.journals.queue_bytes_max and directory.caches.has_room(queued_bytes):
                return True
        if self._lifeline.failed is not None:
            return True
        # On a full disk publishers go on and are refused by `append`; held back in their sockets they would
        # never learn why. Only what must stay in memory until there is space again still counts.
        if self._space.reason and not any(directory.caches.is_over() for directory in self.directories):
            return True
        if self.journals.is_queue_full():
            return False
        queued_bytes = self.journals.queued_bytes
        # What is queued may all be for one directory.
        return all(directory.caches.has_room(queued_bytes) for directory in self.directories)

    @property
    def queued_bytes(self) -> int:
        """Bytes of entries that may still become durable; 0 after a failure."""
        return 0 if self._lifeline.failed is not None else self.journals.queued_bytes

    @property
    def durable_bytes(self) -> int:
        """Bytes of all entries that became durable since the start, counted as in `queued_bytes`."""
        return self.counts.record_bytes

    def call_on_change(self, tell: Callable[[], None]) -> None:
        """Call `tell` after each group, flush, and failure: if a condition is more than `has_room`."""
        self._lifeline.call_on_change(tell)

    def call_on_space(self, tell: Callable[[str], None]) -> None:
        """Call `tell` with `read_only` at each edge."""
        self._space_told.append(tell)

    async def wait_room(self) -> None:
        """Return once `has_room()` is true. Returns at once after a failure, so that `append` raises the
        error.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self.has_room():
            await self._lifeline.next_change()

    async def fence(self, ledger_id: int) -> int:
        """Refuse entries from every writer from now on, and after restarts; durable on return. Returns the
        last entry id (-1: none), which no longer changes. Cancelling leaves the ledger refused in this
        process, but possibly not after a restart.
        """
        return await self._set.of(ledger_id).fence(ledger_id)

    async def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger: durable on return, and not readable from then on. Its space is freed when no
        other ledger has entries in its entry logs. Deleting a ledger twice, or one that never existed,
        changes nothing more.
        """
        await self._set.of(ledger_id).delete(ledger_id)

    # ---- reading

    def last_entry_id(self, ledger_id: int) -> int:
        """The last durable entry id; -1 if there is none. Exact after a recovery, too. For a ledger that is
        not in memory, this may read one block of the index from disk.
        """
        return self._set.of(ledger_id).reader.last_entry_id(ledger_id)

    def size_bytes(self, ledger_id: int, entries: int) -> int:
        """The bytes of a ledger that has so many entries, by what is counted in memory. An estimate, by their
        mean, where that counts more or fewer of them: during a flush, or if some are missing.
        """
        return self._set.of(ledger_id).reader.size_bytes(ledger_id, entries)

    def read_cached(
        self, ledger_id: int, first: int, last: int, *, bytes_max: int = sys.maxsize, goes_on: bool = True
    ) -> list[bytes]:
        """The longest run of entries from `first` up to `last` that is in memory; [] if `first` is not. At
        most `bytes_max` long in total, unless the first entry alone is longer. `goes_on`: what follows is
        probably read next, so it may be read ahead.
        """
        reader = self._set.of(ledger_id).reader
        return reader.read_memory(ledger_id, first, last, bytes_max, goes_on=goes_on)

    async def read(self, ledger_id: int, first: int, last: int, *, bytes_max: int) -> list[bytes]:
        """Entries from `first` up to `last` at most. Returns at least one entry, and at most `bytes_max`
        bytes unless the first entry alone is longer. Returns only bytes that match their checksum. Reads
        ahead. Raises LedgerNotFound if the ledger was deleted or never had the first entry. Raises
        CorruptData, with file and offset, if the bytes of the first entry are damaged.
        """
        return await self._set.of(ledger_id).reader.read(ledger_id, first, last, bytes_max)

    async def peek(self, ledger_id: int, first: int, last: int, *, bytes_max: int) -> list[bytes]:
        """As `read`, for entries that are read only once: no cache keeps them, and nothing is read ahead."""
        run = Run(ledger_id, first, last)
        return (await self.read_runs([run], bytes_max=bytes_max))[run]

    async def read_runs(
        self, runs: Sequence[Run], *, bytes_max: int, ahead: Sequence[Run] = ()
    ) -> dict[Run, list[bytes]]:
        """Read several runs of any ledgers. Returns for each run what `read` would return, without reading
        ahead. Includes at least the first run, and further runs until those of a directory are `bytes_max`
        long. All runs of a directory take one trip to the disk. A run in memory that follows one on disk is
        left for another call. Raises the errors of `read` for the first run. If that trip is made, it also
        loads what it can of `ahead` into the read cache, within the bytes of reading ahead; errors there are
        left to the read that asks for these entries.
        """
        return await self._set.read_runs(runs, bytes_max, ahead)

    def watch_ledger(self, ledger_id: int, tell: Callable[[int], None]) -> None:
        """Call `tell(ledger_id)` once, when the ledger is deleted, or when a read or the scrub finds entries
        that are damaged for good. Called at once if that is already known. A ledger has one such function.
        """
        self._set.of(ledger_id).watch(ledger_id, tell)

    def unwatch_ledger(self, ledger_id: int) -> None:
        self._set.of(ledger_id).healing.watch.unwatch(ledger_id)

    # ---- flushing

    async def flush(self) -> None:
        """Flush: on return all entries that were durable at the call are in entry logs, and the journals
        before them are released. Raises ReadOnly if a disk is full: all entries stay in memory and in the
        journals. Any other StorageError ends the bookie, because only recovery can find out what a failed
        flush left on disk.
        """
        await self._set.flush()

    async def collect_garbage(self) -> None:
        """Delete entry logs without a living ledger; `run` does so every `gc_wait_s`. A StorageError ends the
        bookie.
        """
        for directory in self.directories:
            self._lifeline.check()
            await directory.garbage.collect()

    async def compact(self, threshold: float) -> None:
        """Compact entry logs with a smaller share of living records than this, and delete them; `run` does
        so on a schedule. Cancelling leaves the remaining logs as they are. A StorageError ends the bookie.
        """
        for directory in self.directories:
            self._lifeline.check()
            await directory.garbage.compact(threshold)

    async def close(self) -> None:
        """Refuse entries, make accepted ones durable, flush, and end `run`; the next `open` has nothing to
        replay. After a failure this only closes the files. Cancelling leaves entries to replay.
        """
        lifeline = self._lifeline
        self._set.stop()
        if self._ended is not None:
            # Flushed only when nothing is queued any more: a group that comes after the flush would need a
            # replay.
            while self.journals.queued_bytes and lifeline.failed is None:
                await lifeline.next_change()
        if lifeline.failed is None and not self._is_flushed:
            await self._set.finish()
            self._is_flushed = True
            # Not if `run` has ended meanwhile, with all files.
            if lifeline.failed is None and not self._set.has_unflushed():
                ends = self.journals.last_ids()
                await self._set.settle(tuple(JournalPosition(last_id + 1, 0) for last_id in ends))
        self.journals.stop()
        if self._ended is not None:
            await self._ended.wait()
        else:
            await self._close_files()

    async def keep_files(self) -> None:
        """Confirmed entries are missing, perhaps with files that are put back later: delete and overwrite no
        file that is there until an operator releases them. Durable on return. Does nothing after an orderly
        stop: the start before has seen the loss, and files may have been released since.
        """
        if self._skipped_journals:
            for directory in self.directories:
                await directory.storage.keep(self._skipped_journals)

    async def abandon(self, error: StorageError) -> None:
        """Files or directories of the broker are gone: confirm nothing from now on. Returns when `run` has
        ended, which raises `error`.
        """
        assert self._ended is not None, "not running"
        self.journals.keep_files(True)  # a flush that is under way would release some
        self._lifeline.fail(error)
        await self._ended.wait()

    async def _close_files(self) -> None:
        """Close all files. Nothing is written after this."""
        # Shielded, since a cancelled close would leave descriptors open, and worker threads writing through
        # them.
        with trio.CancelScope(shield=True):
            await self._disk.run(self.journals.close_files)
            for directory in self.directories:
                await directory.storage.close()

    def statistics(self) -> BookieStatistics:
        """Sums over all directories at this moment."""
        return statistics_of(
            self.counts,
            self.journals,
            self.directories,
            read_only=bool(self._space.reason),
            confirmed_missing=self.inventory.confirmed_missing,
        )

    # ---- on the loop, once per group

    def _on_group(self, number: int, group: WrittenGroup, last: LastEntries) -> None:
        if self._lifeline.failed is not None:
            return  # these entries were reported as failed; recovery will find them
        self.counts.add(group)
        self._space.wrote(group.file_bytes)
        # Cache, then position, then `durable`, in one turn of the loop: a flush in between would mark the
        # journal as spent up to entries that no cache held, and a reader woken too early would not find its
        # entry.
        self._set.add(group.segments)
        self.journals.positions[number] = group.end
        self._set.flush_if_full()
        for writer, last_entry_id in last:
            writer.durable(last_entry_id)
        self._lifeline.notify()

    def _journal_full(self, number: int, error: DiskFull) -> None:
        self._space.is_full(self._journal_directories[number], str(error))
        self._lifeline.notify()

    def _failed(self, error: StorageError) -> None:
        """Fail every waiting writer."""
        self._running.cancel()
        for directory in self.directories:
            directory.writers.failed(error)
