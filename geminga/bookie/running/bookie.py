"""The bookie: entries in, durable, and out again. After BookKeeper's journal, double write cache and entry
logs.

A write goes: `LedgerWriter.append` -> the journal's queue -> one write and one sync per group -> the active
write cache -> `on_durable`. A full (or old) cache becomes the flushing one; it is sorted into entry logs,
these are synced, then the index and with it the mark up to which the journal is not needed any more.

A read looks into the active cache, the flushing cache, the read cache, and then goes through index and entry
log.

There may be several journals, each on a disk of its own with a thread of its own, and several ledger
directories. A ledger belongs to one of each for good. Every ledger directory has a mark for every journal; a
journal is let go up to the earliest of its marks.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Sequence

import trio

from geminga.bookie.journal.files import WrittenGroup
from geminga.bookie.journal.journal_set import JournalSet, LastEntries
from geminga.bookie.records.ledger_name import LedgerName
from geminga.bookie.records.records import Run
from geminga.bookie.records.settings import BookieSettings, BookieStatistics
from geminga.bookie.recovery.recovery import RecoveryReport
from geminga.bookie.recovery.report import missing_text
from geminga.bookie.running.directory_set import DirectorySet
from geminga.bookie.running.disk_space import DiskSpace
from geminga.bookie.running.garbage_collector import ExistingLedgers
from geminga.bookie.running.kept_files import KeptFiles
from geminga.bookie.running.ledger_inventory import LedgerInventory
from geminga.bookie.running.ledger_writer import LedgerWriter
from geminga.bookie.running.lifeline import Lifeline
from geminga.bookie.running.opening import LedgerFiles, Opened, open_all
from geminga.bookie.running.statistics import JournalCounts, statistics_of
from geminga.errors import StorageError
from geminga.storage.disk import Disk
from geminga.storage.key_value import KeyValue

__all__ = ["Bookie", "LedgerFiles", "RecoveryReport"]
log = logging.getLogger("geminga.bookie")


class Bookie:
    """All ledgers of some directories. Its methods belong to the event loop.

    Between `open` and `run` it can read; entries appended then wait for `run`. The disk's first failed write
    ends it: `run` raises, every writer with pending entries hears of it, and only a new `open` finds out
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
        self._disk = opened.disk
        # First: all that follows reports its failure there, and the first failure decides what publishers are
        # told.
        self._lifeline = Lifeline(self._failed)
        # The edges of the loop's turns and the publishers' wish for a receipt go straight to the journals:
        # each message meets them, and a call that only forwards is paid by each.
        self.journals = JournalSet(
            opened.journals,
            settings,
            on_group=self._on_group,
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
        self.files = KeptFiles(self.journals, self._set.all)
        self._ended: trio.Event | None = None
        self._running = trio.CancelScope()
        self.counts = JournalCounts()

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
        existing_ledgers: ExistingLedgers | None = None,
        threaded: bool = True,
        watched: Sequence[str] = (),
        topic_of: Callable[[int], str] = lambda _: "",
    ) -> Bookie:
        """Recover whatever is in these directories (created if absent); the lists must be the same, in the
        same order, as ever. On return everything that can be read is synced in entry logs and indexes, and
        the journals are empty; `recovery` says what was found.

        `existing_ledgers(ids)` tells which of these ledgers have a metadata record, read after the call; a
        garbage collection says which have none. Only `delete_ledger` deletes. `watched` are directories of
        others whose disk makes the bookie read-only when it is full, like its own: its ledgers are no use
        without their metadata. On return `read_only` is known. `topic_of(ledger_id)` is for the words
        about entries that are damaged or lost; "" if it is not known.

        The caller holds the directories' locks. StorageError if a disk fails; CorruptData if an index is
        damaged. Cancelling or failing leaves directories that the next `open` recovers.
        """
        settings = settings or BookieSettings()
        # On a thread and not cancellable half-way: recovery writes, and every step of it may be repeated by a
        # new start.
        opened = await disk.run(open_all, disk, journals, ledgers, settings)
        log.log(
            logging.DEBUG if opened.report.clean else logging.WARNING,
            "recovered %s: %s",
            ", ".join(dict.fromkeys((*journals, *(files.directory for files in ledgers)))),
            opened.report,
        )
        if opened.report.entries_missing:
            runs = [run for of_directory in opened.missing for run in of_directory]
            log.warning("%s", missing_text(opened.report, runs, topic_of))
        bookie = cls(
            settings,
            opened,
            existing_ledgers=existing_ledgers,
            threaded=threaded,
            watched=watched,
            topic_of=topic_of,
        )
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
        writes what is queued.

        StorageError comes out of here, once every writer with pending entries has been told. No file is open
        on return, however it ends.
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

    # ---- writing

    @property
    def read_only(self) -> str:
        """Why entries are refused now, as long as a disk is full; "" if they are not."""
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
        """The one writer of a new ledger. The caller has already made the ledger's metadata record durable.

        After each group with entries of the ledger `on_durable(last entry id)` is called on the loop: all
        entries up to it are durable and can be read. `on_failed` is called at most once, if the disk fails
        while entries are pending. `topic` and `purpose`, those of the metadata record, are durable with the
        first entry and go into entry logs too, for readers of the files without the metadata. With
        `high_priority` the ledger takes entries on a full disk too: for the few that help to free space.
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
        """Whether publishers may go on. False while too much waits for a disk: then `wait_room`. True on a
        full disk, so that they get the error.
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
        """Of entries that may still become durable; 0 after a failure."""
        return 0 if self._lifeline.failed is not None else self.journals.queued_bytes

    @property
    def durable_bytes(self) -> int:
        """Of all entries that became durable since the start, counted as in `queued_bytes`."""
        return self.counts.record_bytes

    def call_on_change(self, tell: Callable[[], None]) -> None:
        """Have `tell` called after each group, flush, and failure: for a caller that waits for more
        than `has_room`.
        """
        self._lifeline.call_on_change(tell)

    async def wait_room(self) -> None:
        """Return once `has_room()`; after a failure at once, so that `append` can say what happened."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self.has_room():
            await self._lifeline.next_change()

    async def fence(self, ledger_id: int) -> int:
        """Refuse entries from now on, from every writer, and across restarts; durable on return.

        Returns the last entry id (-1: none), which will not change. Cancelling leaves the ledger refused in
        this process and maybe not after a restart.
        """
        return await self._set.of(ledger_id).fence(ledger_id)

    async def delete_ledger(self, ledger_id: int) -> None:
        """Forget a ledger: durable on return, and not readable from then on. Its space comes back when no
        other ledger has entries in the same entry logs. Deleting twice, or what never was, is the same as
        once.
        """
        await self._set.of(ledger_id).delete(ledger_id)

    # ---- reading

    def last_entry_id(self, ledger_id: int) -> int:
        """The last durable entry, -1 if there is none. Exact: nothing recovered is missing. May read one
        block of the index from disk for a ledger that is not in memory.
        """
        return self._set.of(ledger_id).reader.last_entry_id(ledger_id)

    def read_cached(
        self, ledger_id: int, first: int, last: int, *, bytes_max: int = sys.maxsize
    ) -> list[bytes]:
        """The longest run of entries from `first` up to `last` that is in memory; [] if `first` is not.
        Together at most `bytes_max` long unless the first alone is longer.
        """
        return self._set.of(ledger_id).reader.read_memory(ledger_id, first, last, bytes_max)

    async def read(self, ledger_id: int, first: int, last: int, *, bytes_max: int) -> list[bytes]:
        """Entries from `first` on, at least one, up to `last` at most, together at most `bytes_max` long
        unless the first alone is longer. Only bytes that match their checksum. Reads ahead.

        LedgerNotFound if the ledger was deleted or never had the first entry; CorruptData, with file and
        offset, if it had and the entry's bytes are damaged.
        """
        return await self._set.of(ledger_id).reader.read(ledger_id, first, last, bytes_max)

    async def peek(self, ledger_id: int, first: int, last: int, *, bytes_max: int) -> list[bytes]:
        """As `read`, of entries that are read only once: no cache keeps them, and nothing is read ahead."""
        run = Run(ledger_id, first, last)
        return (await self.read_runs([run], bytes_max=bytes_max))[run]

    async def read_runs(self, runs: Sequence[Run], *, bytes_max: int) -> dict[Run, list[bytes]]:
        """Read several runs that may lie anywhere; returns for each run what `read` would return. The first
        run is always among them, and more follow until those of a directory are `bytes_max` long. Nothing is
        read ahead. All runs of a directory take one trip to the disk; runs in memory behind one that is not
        are left for another call. Errors as in `read`, of the first run.
        """
        return await self._set.read_runs(runs, bytes_max)

    def watch_ledger(self, ledger_id: int, tell: Callable[[int], None]) -> None:
        """Have `tell(ledger_id)` called, once, when the ledger is deleted, or entries of it turn out to be
        damaged for good, by a read or by the scrub; at once if that is known. One function for each ledger.
        """
        self._set.of(ledger_id).watch(ledger_id, tell)

    def unwatch_ledger(self, ledger_id: int) -> None:
        self._set.of(ledger_id).healing.watch.unwatch(ledger_id)

    # ---- flushing

    async def flush(self) -> None:
        """Everything that is durable now is in entry logs on return, and the journals before it let go.

        ReadOnly if a disk is full: all stays in memory and in the journals. Any other StorageError ends the
        bookie: what a failed flush left on disk is for recovery to find out.
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
        """Copy what lives out of entry logs with less than this share alive, and delete these; `run` does so
        on a schedule. Cancelling leaves the rest for another time. A StorageError ends the bookie.
        """
        for directory in self.directories:
            self._lifeline.check()
            await directory.garbage.compact(threshold)

    async def close(self) -> None:
        """Refuse entries, make those accepted durable, flush all, and end `run`: the next `open` has nothing
        to replay. After a failure it only lets the files go. Cancelling leaves a replay to do.
        """
        lifeline = self._lifeline
        self._set.stop()
        if self._ended is not None:
            # Flushed only when nothing is queued any more: a group that comes after the flush would need a
            # replay.
            while self.journals.queued_bytes and lifeline.failed is None:
                await lifeline.next_change()
        if lifeline.failed is None:
            await self._set.finish()
        self.journals.stop()
        if self._ended is not None:
            await self._ended.wait()
        else:
            await self._close_files()

    async def _close_files(self) -> None:
        """Nothing is written after this."""
        # Shielded, since a cancelled close would leave descriptors open, and worker threads writing through
        # them.
        with trio.CancelScope(shield=True):
            await self._disk.run(self.journals.close_files)
            for directory in self.directories:
                await directory.storage.close()

    def statistics(self) -> BookieStatistics:
        """Sums over all directories, as of now."""
        return statistics_of(
            self.counts,
            self.journals,
            self.directories,
            read_only=bool(self._space.reason),
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

    def _failed(self, error: StorageError) -> None:
        """Fail every writer that waits."""
        self._running.cancel()
        for directory in self.directories:
            directory.writers.failed(error)
