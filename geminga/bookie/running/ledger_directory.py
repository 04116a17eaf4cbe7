"""One ledger directory: the ledgers that are flushed to it, with their own write caches, read cache, entry
logs, index and garbage collection. After BookKeeper's `SingleDirectoryDbLedgerStorage`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection

import trio

from geminga.allocation import return_free_memory
from geminga.bookie.index.index_format import DELETED, FENCED, State
from geminga.bookie.journal.journal import Journal
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.records.ledger_mapping import directory_index
from geminga.bookie.records.ledger_name import LedgerName
from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.running.disk_space import DiskSpace
from geminga.bookie.running.garbage_collector import ExistingLedgers, GarbageCollector
from geminga.bookie.running.healing import Healing
from geminga.bookie.running.ledger_writer import LedgerWriter
from geminga.bookie.running.ledger_writers import LedgerWriters
from geminga.bookie.running.lifeline import Lifeline
from geminga.bookie.running.reader import LedgerReader
from geminga.bookie.running.scrub import QUEUED_BYTES_MAX, Scrub
from geminga.bookie.running.storage import LedgerStorage
from geminga.bookie.running.write_caches import WriteCaches
from geminga.errors import LedgerFenced, ReadOnly, StorageError
from geminga.limits import MIB

IDLE_S = 10.0
"""A cache without use for this time gives its memory back."""
LOOK_S = 1.0
"""The time between two looks whether a cache was used; an empty one is not looked at."""
IDLE_FLUSH_BYTES_MIN = MIB
"""A write cache with less waits for the flush interval: a few entries are not worth syncs of their own."""


class LedgerDirectory:
    """Belongs to the event loop. Every method is about the directory's own ledgers only."""

    def __init__(
        self,
        path: str,
        storage: LedgerStorage,
        settings: BookieSettings,
        positions: list[JournalPosition],
        lifeline: Lifeline,
        space: DiskSpace,
        *,
        existing_ledgers: ExistingLedgers | None,
        healing: Healing,
        queued_bytes: Callable[[], int],
        release_journals: Callable[[], None],
        on_full: Callable[[], None],
    ) -> None:
        """`settings` are the directory's share of the bookie's. For `positions` see `WriteCaches`.
        `release_journals` is called off the loop when the index's marks have moved. `queued_bytes` returns
        the bytes that wait for journals. `on_full` is called when a flush is over and the active cache is
        full again.
        """
        self.path = path
        self.storage = storage
        self.caches = WriteCaches(settings.write_cache_bytes, positions)
        self.reader = LedgerReader(
            self.caches,
            storage,
            heal=healing.heal,
            on_cached=self._read_cache_filled,
            cache_bytes=settings.read_cache_bytes,
            read_ahead_bytes=settings.read_ahead_bytes,
        )
        self.writers = LedgerWriters()
        self.garbage = GarbageCollector(
            settings,
            storage,
            existing_ledgers,
            cached_ledgers=self.caches.ledgers,
            on_failed=lifeline.fail,
        )
        self.healing = healing
        self.scrub = Scrub(
            storage, healing, rate_bytes_per_s=settings.scrub_rate_bytes_per_s, is_busy=self._is_busy
        )
        self.flushes = self.deletions = 0
        self._flush_interval_s = settings.flush_interval_s
        self._positions = positions
        self._lifeline = lifeline
        self._queued_bytes = queued_bytes
        self._space = space
        self._release_journals = release_journals
        self._on_full = on_full
        self._flush_lock = trio.Lock()
        self._flush_wanted = trio.Event()
        self._collect_wanted = True
        self._has_cached, self._has_written = trio.Event(), trio.Event()
        """Set while the read cache has something, or the write cache enough to be flushed when it is idle."""

    def start(self, nursery: trio.Nursery) -> None:
        """Flush, read ahead, collect garbage and scrub in tasks of the nursery."""
        nursery.start_soon(self._flush_when_wanted)
        nursery.start_soon(self.reader.run)
        nursery.start_soon(self._empty_read_cache_when_idle)
        nursery.start_soon(self._flush_when_idle)
        nursery.start_soon(self.garbage.run)
        nursery.start_soon(self.scrub.run)

    def stop(self) -> None:
        """Refuse entries, and begin nothing more in the background."""
        self.garbage.stop()
        self.scrub.stop()
        self.writers.close()

    def _is_busy(self) -> bool:
        # The scrub reads whole logs. It gives way to flushes, which publishers wait for, and to reads that
        # consumers wait for.
        return (
            self.caches.flushing is not None
            or self.reader.is_loading
            or self._queued_bytes() >= QUEUED_BYTES_MAX
        )

    # ---- ledgers

    def create(
        self,
        ledger_id: int,
        journal: Journal,
        *,
        on_durable: Callable[[int], None],
        on_failed: Callable[[StorageError], None],
        name: LedgerName | None,
        high_priority: bool,
    ) -> LedgerWriter:
        """See `Bookie.create_ledger`."""
        assert self.writers.get(ledger_id) is None, f"ledger {ledger_id} has a writer"
        assert self.reader.last_entry_id(ledger_id) == -1, f"ledger {ledger_id} has entries already"
        # Fences and deletions outlive a restart; a writer for such a ledger means that an id was given twice.
        assert ledger_id not in self.storage.index.states, f"ledger {ledger_id} is fenced or deleted"
        if name is not None:
            self.storage.names[ledger_id] = name
        writer = LedgerWriter(ledger_id, journal, on_durable=on_durable, on_failed=on_failed, name=name)
        self.writers.add(writer, high_priority=high_priority, read_only=self._space.reason)
        return writer

    async def fence(self, ledger_id: int) -> int:
        """See `Bookie.fence`."""
        # A fence is worth nothing before entries under way are settled, since one of them could become
        # durable after the last id was reported.
        await self._end_writing(ledger_id, LedgerFenced(f"ledger {ledger_id} is fenced"))
        if ledger_id not in self.storage.index.states:
            await self._set_state(ledger_id, FENCED)
        return self.reader.last_entry_id(ledger_id)

    async def delete(self, ledger_id: int) -> None:
        """See `Bookie.delete_ledger`."""
        await self._end_writing(ledger_id, LedgerFenced(f"ledger {ledger_id} is deleted"))
        if self.storage.is_deleted(ledger_id):
            return
        # The durable state before memory: forgotten in memory first, a crash would bring the ledger back
        # after a consumer had been told that it is gone.
        await self._set_state(ledger_id, DELETED)
        self.writers.discard(ledger_id)
        self.storage.names.pop(ledger_id, None)
        self.caches.discard(ledger_id)
        self.reader.forget(ledger_id)
        self.deletions += 1
        self._collect_wanted = True
        # Last, when a read finds nothing any more: what is called may ask for the ledger at once.
        self.healing.watch.lost(ledger_id)

    def watch(self, ledger_id: int, tell: Callable[[int], None]) -> None:
        """See `Bookie.watch_ledger`."""

        def lost(_: int) -> None:
            self.reader.forget(ledger_id)  # what was read before would hide that it cannot be read again
            tell(ledger_id)

        self.healing.watch.watch(ledger_id, lost)
        # The damage may have been named before the watch began, by the recovery or by another reader, and is
        # named once only.
        if self.healing.is_damaged(ledger_id):
            self.healing.watch.lost(ledger_id)

    async def set_aside(self, ledger_ids: Collection[int], lift: Collection[int]) -> None:
        """See `LedgerInventory.set_aside`."""
        if ledger_ids or lift or self.storage.index.unsorted:
            with self._lifeline.failure_ends_it():
                await self.storage.set_aside(ledger_ids, lift)
            # Cached entries would be served although the ledger is not.
            for ledger_id in ledger_ids:
                self.reader.forget(ledger_id)

    async def _end_writing(self, ledger_id: int, reason: StorageError) -> None:
        """Wait until no entry of the ledger is pending, and none will be."""
        self._lifeline.check()
        writer = self.writers.get(ledger_id)
        if writer is not None:
            writer.refuse(reason)
            await writer.settle()
            self._lifeline.check()

    async def _set_state(self, ledger_id: int, kind: int) -> None:
        # The journal's end now, after `settle`: no entry of the ledger can come behind it, so the state may
        # be forgotten once the mark has passed.
        position = self._positions[directory_index(ledger_id, len(self._positions))]
        with self._lifeline.failure_ends_it():
            await self.storage.set_state(ledger_id, State(kind, position))

    # ---- flushing

    def has_unflushed(self) -> bool:
        return self.caches.flushing is not None or self.caches.active.entries > 0

    def start_flush(self) -> None:
        """Flush the active cache in the background, after a flush that is under way."""
        if self.caches.flushing is None:
            # Swapped here and not by the task, which may run turns later: the next group goes to the new
            # cache.
            self.caches.swap()
            self._flush_wanted.set()

    def resume_flush(self) -> None:
        """Continue a flush that had found no space."""
        if self.caches.flushing is not None:
            self._flush_wanted.set()

    async def flush(self) -> None:
        """See `Bookie.flush`. With an empty cache, this only moves the marks in the index."""
        async with self._flush_lock:
            self._lifeline.check()
            with self._lifeline.failure_ends_it():
                await self._flush()

    async def _flush(self) -> None:
        caches = self.caches
        # A flush that found no space is done again with the same cache: its entries are the older ones.
        cache = caches.flushing or caches.swap()
        with trio.CancelScope(shield=True):  # half a flush would be done again
            try:
                await self.storage.flush(cache, caches.flushing_positions, self._release_journals)
            except ReadOnly as error:
                self._space.is_full(self.path, str(error))
                raise
        self._space.wrote(cache.bytes)
        # After the index has the rows: between the two an entry would be found in neither.
        caches.flushed()
        self.flushes += 1
        for ledger_id in self.writers.discard_done(caches.active):
            self.storage.names.pop(ledger_id, None)
        self._lifeline.notify()
        if caches.is_full():
            self._on_full()
        # With the flush, which has just synced the index; a deletion alone does not wait for the next
        # interval.
        if self._collect_wanted and caches.flushing is None:
            self._collect_wanted = False
            await self.storage.collect()

    async def write_again(self) -> None:
        """After a failure, with no task running: write removed logs again as far as possible, then flush all
        entries in memory. Raises StorageError after all that could be written is; after ReadOnly the
        call may be repeated.
        """
        failure: StorageError | None = None
        try:
            await self.storage.write_files_again()
        except ReadOnly:
            raise
        except StorageError as error:
            failure = error
        while self.has_unflushed():
            cache = self.caches.flushing or self.caches.swap()
            # The journals are kept: the next start looks in them for what was in logs that are gone for good.
            await self.storage.flush(cache, self.caches.flushing_positions, lambda: None)
            self.caches.flushed()
        if failure is not None:
            raise failure

    async def _flush_when_wanted(self) -> None:
        while True:
            with trio.move_on_after(self._flush_interval_s):
                await self._flush_wanted.wait()
            self._flush_wanted = trio.Event()
            if self.has_unflushed() or self._collect_wanted or self._holds_journals():
                with contextlib.suppress(StorageError):  # the lifeline has it already
                    await self.flush()

    # ---- idle caches

    def note_written(self) -> None:
        """A group came into the write cache."""
        if self.caches.active_bytes >= IDLE_FLUSH_BYTES_MIN:
            self._has_written.set()

    def _read_cache_filled(self) -> None:
        self._has_cached.set()

    async def _empty_read_cache_when_idle(self) -> None:
        while True:
            await self._has_cached.wait()
            await _until_unused(lambda: self.reader.cache_uses)
            self._has_cached = trio.Event()
            self.reader.empty_cache()
            await self.storage.disk.run(return_free_memory)

    async def _flush_when_idle(self) -> None:
        while True:
            await self._has_written.wait()
            await _until_unused(lambda: tuple(self._positions))
            # Set again by the next group only: a full disk that refuses the flush is not asked in a loop.
            self._has_written = trio.Event()
            if self.caches.active_bytes >= IDLE_FLUSH_BYTES_MIN or self.caches.flushing is not None:
                with contextlib.suppress(StorageError):  # the lifeline has it already
                    await self.flush()
            await self.storage.disk.run(return_free_memory)

    def _holds_journals(self) -> bool:
        """Whether no entry has arrived for long, while old journals wait for the mark."""
        marks = self.storage.index.marks
        return any(mark.journal_id < now.journal_id for mark, now in zip(marks, self._positions, strict=True))


async def _until_unused(uses: Callable[[], object]) -> None:
    """Return when `uses` has returned the same for `IDLE_S`."""
    before, unused_s = uses(), 0.0
    while unused_s < IDLE_S:
        await trio.sleep(LOOK_S)
        now = uses()
        unused_s = unused_s + LOOK_S if now == before else 0.0
        before = now
