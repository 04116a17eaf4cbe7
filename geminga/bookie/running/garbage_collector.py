"""Frees space: deletes entry logs without a living ledger, and compacts logs with few living records.

The collector deletes no ledger; only `delete_ledger` does. A ledger without a metadata record would show
that the metadata does not belong to the bookie, so the collector logs its name.

Collection and compaction are two tasks. A compaction holds the entry log for one slice at a time, so neither
a flush nor the deletion of dead logs waits for a whole log.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence

import trio

from geminga.bookie.entry_logs.compaction_plan import CompactionSchedule, logs_to_compact, pause_s
from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.records.space_statistics import SpaceStatistics
from geminga.bookie.running.storage import LedgerStorage
from geminga.errors import ReadOnly, StorageError

ExistingLedgers = Callable[[Sequence[int]], Awaitable[Collection[int]]]
"""Returns those of the given ledger ids that have a metadata record, read after the call. A record is
durable before its ledger has an entry, so a ledger that is being created never looks dead.
"""
log = logging.getLogger("geminga.bookie")


class GarbageCollector:
    """The garbage collector of one bookie. Belongs to the event loop."""

    def __init__(
        self,
        settings: BookieSettings,
        storage: LedgerStorage,
        existing_ledgers: ExistingLedgers | None,
        *,
        cached_ledgers: Callable[[], set[int]],
        on_failed: Callable[[StorageError], None],
    ) -> None:
        """`cached_ledgers` returns the ledgers with entries that the index does not have yet."""
        self.compacted_bytes = self.logs_compacted = 0
        self._collections = 0
        self._collect_s = 0.0
        self._runs = {"minor": 0, "major": 0}
        self._settings = settings
        self._storage = storage
        self._existing_ledgers = existing_ledgers
        self._cached_ledgers = cached_ledgers
        self._named: set[int] = set()
        """Ledgers without a record that were logged already."""
        self._on_failed = on_failed
        self._compacting = trio.Lock()
        self._running = trio.CancelScope()

    def statistics(self) -> SpaceStatistics:
        return SpaceStatistics(
            self._collections,
            self._collect_s,
            self._runs["minor"],
            self._runs["major"],
            self._storage.reclaimed_by_deletion_bytes,
            self._storage.reclaimed_by_compaction_bytes,
        )

    async def run(self) -> None:
        """Run both tasks until `stop`. A StorageError is passed to `on_failed` and ends the run."""
        # One scope for both tasks: `stop` may come before `run` has made its nursery.
        with self._running, contextlib.suppress(StorageError):  # `on_failed` has it already
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._collect_regularly)
                nursery.start_soon(self._compact_on_schedule)

    def stop(self) -> None:
        """End `run` soon, after the slice that is being copied."""
        self._running.cancel()

    async def _collect_regularly(self) -> None:
        while True:
            await trio.sleep(self._settings.gc_wait_s)
            await self.collect()

    async def _compact_on_schedule(self) -> None:
        schedule = CompactionSchedule(self._settings, trio.current_time())
        while True:
            await trio.sleep_until(schedule.next_due_s)
            due = schedule.take_due(trio.current_time())
            if due is not None:
                self._runs[due.name] += 1
                with trio.move_on_after(due.seconds_max) as limit:
                    await self.compact(due.threshold)
                if limit.cancelled_caught:
                    log.info("%s compaction reached its time limit; the next run continues", due.name)

    async def collect(self) -> None:
        """Delete logs without a living ledger. Raises StorageError."""
        started = trio.current_time()
        if self._existing_ledgers is not None:
            await self._name_unrecorded(self._existing_ledgers)
        with self._failure_ends_it():
            await self._storage.collect()
        self._collections += 1
        self._collect_s += trio.current_time() - started

    async def _name_unrecorded(self, existing_ledgers: ExistingLedgers) -> None:
        # First the ledgers, then the metadata: the other way round, one created in between had no record.
        ledger_ids = sorted(self._cached_ledgers() | await self._storage.ledgers())
        try:
            existing = set(await existing_ledgers(ledger_ids))
        except StorageError as error:
            log.warning("ledgers are not compared with their records now: %s", error)
            return
        unknown = [each for each in ledger_ids if each not in existing and self._storage.is_served(each)]
        if unknown:
            # One that was deleted in between may have lost its state already, and has no entries any more.
            there = self._cached_ledgers() | await self._storage.ledgers()
            unknown = [each for each in unknown if each in there]
        # BookKeeper deletes such ledgers. An older copy of the metadata, put back by mistake, would then cost
        # all topics made since; here it is said once, and an operator decides.
        if not self._named.issuperset(unknown):
            log.error(
                "%d ledgers have no metadata record, and are left as they are: %s; the metadata is not that "
                "of these ledgers: stop the broker, and see 'geminga bookie unrecorded list'",
                len(unknown),
                unknown[:20],
            )
        self._named = set(unknown)

    async def compact(self, threshold: float) -> None:
        """Compact logs one after the other, those with the least living records first. Each log is deleted
        before the next one is begun. Cancelling loses only the slice that is being copied. Raises
        StorageError.
        """
        async with self._compacting:
            with self._failure_ends_it():
                # Deleted one by one: a compaction of all logs at first would need space for a copy of all
                # that lives.
                for log_id in logs_to_compact(await self._storage.shares(), threshold):
                    await self._compact_log(log_id)

    async def _compact_log(self, log_id: int) -> None:
        rate = self._settings.compaction_rate_bytes_per_s
        slices = self._storage.slices(log_id)
        while True:
            started = trio.current_time()
            copied = await self._storage.move_slice(slices)
            if copied is None:
                break
            self.compacted_bytes += copied
            # BookKeeper's `compactionRateByBytes`: without it a compaction takes the disk from consumers that
            # catch up.
            await trio.sleep(pause_s(copied, trio.current_time() - started, rate))
        # Its readable part was copied, but the log stays: deleting it would destroy what a rescue might still
        # read.
        if slices.damaged:
            self._storage.leave_alone(log_id)
        else:
            self.logs_compacted += 1
            await self._storage.collect()

    @contextlib.contextmanager
    def _failure_ends_it(self) -> Iterator[None]:
        try:
            yield
        except ReadOnly as error:
            log.warning("no compaction now: %s", error)
        except StorageError as error:
            self._on_failed(error)
            raise
