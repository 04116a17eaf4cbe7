"""What a user may change about the bookie, and what it reports about itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from geminga.bookie.records.read_counts import NOTHING_READ, ReadStatistics
from geminga.bookie.records.space_statistics import NOTHING, SpaceStatistics
from geminga.durations import NOTHING as NO_DURATIONS
from geminga.durations import Summary
from geminga.limits import ENTRY_BYTES_MAX, JOURNAL_GROUP_ENTRIES_MAX, KIB, MIB


@dataclass(frozen=True, slots=True)
class BookieSettings:
    """Sizes in bytes. The memory that the bookie may hold is about
    `write_cache_bytes + read_cache_bytes + 2 * queue_bytes_max + journal_group_bytes_max`, however many
    journals and ledger directories share it.
    """

    # Smaller than BookKeeper's 2 GiB: a file is recycled as a whole, so this times the kept ones is what a
    # small machine gives up for fast syncs.
    journal_file_bytes: int = 32 * MIB
    """A journal file is left for the next one once it is this long."""
    journal_allocate_bytes: int = 8 * MIB
    """Steps in which a new journal file's space is reserved."""
    journal_alignment_bytes: int = 4 * KIB
    """Every group starts at a multiple of this, so that no write touches a page that an earlier sync
    covered, and none has to read the rest of a page first.
    """
    journal_free_files_max: int = 2
    """Old journals kept (BookKeeper's `journalMaxBackups`). They can be read until they are written over, the
    oldest first: their blocks are allocated, which makes a sync several times faster.
    """
    # One group is one write. A larger one would keep its first entry waiting for bytes that came later.
    journal_group_bytes_max: int = 4 * MIB
    journal_group_entries_max: int = JOURNAL_GROUP_ENTRIES_MAX // 4
    queue_bytes_max: int = 8 * MIB
    """Entries accepted and not yet durable; above it `has_room` is false."""
    write_cache_bytes: int = 48 * MIB
    """Both write caches together; each takes half."""
    read_cache_bytes: int = 16 * MIB
    read_ahead_bytes: int = 1 * MIB
    """The read-ahead: the most that one read of an entry log takes behind the requested entries."""
    # A lookup decodes a whole row, so a row must not grow without bound; a longer one saves hardly any space.
    row_entries_max: int = 1000
    """Entries that one index row describes at most."""
    # BookKeeper's is 1 GiB. A log's space comes back when its last ledger is gone or by copying, so shorter
    # logs give it back sooner.
    entry_log_bytes: int = 256 * MIB
    """An entry log is closed once it is this long."""
    entry_log_sync_bytes: int = 1 * MIB
    """While a cache is flushed, the entry log is synced every so many bytes, so that the journal's own syncs
    never wait behind one long one.
    """
    flush_interval_s: float = 60.0
    """A write cache with anything in it is flushed at least this often."""
    gc_wait_s: float = 900.0
    """How often the ledgers here are compared with the metadata (BookKeeper's `gcWaitTime`)."""
    # Thresholds and intervals are those of Pulsar's `bookkeeper.conf`; the limits of time keep a run from
    # lasting into the next one.
    minor_compaction_threshold: float = 0.2
    """Entry logs with a smaller share of living records than this are compacted; 0: never..."""
    minor_compaction_interval_s: float = 3600.0
    """...this often..."""
    minor_compaction_max_s: float = 600.0
    """...and for no longer than this; the next run goes on."""
    major_compaction_threshold: float = 0.5
    major_compaction_interval_s: float = 86400.0
    major_compaction_max_s: float = 3600.0
    compaction_rate_bytes_per_s: int = 8 * MIB
    """Records that compaction copies in a second (`compactionRateByBytes`); 0: as fast as it can."""
    compaction_slice_bytes: int = 1 * MIB
    """Compaction copies this much at once; a flush or a deletion waits for no more than that."""
    scrub_rate_bytes_per_s: int = 10_000_000
    """Records of closed entry logs that are read and checked in a second while nothing else waits for a disk;
    an entry counts as 512 bytes at least. 0: none.
    """

    disk_usage_threshold: float = 0.95
    """Above this share of the disk in use the bookie becomes read-only (`diskUsageThreshold`)..."""
    disk_usage_lwm_threshold: float = 0.90
    """...until it is below this (`diskUsageLwmThreshold`)."""
    disk_free_bytes_min: int = 128 * MIB
    """With less than this free it becomes read-only too: what was accepted must still find its place. Twice
    the write cache is enough for that. Looked at after every sixteenth of it that is written, not only
    regularly; the last quarter is not for flushes.
    """
    disk_free_bytes_enough: int = 4 * 1024 * MIB
    """With this much free it takes entries however full the disk is: a share of a large disk is a lot."""
    disk_check_interval_s: float = 10.0
    journal_drops_page_cache: bool = True
    """Release the page cache behind the journal's writer (`journalRemoveFromPageCache`)."""
    journal_group_wait_s: float = 0.0
    """How long the first entry of a journal group may wait for others (`journalMaxGroupWaitMSec`). 0: what
    came during one sync is the next group, and an entry that comes alone is written at once.
    """
    # Measured: at 5,000 messages a second from a publisher that does not wait, 2 ms instead of 1 saved a
    # fifth of the CPU and cost its receipts half a millisecond.
    journal_spacing_s: float = 0.002
    """Groups of few entries begin so far apart while no publisher waits for one of them, and no
    `journal_group_wait_s` is set."""

    def __post_init__(self) -> None:
        assert self.journal_alignment_bytes > 0
        assert self.journal_alignment_bytes % 512 == 0
        assert self.row_entries_max > 0


def journal_share(settings: BookieSettings, journals: int) -> BookieSettings:
    """What one of so many journals may hold in memory."""
    return replace(
        settings,
        queue_bytes_max=settings.queue_bytes_max // journals,
        journal_group_bytes_max=settings.journal_group_bytes_max // journals,
    )


def ledger_directory_share(settings: BookieSettings, directories: int) -> BookieSettings:
    """What one of so many ledger directories may hold in memory, and how fast it may scrub."""
    return replace(
        settings,
        write_cache_bytes=settings.write_cache_bytes // directories,
        read_cache_bytes=settings.read_cache_bytes // directories,
        scrub_rate_bytes_per_s=-(-settings.scrub_rate_bytes_per_s // directories),
    )


GROUP_ENTRIES_BOUNDS: Final = tuple(1 << power for power in range(14))
GROUP_WAIT_BOUNDS_S: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    1.0,
)


class JournalGroups(NamedTuple):
    """The groups that were written, by class; not cumulative, one class more for what is above all bounds."""

    by_entries: tuple[int, ...] = (0,) * (len(GROUP_ENTRIES_BOUNDS) + 1)
    by_wait: tuple[int, ...] = (0,) * (len(GROUP_WAIT_BOUNDS_S) + 1)
    """How long the oldest entry of each can have waited until the group was begun, in seconds."""
    waited_s: float = 0.0


class BookieLatencies(NamedTuple):
    adds: Summary = NO_DURATIONS
    """Of entries, from the queue of the journal until durable: those of a group all as long as its oldest."""
    syncs: Summary = NO_DURATIONS
    """Of groups."""
    reads: Summary = NO_DURATIONS
    """Of entries whose read had to wait for an entry log."""


NO_GROUPS, NO_LATENCIES = JournalGroups(), BookieLatencies()


@dataclass(frozen=True, slots=True)
class BookieStatistics:
    """A moment's counts since `open`, and sizes in bytes as they are now."""

    entries_written: int
    bytes_written: int
    journal_groups: int
    journal_bytes: int
    journal_sync_s: float
    """Spent in fdatasync, in all."""
    queued_bytes: int
    write_cache_bytes: int
    flushing_bytes: int
    read_cache_bytes: int
    flushes: int
    flushed_bytes: int
    reads_from_memory: int
    """Entries that a read found in a write cache or the read cache."""
    reads_from_log: int
    """Requested entries that came from an entry log."""
    read_log_bytes: int
    read_failures: int
    """Reads of entries that should be there and could not be had: damaged, lost, or the disk's fault."""
    entry_logs: int
    entry_log_bytes: int
    entry_logs_deleted: int
    compacted_bytes: int
    """Living records that compaction has copied."""
    logs_compacted: int
    """Entry logs of which it has copied all that lived."""
    scrubbed_bytes: int
    """Records of closed entry logs that were read to check them."""
    scrub_passes: int
    """Passes over all logs of a ledger directory."""
    damaged_entries_found: int
    """By a read or the scrub, each counted once..."""
    damaged_entries_healed: int
    """...and written again from a journal."""
    read_only: bool
    ledgers_deleted: int
    ledgers_aside: int
    """Kept and not served, because the metadata has no record of them."""
    space: SpaceStatistics = NOTHING
    found: ReadStatistics = NOTHING_READ
    """Where what was read was found."""
    latencies: BookieLatencies = NO_LATENCIES
    by_group: JournalGroups = NO_GROUPS
    queued_entries: int = 0
    """That no group of a journal has taken..."""
    groups_unreported: int = 0
    """...and groups that are on disk and were not reported to the loop."""
    reads_waiting: int = 0
    """Reads that wait for an entry log now."""
    directories_writable: int = 1
    """Ledger directories; 0 while the bookie is read-only."""


assert ENTRY_BYTES_MAX < 2**32, "record lengths are u32"
