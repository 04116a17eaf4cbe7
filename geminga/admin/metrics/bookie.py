"""The bookie's metrics by BookKeeper's names, others by ours, as data: `exposition.py` draws them up.

Only measured values, and no metrics of parts that Geminga does not have. As in the real bookie there is no
cluster label. Counters start with the process.
"""

from __future__ import annotations

from collections.abc import Iterator

from geminga.admin.metrics.figures import Figure, one, summary
from geminga.bookie.records.settings import BookieStatistics
from geminga.bookie.recovery.recovery import RecoveryReport
from geminga.bookie.running.ledger_inventory import StoredCounts
from geminga.durations import Summary

QUANTILES = ("0.5", "0.75", "0.95", "0.99", "0.999", "0.9999", "1.0")


def bookie_figures(
    bookie: BookieStatistics, recovery: RecoveryReport, stored: StoredCounts
) -> Iterator[Figure]:
    """Counters are declared as gauges, as those of the broker are on the same page."""
    writing = bookie.write_cache_bytes + bookie.flushing_bytes
    yield one("bookie_SERVER_STATUS", "1: writable, 0: read-only", not bookie.read_only)
    yield one("bookie_WRITE_BYTES", "Bytes of entries added, with their record heads", bookie.bytes_written)
    yield one("bookie_ledgers_count", "Ledgers", stored.ledgers)
    yield one("bookie_entries_count", "Entries stored", stored.entries)
    yield one("bookie_write_cache_size", "Bytes in both write caches", writing)
    yield one("bookie_read_cache_size", "Bytes in the read cache", bookie.read_cache_bytes)
    # Dashboards know counters of BookKeeper by the endings of older releases too.
    for ending in ("", "_count"):
        text = "Entries read from memory, write caches included"
        yield one(f"bookie_read_cache_hits{ending}", text, bookie.reads_from_memory)
        text = "Entries that a read had to wait for"
        yield one(f"bookie_read_cache_misses{ending}", text, bookie.reads_from_log)
    yield one("bookie_flush", "Write caches flushed", bookie.flushes)
    yield one("bookie_READ_BYTES", "Bytes of entries read", _read_bytes(bookie))
    yield one(
        "bookie_ledger_writable_dirs", "Ledger directories that take entries", bookie.directories_writable
    )
    yield from _of_latencies(bookie)
    yield one("bookie_journal_JOURNAL_WRITE_BYTES", "Bytes written to journals", bookie.journal_bytes)
    yield one("geminga_bookie_journal_queue_bytes", "Entries not durable yet", bookie.queued_bytes)
    yield one("geminga_bookie_flushed_bytes", "Bytes written to entry logs", bookie.flushed_bytes)
    yield one("geminga_bookie_read_log_bytes", "Bytes read from entry logs", bookie.read_log_bytes)
    yield one("geminga_bookie_entry_log_bytes", "Bytes of entries in entry logs", bookie.entry_log_bytes)
    yield from _of_reads(bookie)
    yield from _of_damage(bookie)
    yield from _of_space(bookie, stored)
    yield from _of_recovery(recovery)


def _read_bytes(bookie: BookieStatistics) -> int:
    found = bookie.found
    return found.write_cache_bytes + found.read_cache_bytes + found.log_bytes


def _of_latencies(bookie: BookieStatistics) -> Iterator[Figure]:
    """Summaries in milliseconds, as BookKeeper's, which dashboards know by two names."""
    done = {"success": "true"}
    adds, syncs, reads = bookie.latencies
    syncs = Summary(bookie.journal_groups, bookie.journal_sync_s * 1000, syncs.classes)
    adds = adds._replace(events=bookie.entries_written)
    text = "Milliseconds of journal syncs, each with the write of its group of entries"
    yield summary("bookie_journal_JOURNAL_SYNC", text, syncs, QUANTILES, done)
    text = "Milliseconds from the queue of the journal until durable; entries of a group count as its oldest"
    for name in (
        "bookie_journal_JOURNAL_ADD_ENTRY",
        "bookkeeper_server_ADD_ENTRY",
        "bookkeeper_server_ADD_ENTRY_REQUEST",
    ):
        yield summary(name, text, adds, QUANTILES, done)
    failed = [("_count", {"success": "false"}, float(bookie.read_failures))]
    in_all = reads._replace(events=bookie.reads_from_memory + bookie.reads_from_log)
    text = "Entries read, those from memory included; milliseconds of those that waited for an entry log"
    for name in ("bookkeeper_server_READ_ENTRY", "bookkeeper_server_READ_ENTRY_REQUEST"):
        drawn = summary(name, text, in_all, QUANTILES, done)
        yield drawn._replace(parts=[*drawn.parts, *failed])
    text = "Milliseconds that entries waited for an entry log"
    yield summary("bookie_read_entry", text, reads, QUANTILES, done)
    found = bookie.found
    yield Figure(
        "bookie_readahead_batch_count",
        "Reads of entry logs, and entries that these brought before they were asked for",
        [],
        "summary",
        [("_count", done, float(found.log_loads)), ("_sum", done, float(found.read_cache_entries))],
    )
    pool = "bookkeeper_server_BookieReadThreadPool_task_execution"
    parts = [("_count", done, float(reads.events)), ("_sum", done, reads.total_ms)]
    yield Figure(pool, "Milliseconds that threads read entry logs", [], "summary", parts)
    waiting, queued = float(bookie.reads_waiting), float(bookie.queued_entries)
    for name, text, value in (
        ("bookkeeper_server_READ_ENTRY_IN_PROGRESS", "Reads of entry logs under way", waiting),
        ("bookkeeper_server_BookieReadThreadPool_queue_0", "Reads of entry logs under way", waiting),
        ("bookkeeper_server_ADD_ENTRY_IN_PROGRESS", "Entries that are not durable yet", queued),
        ("bookkeeper_server_BookieWriteThreadPool_queue_0", "Entries that no group has taken yet", queued),
        ("bookie_journal_JOURNAL_QUEUE_SIZE", "Entries that no group has taken yet", queued),
    ):
        yield one(name, text, value)
    thread = [({"thread": "journal"}, queued), ({"thread": "read"}, waiting)]
    yield Figure("bookkeeper_server_thread_executor_queue", "What waits for a thread", thread)
    # A group is forced to disk, and reported, by the thread that wrote it: what waits there is one group.
    for name in ("bookie_journal_JOURNAL_FORCE_WRITE_QUEUE_SIZE", "bookie_journal_JOURNAL_CB_QUEUE_SIZE"):
        yield one(name, "Groups that are written and not reported yet", bookie.groups_unreported)


def _of_reads(bookie: BookieStatistics) -> Iterator[Figure]:
    """Where the entries that were read from the bookie came from; the tail cache stands before it."""
    prefix, found = "geminga_bookie_read", bookie.found
    for place, entries, size_bytes in (
        ("write_cache", found.write_cache_entries, found.write_cache_bytes),
        ("read_cache", found.read_cache_entries, found.read_cache_bytes),
        ("entry_log", found.log_entries, found.log_bytes),
    ):
        yield one(f"{prefix}_{place}_entries", f"Entries that reads found in the {place}", entries)
        yield one(f"{prefix}_{place}_bytes", f"Bytes of entries that reads found in the {place}", size_bytes)
    yield one(f"{prefix}_log_loads", "Reads from entry logs, read-ahead included", found.log_loads)


def _of_damage(bookie: BookieStatistics) -> Iterator[Figure]:
    """Damage in entry logs that the scrub and reads found."""
    found, healed = bookie.damaged_entries_found, bookie.damaged_entries_healed
    yield one("geminga_bookie_scrubbed_bytes", "Bytes that the scrub has checked", bookie.scrubbed_bytes)
    yield one("geminga_bookie_scrub_passes", "Passes of the scrub over all entry logs", bookie.scrub_passes)
    yield one("geminga_bookie_damaged_entries_found", "Damaged entries found in entry logs", found)
    yield one("geminga_bookie_damaged_entries_healed", "Damaged entries healed from a journal", healed)


def _of_space(bookie: BookieStatistics, stored: StoredCounts) -> Iterator[Figure]:
    """Garbage collection and compaction. Dashboards ask for some names with the endings of older releases."""
    space = bookie.space
    for ending in ("COUNT", "TOTAL"):
        yield one(f"bookie_ACTIVE_ENTRY_LOG_{ending}", "Entry logs", bookie.entry_logs)
        yield one(f"bookie_ACTIVE_LEDGER_{ending}", "Ledgers", stored.ledgers)
        yield one(f"bookie_DELETED_LEDGER_{ending}", "Ledgers deleted", bookie.ledgers_deleted)
        yield one(f"bookie_MINOR_COMPACTION_{ending}", "Minor compactions begun", space.minor_compactions)
        yield one(f"bookie_MAJOR_COMPACTION_{ending}", "Major compactions begun", space.major_compactions)
    yield one(
        "bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES", "Bytes of living entries in entry logs", bookie.entry_log_bytes
    )
    yield one(
        "bookie_RECLAIMED_DELETION_SPACE_BYTES",
        "Bytes of entry logs that were deleted because no ledger lived in them",
        space.reclaimed_by_deletion_bytes,
    )
    yield one(
        "bookie_RECLAIMED_COMPACTION_SPACE_BYTES",
        "Bytes of entry logs that compaction has emptied, less what it copied",
        space.reclaimed_by_compaction_bytes,
    )
    done = {"success": "true"}
    yield one("bookie_THREAD_RUNTIME_count", "Garbage collections", space.collections, **done)
    yield one(
        "bookie_THREAD_RUNTIME_sum", "Milliseconds in garbage collections", space.collect_s * 1000, **done
    )
    yield one("geminga_bookie_ledgers_aside", "Ledgers kept without a record", bookie.ledgers_aside)
    yield one(
        "geminga_bookie_keeps_logs",
        "1: entry logs are kept from deletion, as a start found files of several moments",
        bookie.keeps_logs,
    )
    yield one("geminga_bookie_kept_logs", "Entry logs that would be deleted and are kept", bookie.kept_logs)
    yield one("geminga_bookie_kept_bytes", "Bytes of these entry logs", bookie.kept_bytes)
    yield one(
        "geminga_bookie_confirmed_entries_missing",
        "Entries that topics have confirmed and that no file had at the start",
        bookie.confirmed_missing,
    )
    yield one("geminga_bookie_entry_logs_deleted", "Entry logs deleted", bookie.entry_logs_deleted)
    yield one("geminga_bookie_entry_logs_compacted", "Entry logs compacted", bookie.logs_compacted)
    yield one("geminga_bookie_compacted_bytes", "Bytes that compaction has copied", bookie.compacted_bytes)


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
        ("mismatch", "1: the start found files of several moments", bool(report.mismatch)),
        ("entries_found", "Entries in entry logs that an older index lacked", report.entries_found),
        ("entries_moved", "Entries found in another log than an old index named", report.entries_moved),
        ("logs_missing", "Entry logs that are not there", len(report.logs_missing)),
        ("logs_cut", "Entry logs that are cut short", len(report.logs_cut)),
        ("logs_damaged", "Damaged headers and footers of entry logs", len(report.logs_damaged)),
        ("entries_missing", "Entries that the files name and none has", report.entries_missing),
        ("headers_restored", "Journals read in spite of a damaged header", len(report.headers_restored)),
    ):
        yield one(f"{prefix}_{name}", text, value)
