"""The bookie's settings and statistics."""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from geminga.bookie.records.read_counts import NOTHING_READ, ReadStatistics
from geminga.bookie.records.space_statistics import NOTHING, SpaceStatistics
from geminga.durations import NOTHING as NO_DURATIONS
from geminga.durations import Summary
from geminga.limits import ENTRY_BYTES_MAX, JOURNAL_GROUP_ENTRIES_MAX, KIB, MIB


class BookieSettings(Struct, frozen=True):
    """Sizes in bytes. The bookie's memory is about `write_cache_bytes + read_cache_bytes + 2 *
    queue_bytes_max + journal_group_bytes_max`, regardless of the number of journals and ledger directories
    that share it.
    """

    # BookKeeper's default is 2 GiB. Old journals are kept whole for reuse, so this times
    # `journal_free_files_max` is disk space that buys fast syncs.
    journal_file_bytes: int = 32 * MIB
    """The journal begins a new file once a file is this long."""
    journal_allocate_bytes: int = 8 * MIB
    """The space of a new journal file is reserved in steps of this size."""
    journal_alignment_bytes: int = 4 * KIB
    """Every group starts at a multiple of this. So no write touches a page that an earlier sync covered, and
    no write has to read the rest of a page first.
    """
    journal_free_files_max: int = 2
    """The number of old journals that are kept (BookKeeper's `journalMaxBackups`). They remain readable until
    they are overwritten, the oldest first. Their blocks are allocated, which makes a sync several times
    faster.
    """
    # One group is one write. A larger one would keep its first entry waiting for bytes that came later.
    journal_group_bytes_max: int = 4 * MIB
    journal_group_entries_max: int = JOURNAL_GROUP_ENTRIES_MAX // 4
    queue_bytes_max: int = 8 * MIB
    """The limit of entries that are accepted and not durable yet; above it `has_room` is false."""
    write_cache_bytes: int = 48 * MIB
    """The size of both write caches together; each takes half."""
    read_cache_bytes: int = 16 * MIB
    read_ahead_bytes: int = 1 * MIB
    """The limit of the read-ahead: bytes that one read of an entry log loads beyond the requested entries."""
    # A lookup decodes a whole row, so a row must not grow without bound; a longer one saves hardly any space.
    row_entries_max: int = 1000
    """The limit of entries in one index row."""
    # BookKeeper's is 1 GiB. A log's space comes back when its last ledger is gone or by copying, so shorter
    # logs give it back sooner.
    entry_log_bytes: int = 256 * MIB
    """An entry log is closed once it is this long."""
    entry_log_sync_bytes: int = 1 * MIB
    """During a flush, the entry log is synced after this many bytes, so that the journal's syncs never wait
    behind a single long one.
    """
    flush_interval_s: float = 60.0
    """A non-empty write cache is flushed at least this often."""
    gc_wait_s: float = 900.0
    """How often the bookie compares its ledgers with the metadata (BookKeeper's `gcWaitTime`)."""
    # Thresholds and intervals are those of Pulsar's `bookkeeper.conf`; the limits of time keep a run from
    # lasting into the next one.
    minor_compaction_threshold: float = 0.2
    """Minor compaction takes entry logs with a smaller share of living records than this; 0 turns it off."""
    minor_compaction_interval_s: float = 3600.0
    """The interval between minor compactions."""
    minor_compaction_max_s: float = 600.0
    """The limit of one minor compaction's duration; the next run continues."""
    major_compaction_threshold: float = 0.5
    major_compaction_interval_s: float = 86400.0
    major_compaction_max_s: float = 3600.0
    compaction_rate_bytes_per_s: int = 8 * MIB
    """The records that compaction copies in a second (`compactionRateByBytes`); 0: no limit."""
    compaction_slice_bytes: int = 1 * MIB
    """Compaction copies slices of this size; a flush or a deletion waits for one slice at most."""
    scrub_rate_bytes_per_s: int = 10_000_000
    """The records of closed entry logs that the scrub reads and checks in a second while nothing else waits
    for a disk. An entry counts as 512 bytes at least. 0 turns the scrub off.
    """

    disk_usage_threshold: float = 0.95
    """Above this used share of the disk the bookie becomes read-only (`diskUsageThreshold`)."""
    disk_usage_lwm_threshold: float = 0.90
    """Below this used share the bookie accepts entries again (`diskUsageLwmThreshold`)."""
    disk_free_bytes_min: int = 128 * MIB
    """With less free space than this the bookie becomes read-only, too, so that accepted entries still fit.
    Twice the write cache suffices for them. The bookie checks the space regularly, and whenever it has
    written a sixteenth of this size. The last quarter is not for flushes.
    """
    disk_free_bytes_enough: int = 4 * 1024 * MIB
    """With this much free space the bookie accepts entries even above the used share: a share of a large disk
    is a lot.
    """
    disk_check_interval_s: float = 10.0
    journal_drops_page_cache: bool = True
    """Whether to release the page cache behind the journal's writer (`journalRemoveFromPageCache`)."""
    journal_group_wait_s: float = 0.0
    """How long the first entry of a journal group may wait for others (`journalMaxGroupWaitMSec`). 0: entries
    that arrive during one sync make the next group, and a single entry is written at once.
    """
    # Measured: at 5,000 messages a second from a publisher that does not wait, 2 ms instead of 1 saved a
    # fifth of the CPU and cost its receipts half a millisecond.
    journal_spacing_s: float = 0.002
    """The interval between the starts of small groups. It applies while no publisher waits for an entry, and
    while `journal_group_wait_s` is not set.
    """

    def __post_init__(self) -> None:
        assert self.journal_alignment_bytes > 0
        assert self.journal_alignment_bytes % 512 == 0
        assert self.row_entries_max > 0


def journal_share(settings: BookieSettings, journals: int) -> BookieSettings:
    """The memory of one journal among this many."""
    return replace(
        settings,
        queue_bytes_max=settings.queue_bytes_max // journals,
        journal_group_bytes_max=settings.journal_group_bytes_max // journals,
    )


def ledger_directory_share(settings: BookieSettings, directories: int) -> BookieSettings:
    """The memory and the scrub rate of one ledger directory among this many."""
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
    """Written groups by class: not cumulative, with one more class above all bounds."""

    by_entries: tuple[int, ...] = (0,) * (len(GROUP_ENTRIES_BOUNDS) + 1)
    by_wait: tuple[int, ...] = (0,) * (len(GROUP_WAIT_BOUNDS_S) + 1)
    """By the longest time, in seconds, that the oldest entry can have waited until its group began."""
    waited_s: float = 0.0


class BookieLatencies(NamedTuple):
    adds: Summary = NO_DURATIONS
    """Per entry, from the journal's queue until durable; all entries of a group count as its oldest."""
    syncs: Summary = NO_DURATIONS
    """Per group."""
    reads: Summary = NO_DURATIONS
    """Per entry whose read had to wait for an entry log."""


NO_GROUPS, NO_LATENCIES = JournalGroups(), BookieLatencies()


class BookieStatistics(Struct, frozen=True):
    """Counts since `open`, and sizes in bytes at this moment."""

    entries_written: int
    bytes_written: int
    journal_groups: int
    journal_bytes: int
    journal_sync_s: float
    """Total seconds in which groups were written and synced."""
    queued_bytes: int
    write_cache_bytes: int
    flushing_bytes: int
    read_cache_bytes: int
    flushes: int
    flushed_bytes: int
    reads_from_memory: int
    """Entries that reads found in a write cache or the read cache."""
    reads_from_log: int
    """Requested entries that came from an entry log."""
    read_log_bytes: int
    read_failures: int
    """Failed reads of entries that should exist: they were damaged or lost, or the disk failed."""
    entry_logs: int
    entry_log_bytes: int
    entry_logs_deleted: int
    compacted_bytes: int
    """Living records that compaction copied."""
    logs_compacted: int
    """Entry logs whose living records were all copied."""
    scrubbed_bytes: int
    """Records of closed entry logs that the scrub read and checked."""
    scrub_passes: int
    """Completed passes of the scrub over all logs of a ledger directory."""
    damaged_entries_found: int
    """Damaged entries that a read or the scrub found, each counted once."""
    damaged_entries_healed: int
    """Damaged entries that were rewritten from a journal."""
    read_only: bool
    ledgers_deleted: int
    ledgers_aside: int
    """Ledgers that are kept but not served, because the metadata has no record of them."""
    confirmed_missing: int = 0
    """Entries that topics have confirmed and that no file had at the start."""
    keeps_logs: bool = False
    """Whether entry logs are kept from deletion after a mismatch."""
    kept_logs: int = 0
    """Entry logs that would have been deleted otherwise, at the last garbage collection."""
    kept_bytes: int = 0
    """The length of these logs."""
    space: SpaceStatistics = NOTHING
    found: ReadStatistics = NOTHING_READ
    """The layers in which reads found their entries."""
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
