"""What only Geminga has: memory by part of the budget, group commit, turns of the event loop, the log,
which loops run.
"""

from __future__ import annotations

from collections.abc import Iterator

from geminga.admin.metrics.figures import Figure, counter, histogram, one
from geminga.bookie.records.settings import GROUP_ENTRIES_BOUNDS, GROUP_WAIT_BOUNDS_S, BookieStatistics
from geminga.broker.flow.statistics import MemoryStatistics, TurnStatistics
from geminga.loops import kind


def group_figures(bookie: BookieStatistics) -> Iterator[Figure]:
    """Of the journals: entries that share a sync."""
    groups = bookie.by_group
    yield histogram(
        "geminga_bookie_journal_group_entries",
        "Entries in a group, which is one write and one sync",
        GROUP_ENTRIES_BOUNDS,
        groups.by_entries,
        float(bookie.entries_written),
    )
    yield histogram(
        "geminga_bookie_journal_group_wait_seconds",
        "How long the oldest entry of a group can have waited before the group was begun",
        GROUP_WAIT_BOUNDS_S,
        groups.by_wait,
        groups.waited_s,
    )


def turn_figures(turns: TurnStatistics) -> Iterator[Figure]:
    prefix = "geminga_loop_"
    yield counter(f"{prefix}turns_total", "Turns of the event loop", turns.turns)
    text = "Pauses of at most 2 ms, so that messages share a turn"
    yield counter(f"{prefix}pauses_total", text, turns.pauses)
    yield counter(f"{prefix}busy_seconds_total", "Time of these turns, waits not included", turns.busy_s)
    text = "The longest turn of this interval and the one before: all else waited for so long"
    yield one(f"{prefix}longest_turn_seconds", text, turns.longest_s)
    text = "The longest turn since the start"
    yield one(f"{prefix}longest_turn_ever_seconds", text, turns.longest_ever_s)


def loops_figure() -> Figure:
    return one(
        "geminga_loops", "What the loops that run once for each message are written in", 1, kind=kind()
    )


def memory_figures(memory: MemoryStatistics) -> Iterator[Figure]:
    yield one("geminga_memory_budget_bytes", "Memory that all parts may take", memory.budget_bytes)
    yield one("geminga_memory_resident_bytes", "Memory of the process", memory.resident_bytes)
    yield one(
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
    yield one(
        "geminga_publish_memory_waits",
        "How often a connection was not read because what publishers had sent was not durable yet",
        memory.publish_waits,
    )
    yield one(
        "geminga_tail_cache_entries_served", "Entries read from the tail cache", memory.tail_entries_served
    )
    yield one("geminga_tail_cache_bytes_served", "Bytes of these entries", memory.tail_bytes_served)
    yield one(
        "geminga_tail_cache_entries_missed",
        "Entries read from the bookie, its caches included, and not from the tail cache",
        memory.tail_entries_missed,
    )


def log_figures(dropped_lines: int) -> Iterator[Figure]:
    yield one(
        "geminga_log_dropped_lines",
        "Lines of standard output and standard error that were dropped: not read in time, or not writable",
        dropped_lines,
    )
