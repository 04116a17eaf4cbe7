"""The bookie's figures and the memory's, from structs to the page."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from geminga.admin.metrics.bookie import bookie_figures
from geminga.admin.metrics.exposition import exposition
from geminga.admin.metrics.own import memory_figures
from geminga.bookie.records.read_counts import ReadStatistics
from geminga.bookie.records.settings import BookieLatencies, BookieStatistics, JournalGroups
from geminga.bookie.records.space_statistics import SpaceStatistics, total
from geminga.bookie.recovery.recovery import RecoveryReport
from geminga.bookie.running.ledger_inventory import StoredCounts
from geminga.broker.flow.statistics import BrokerStatistics, MemoryPart, MemoryStatistics


def statistics(**values: object) -> BookieStatistics:
    fields = dict.fromkeys(BookieStatistics.__struct_fields__, 0)
    structs = {
        "space": SpaceStatistics(),
        "found": ReadStatistics(),
        "latencies": BookieLatencies(),
        "by_group": JournalGroups(),
    }
    return BookieStatistics(**{**fields, **structs, **values})  # type: ignore[arg-type]


def test_each_figure_is_the_one_that_was_measured() -> None:
    bookie = statistics(
        bytes_written=11,
        write_cache_bytes=5,
        flushing_bytes=7,
        read_cache_bytes=3,
        reads_from_memory=90,
        reads_from_log=10,
        read_failures=5,
        journal_groups=4,
        journal_sync_s=0.25,
        entries_written=8,
        entry_logs=3,
        ledgers_deleted=21,
        compacted_bytes=77,
        found=ReadStatistics(1, 100, 2, 200, 3, 300, 4),
        space=total([SpaceStatistics(2, 0.5, 3, 1, 1000, 30), SpaceStatistics(1, 0.25, 0, 1, 0, 40)]),
    )
    recovery = RecoveryReport(entries_replayed=6, torn_bytes=512, index_rebuilt="it was lost")
    memory = MemoryStatistics(
        budget_bytes=100,
        resident_bytes=60,
        rocksdb_buffer_bytes=2,
        tail_entries_served=5,
        tail_bytes_served=55,
        parts=[MemoryPart("write_cache", "key", 50, 12), MemoryPart("process", "", 50, 48)],
    )
    figures = [*bookie_figures(bookie, recovery, StoredCounts(2, 9)), *memory_figures(memory)]
    page = "".join(exposition([], BrokerStatistics(), figures, cluster="standalone"))
    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    done = (("success", "true"),)
    for name, labels, value in (
        ("bookie_SERVER_STATUS", (), 1),
        ("bookie_WRITE_BYTES", (), 11),
        ("bookie_write_cache_size", (), 12),
        ("bookie_read_cache_size", (), 3),
        ("bookie_read_cache_hits", (), 90),
        ("bookie_read_cache_misses", (), 10),
        ("bookie_ledgers_count", (), 2),
        ("bookie_entries_count", (), 9),
        ("bookie_journal_JOURNAL_SYNC_count", done, 4),
        ("bookie_journal_JOURNAL_SYNC_sum", done, 250),
        ("bookkeeper_server_ADD_ENTRY_count", done, 8),
        ("bookkeeper_server_READ_ENTRY_count", done, 100),
        ("bookkeeper_server_READ_ENTRY_count", (("success", "false"),), 5),
        ("bookie_ACTIVE_ENTRY_LOG_TOTAL", (), 3),
        ("bookie_ACTIVE_LEDGER_COUNT", (), 2),
        ("bookie_DELETED_LEDGER_TOTAL", (), 21),
        ("bookie_MINOR_COMPACTION_COUNT", (), 3),
        ("bookie_MAJOR_COMPACTION_TOTAL", (), 2),
        ("bookie_RECLAIMED_DELETION_SPACE_BYTES", (), 1000),
        ("bookie_RECLAIMED_COMPACTION_SPACE_BYTES", (), 70),
        ("bookie_THREAD_RUNTIME_count", done, 3),
        ("bookie_THREAD_RUNTIME_sum", done, 750),
        ("geminga_bookie_compacted_bytes", (), 77),
        ("geminga_bookie_read_write_cache_entries", (), 1),
        ("geminga_bookie_read_write_cache_bytes", (), 100),
        ("geminga_bookie_read_read_cache_entries", (), 2),
        ("geminga_bookie_read_read_cache_bytes", (), 200),
        ("geminga_bookie_read_entry_log_entries", (), 3),
        ("geminga_bookie_read_entry_log_bytes", (), 300),
        ("geminga_bookie_read_log_loads", (), 4),
        ("geminga_tail_cache_entries_served", (), 5),
        ("geminga_tail_cache_bytes_served", (), 55),
        ("geminga_bookie_recovery_entries_replayed", (), 6),
        ("geminga_bookie_recovery_torn_bytes", (), 512),
        ("geminga_bookie_recovery_index_rebuilt", (), 1),
        ("geminga_memory_budget_bytes", (), 100),
        ("geminga_memory_used_bytes", (("part", "write_cache"),), 12),
        ("geminga_memory_configured_bytes", (("part", "process"),), 50),
    ):
        assert found[name, labels] == value, name
    names = [figure.name for figure in figures]
    assert len(names) == len(set(names))


def test_a_bookie_on_a_full_disk_shows_as_read_only() -> None:
    [status] = [
        figure.samples
        for figure in bookie_figures(statistics(read_only=True), RecoveryReport(), StoredCounts(0, 0))
        if figure.name == "bookie_SERVER_STATUS"
    ]
    assert status == [({}, 0.0)]


def test_every_count_of_the_recovery_report_is_a_figure() -> None:
    found = {figure.name for figure in bookie_figures(statistics(), RecoveryReport(), StoredCounts(0, 0))}
    assert {f"geminga_bookie_recovery_{name}" for name in RecoveryReport.__struct_fields__} <= found
