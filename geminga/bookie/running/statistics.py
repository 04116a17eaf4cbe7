"""The statistics of a running bookie, summed over its journals and ledger directories."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from geminga.bookie.index.index_format import ASIDE
from geminga.bookie.journal.files import WrittenGroup
from geminga.bookie.journal.journal_set import JournalSet
from geminga.bookie.records import read_counts
from geminga.bookie.records.settings import (
    GROUP_ENTRIES_BOUNDS,
    GROUP_WAIT_BOUNDS_S,
    BookieLatencies,
    BookieStatistics,
    JournalGroups,
)
from geminga.bookie.records.space_statistics import total
from geminga.bookie.running.ledger_directory import LedgerDirectory
from geminga.durations import Durations
from geminga.durations import total as total_durations


class JournalCounts:
    """Durable groups of all journals."""

    __slots__ = (
        "_adds",
        "_by_entries",
        "_by_wait",
        "_syncs",
        "_waited_s",
        "entries",
        "file_bytes",
        "groups",
        "record_bytes",
        "sync_s",
    )

    def __init__(self) -> None:
        self.groups = self.entries = self.record_bytes = self.file_bytes = 0
        self.sync_s = 0.0
        self._waited_s = 0.0
        self._adds, self._syncs = Durations(), Durations()
        self._by_entries = [0] * (len(GROUP_ENTRIES_BOUNDS) + 1)
        self._by_wait = [0] * (len(GROUP_WAIT_BOUNDS_S) + 1)

    def add(self, group: WrittenGroup) -> None:
        self.groups += 1
        self.entries += group.entries
        self.record_bytes += group.record_bytes
        self.file_bytes += group.file_bytes
        self.sync_s += group.sync_s
        self._waited_s += group.waited_s
        self._syncs.add(group.sync_s * 1000)
        self._adds.add((group.waited_s + group.took_s) * 1000, group.entries)
        self._by_entries[bisect_left(GROUP_ENTRIES_BOUNDS, group.entries)] += 1
        self._by_wait[bisect_left(GROUP_WAIT_BOUNDS_S, group.waited_s)] += 1

    def measure(self) -> None:
        """Close one interval of the latencies."""
        self._adds.measure()
        self._syncs.measure()

    def latencies(self, directories: Sequence[LedgerDirectory]) -> BookieLatencies:
        reads = total_durations([directory.reader.waits.summary() for directory in directories])
        return BookieLatencies(self._adds.summary(), self._syncs.summary(), reads)

    def by_group(self) -> JournalGroups:
        return JournalGroups(tuple(self._by_entries), tuple(self._by_wait), self._waited_s)


def measure(counts: JournalCounts, directories: Sequence[LedgerDirectory]) -> None:
    """Close one interval of the latencies of a running bookie."""
    counts.measure()
    for directory in directories:
        directory.reader.waits.measure()


def statistics_of(
    counts: JournalCounts,
    journals: JournalSet,
    directories: Sequence[LedgerDirectory],
    *,
    read_only: bool,
    confirmed_missing: int,
) -> BookieStatistics:
    """On the loop; a pass over the sums that the indexes keep in memory."""
    queued_entries, groups_unreported = journals.queued_counts()
    usages = [directory.storage.index.usage for directory in directories]
    return BookieStatistics(
        entries_written=counts.entries,
        bytes_written=counts.record_bytes,
        journal_groups=counts.groups,
        journal_bytes=counts.file_bytes,
        journal_sync_s=counts.sync_s,
        queued_bytes=journals.queued_bytes,
        queued_entries=queued_entries,
        groups_unreported=groups_unreported,
        write_cache_bytes=sum(directory.caches.active_bytes for directory in directories),
        flushing_bytes=sum(directory.caches.flushing_bytes for directory in directories),
        read_cache_bytes=sum(directory.reader.cache_bytes for directory in directories),
        flushes=sum(directory.flushes for directory in directories),
        flushed_bytes=sum(directory.storage.flushed_bytes for directory in directories),
        reads_from_memory=sum(directory.reader.from_memory for directory in directories),
        reads_from_log=sum(directory.reader.from_log for directory in directories),
        read_log_bytes=sum(directory.reader.log_bytes for directory in directories),
        read_failures=sum(directory.reader.failures for directory in directories),
        entry_logs=sum(map(len, usages)),
        entry_log_bytes=sum(
            row.bytes for usage in usages for ledgers in list(usage.values()) for row in ledgers.values()
        ),
        entry_logs_deleted=sum(directory.storage.logs_deleted for directory in directories),
        ledgers_deleted=sum(directory.deletions for directory in directories),
        ledgers_aside=sum(len(directory.storage.index.in_state(ASIDE)) for directory in directories),
        confirmed_missing=confirmed_missing,
        keeps_logs=any(directory.storage.index.kept.below for directory in directories),
        kept_logs=sum(directory.storage.kept.logs for directory in directories),
        kept_bytes=sum(directory.storage.kept.bytes for directory in directories),
        compacted_bytes=sum(directory.garbage.compacted_bytes for directory in directories),
        logs_compacted=sum(directory.garbage.logs_compacted for directory in directories),
        scrubbed_bytes=sum(directory.scrub.bytes for directory in directories),
        scrub_passes=sum(directory.scrub.passes for directory in directories),
        damaged_entries_found=sum(directory.healing.entries_found for directory in directories),
        damaged_entries_healed=sum(directory.healing.entries_healed for directory in directories),
        read_only=read_only,
        space=total(directory.garbage.statistics() for directory in directories),
        found=read_counts.total(directory.reader.statistics() for directory in directories),
        latencies=counts.latencies(directories),
        by_group=counts.by_group(),
        reads_waiting=sum(directory.reader.waiting for directory in directories),
        directories_writable=0 if read_only else len(directories),
    )
