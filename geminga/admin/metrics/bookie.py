"""The bookie's metrics by BookKeeper's names, others by ours, as data: `exposition.py` draws them up.

Only measured values: no quantiles of latencies, which are not kept, and no metrics of parts that Geminga does
not have. As in the real bookie there is no cluster label. Counters start with the process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from geminga.bookie.records.settings import BookieStatistics
from geminga.bookie.recovery.recovery import RecoveryReport
from geminga.bookie.running.ledger_inventory import StoredCounts
from geminga.broker.flow.statistics import MemoryStatistics

Samples = Sequence[tuple[dict[str, str], float]]


class Figure(NamedTuple):
    """One metric with its samples; `kind` is Prometheus' type."""

    name: str
    help: str
    samples: Samples
    kind: str = "gauge"


def _one(name: str, text: str, value: float, **labels: str) -> Figure:
    return Figure(name, text, [(labels, float(value))])


def bookie_figures(
    bookie: BookieStatistics, recovery: RecoveryReport, stored: StoredCounts
) -> Iterator[Figure]:
    """Counters are declared as gauges, as those of the broker are on the same page."""
    writing = bookie.write_cache_bytes + bookie.flushing_bytes
    yield _one("bookie_SERVER_STATUS", "1: writable, 0: read-only", not bookie.read_only)
    yield _one("bookie_WRITE_BYTES", "Bytes of entries added, with their record heads", bookie.bytes_written)
    yield _one("bookie_ledgers_count", "Ledgers", stored.ledgers)
    yield _one("bookie_entries_count", "Entries stored", stored.entries)
    yield _one("bookie_write_cache_size", "Bytes in both write caches", writing)
    yield _one("bookie_read_cache_size", "Bytes in the read cache", bookie.read_cache_bytes)
    yield _one(
        "bookie_read_cache_hits", "Entries read from memory, write caches included", bookie.reads_from_memory
    )
    yield _one("bookie_read_cache_misses", "Entries that a read had to wait for", bookie.reads_from_log)
    yield _one("bookie_flush", "Write caches flushed", bookie.flushes)
    done = {"success": "true"}
    groups, sync_ms = bookie.journal_groups, bookie.journal_sync_s * 1000
    yield Figure(
        "bookie_journal_JOURNAL_SYNC",
        "Milliseconds of journal syncs; one sync for each group of entries",
        [],
    )
    yield _one("bookie_journal_JOURNAL_SYNC_count", "Journal syncs", groups, **done)
    yield _one("bookie_journal_JOURNAL_SYNC_sum", "Milliseconds in journal syncs", sync_ms, **done)
    added = bookie.entries_written
    yield _one("bookie_journal_JOURNAL_ADD_ENTRY_count", "Entries in the journal", added, **done)
    yield _one("bookkeeper_server_ADD_ENTRY_count", "Entries added", added, **done)
    reads = bookie.reads_from_memory + bookie.reads_from_log
    yield Figure(
        "bookkeeper_server_READ_ENTRY_count",
        "Entries read; reads that failed",
        [(done, float(reads)), ({"success": "false"}, float(bookie.read_failures))],
    )
    yield _one("bookie_journal_JOURNAL_WRITE_BYTES", "Bytes written to journals", bookie.journal_bytes)
    yield _one("geminga_bookie_journal_queue_bytes", "Entries not durable yet", bookie.queued_bytes)
    yield _one("geminga_bookie_flushed_bytes", "Bytes written to entry logs", bookie.flushed_bytes)
    yield _one("geminga_bookie_read_log_bytes", "Bytes read from entry logs", bookie.read_log_bytes)
    yield _one("geminga_bookie_entry_log_bytes", "Bytes of entries in entry logs", bookie.entry_log_bytes)
    yield from _of_reads(bookie)
    yield from _of_damage(bookie)
    yield from _of_space(bookie, stored)
    yield from _of_recovery(recovery)


def _of_reads(bookie: BookieStatistics) -> Iterator[Figure]:
    """Where the entries that were read from the bookie came from; the tail cache stands before it."""
    prefix, found = "geminga_bookie_read", bookie.found
    for place, entries, size_bytes in (
        ("write_cache", found.write_cache_entries, found.write_cache_bytes),
        ("read_cache", found.read_cache_entries, found.read_cache_bytes),
        ("entry_log", found.log_entries, found.log_bytes),
    ):
        yield _one(f"{prefix}_{place}_entries", f"Entries that reads found in the {place}", entries)
        yield _one(f"{prefix}_{place}_bytes", f"Bytes of entries that reads found in the {place}", size_bytes)
    yield _one(f"{prefix}_log_loads", "Reads from entry logs, read-ahead included", found.log_loads)


def _of_damage(bookie: BookieStatistics) -> Iterator[Figure]:
    """Damage in entry logs that the scrub and reads found."""
    found, healed = bookie.damaged_entries_found, bookie.damaged_entries_healed
    yield _one("geminga_bookie_scrubbed_bytes", "Bytes that the scrub has checked", bookie.scrubbed_bytes)
    yield _one("geminga_bookie_scrub_passes", "Passes of the scrub over all entry logs", bookie.scrub_passes)
    yield _one("geminga_bookie_damaged_entries_found", "Damaged entries found in entry logs", found)
    yield _one("geminga_bookie_damaged_entries_healed", "Damaged entries healed from a journal", healed)


def _of_space(bookie: BookieStatistics, stored: StoredCounts) -> Iterator[Figure]:
    """Garbage collection and compaction. Dashboards ask for some names with the endings of older releases."""
    space = bookie.space
    for ending in ("COUNT", "TOTAL"):
        yield _one(f"bookie_ACTIVE_ENTRY_LOG_{ending}", "Entry logs", bookie.entry_logs)
        yield _one(f"bookie_ACTIVE_LEDGER_{ending}", "Ledgers", stored.ledgers)
        yield _one(f"bookie_DELETED_LEDGER_{ending}", "Ledgers deleted", bookie.ledgers_deleted)
        yield _one(f"bookie_MINOR_COMPACTION_{ending}", "Minor compactions begun", space.minor_compactions)
        yield _one(f"bookie_MAJOR_COMPACTION_{ending}", "Major compactions begun", space.major_compactions)
    yield _one(
        "bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES", "Bytes of living entries in entry logs", bookie.entry_log_bytes
    )
    yield _one(
        "bookie_RECLAIMED_DELETION_SPACE_BYTES",
        "Bytes of entry logs that were deleted because no ledger lived in them",
        space.reclaimed_by_deletion_bytes,
    )
    yield _one(
        "bookie_RECLAIMED_COMPACTION_SPACE_BYTES",
        "Bytes of entry logs that compaction has emptied, less what it copied",
        space.reclaimed_by_compaction_bytes,
    )
    done = {"success": "true"}
    yield _one("bookie_THREAD_RUNTIME_count", "Garbage collections", space.collections, **done)
    yield _one(
        "bookie_THREAD_RUNTIME_sum", "Milliseconds in garbage collections", space.collect_s * 1000, **done
    )
    yield _one("geminga_bookie_ledgers_aside", "Ledgers kept without a record", bookie.ledgers_aside)
    yield _one("geminga_bookie_entry_logs_deleted", "Entry logs deleted", bookie.entry_logs_deleted)
    yield _one("geminga_bookie_entry_logs_compacted", "Entry logs compacted", bookie.logs_compacted)
    yield _one("geminga_bookie_compacted_bytes", "Bytes that compaction has copied", bookie.compacted_bytes)


def _of_recovery(report: RecoveryReport) -> Iterator[Figure]:
    prefix = "geminga_bookie_recovery"
    for name, text, value in (
        ("journals_read", "Journals read at the start", report.journals_read),
        ("entries_replayed", "Entries replayed from the journal at the start", report.entries_replayed),
        ("groups_read", "Groups of entries read from journals", report.groups_read),
        ("entries_known", "Entries met in the journal that were in entry logs", report.entries_known),
        (
            "entries_of_deleted_ledgers",
            "Entries met in the journal of ledgers that were deleted",
            report.entries_of_deleted_ledgers,
        ),
        ("entries_lost", "Entries that were durable and are damaged", report.entries_lost),
        ("torn_bytes", "Bytes of an unfinished group that were cut", report.torn_bytes),
        ("damages", "Damaged places in journals", len(report.damages)),
        ("index_rebuilt", "1: the index was rebuilt at the start", bool(report.index_rebuilt)),
        ("entries_indexed", "Entries indexed again from entry logs", report.entries_indexed),
        ("entries_moved", "Entries found in another log than an old index named", report.entries_moved),
        ("logs_missing", "Entry logs that are not there", len(report.logs_missing)),
        ("logs_cut", "Entry logs that are cut short", len(report.logs_cut)),
        ("logs_damaged", "Damaged headers and footers of entry logs", len(report.logs_damaged)),
        ("entries_missing", "Entries that no entry log and no journal has", report.entries_missing),
        ("headers_restored", "Journals read in spite of a damaged header", len(report.headers_restored)),
    ):
        yield _one(f"{prefix}_{name}", text, value)


def memory_figures(memory: MemoryStatistics) -> Iterator[Figure]:
    yield _one("geminga_memory_budget_bytes", "Memory that all parts may take", memory.budget_bytes)
    yield _one("geminga_memory_resident_bytes", "Memory of the process", memory.resident_bytes)
    yield _one(
        "geminga_memory_rocksdb_buffer_bytes",
        "RocksDB's write buffers and table readers, part of the process",
        memory.rocksdb_buffer_bytes,
    )
    yield Figure(
        "geminga_memory_configured_bytes",
        "What each part may take",
        [({"part": part.name}, float(part.configured_bytes)) for part in memory.parts],
    )
    yield Figure(
        "geminga_memory_used_bytes",
        "What each part holds now",
        [({"part": part.name}, float(part.used_bytes)) for part in memory.parts],
    )
    yield _one(
        "geminga_publish_memory_waits",
        "How often a connection was not read because what publishers had sent was not durable yet",
        memory.publish_waits,
    )
    yield _one(
        "geminga_tail_cache_entries_served", "Entries read from the tail cache", memory.tail_entries_served
    )
    yield _one("geminga_tail_cache_bytes_served", "Bytes of these entries", memory.tail_bytes_served)
    yield _one(
        "geminga_tail_cache_entries_missed",
        "Entries read from the bookie, its caches included, and not from the tail cache",
        memory.tail_entries_missed,
    )


def log_figures(dropped_lines: int) -> Iterator[Figure]:
    yield _one(
        "geminga_log_dropped_lines",
        "Lines of standard output and standard error that were dropped: not read in time, or not writable",
        dropped_lines,
    )
