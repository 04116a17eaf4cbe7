"""What a footer says is true: of topics, and of records, at whichever operation the power goes."""

from __future__ import annotations

import pytest

from geminga.bookie.entry_logs.reader import EntryLogs
from geminga.bookie.entry_logs.scan import read_footer
from geminga.bookie.entry_logs.writer import EntryLogWriter
from geminga.bookie.journal.journal_format import FileHeader, encode_group
from geminga.bookie.records.ledger_name import LedgerName
from geminga.bookie.records.segment_map import SegmentMap
from geminga.bookie.records.settings import BookieSettings
from geminga.errors import CorruptData
from simulation.disk.sim_disk import CrashMode, PowerCut, SimDisk

TOPICS = {2: "a/two", 5: "a/five", 9: "a/nine"}
NAMES = {ledger_id: LedgerName("data", topic) for ledger_id, topic in TOPICS.items()}


def cache_of(*batches: tuple[int, int, list[bytes]]) -> SegmentMap:
    cache = SegmentMap()
    for segment in encode_group(FileHeader(1, 2, 512, 0, 0), 512, 512, batches)[1]:
        cache.add(segment)
    return cache


def topics_by_log(disk: SimDisk) -> dict[int, dict[int, str]]:
    found = {}
    for name in disk.list("logs"):
        footer = read_footer(disk.open(f"logs/{name}"))
        if footer is not None:
            found[int(name.split(".")[0])] = {
                id_: ledger.name.topic for id_, ledger in footer.ledgers.items()
            }
    return found


@pytest.mark.parametrize("row_entries_max", [2, 1000])
def test_a_log_that_fills_while_a_ledger_is_written_names_its_topic(row_entries_max: int) -> None:
    disk = SimDisk()
    disk.make_directory("logs")
    settings = BookieSettings(entry_log_bytes=600, row_entries_max=row_entries_max)
    writer = EntryLogWriter(disk, "logs", settings, next_log_id=1)
    writer.write(cache_of((5, 0, [b"x" * 100] * 4), (2, 0, [b"x" * 50] * 3)), NAMES)
    writer.write(cache_of((5, 4, [b"x" * 100] * 20), (9, 0, [b"x" * 300] * 3)), NAMES)
    writer.write(cache_of((5, 24, [b"x" * 100]), (9, 3, [b"y"])), NAMES)
    writer.finish()
    logs = topics_by_log(disk)
    assert len(logs) >= 3
    assert set().union(*logs.values()) == set(TOPICS)
    for ledgers in logs.values():
        assert ledgers == {ledger_id: TOPICS[ledger_id] for ledger_id in ledgers}


def test_a_topic_known_only_later_is_named_in_the_log_that_is_still_open() -> None:
    disk = SimDisk()
    disk.make_directory("logs")
    writer = EntryLogWriter(disk, "logs", BookieSettings(), next_log_id=1)
    writer.write(cache_of((5, 0, [b"replayed"])), {})
    writer.write(cache_of((5, 1, [b"new"]), (2, 0, [b"new"])), {5: NAMES[5]})
    writer.finish()
    assert topics_by_log(disk) == {1: {2: "", 5: "a/five"}}


def cut_power_at(operation: int, seed: int, mode: CrashMode) -> tuple[SimDisk, bool]:
    """Two flushes that fill several logs; False if they ended before that operation."""
    disk = SimDisk(seed)
    disk.make_directory("logs")
    disk.crash_at = disk.operations + operation
    writer = EntryLogWriter(
        disk, "logs", BookieSettings(entry_log_bytes=900, entry_log_sync_bytes=10_000), next_log_id=1
    )
    cut = True
    try:
        writer.write(cache_of(*((ledger, 0, [b"x" * 100] * 4) for ledger in range(1, 6))), {})
        writer.write(cache_of(*((ledger, 4, [b"y" * 90] * 4) for ledger in range(1, 6))), {})
        writer.finish()
        cut = False
    except PowerCut:
        pass
    disk.crash(mode)
    return disk, cut


def records_of_every_footer(disk: SimDisk) -> int:
    logs, entries = EntryLogs(disk, "logs"), 0
    for log_id in logs.ids():
        footer = read_footer(disk.open(f"logs/{log_id:020d}.log"))
        for ledger_id, row in footer.rows if footer is not None else ():
            assert len(logs.load(ledger_id, row, row.first, row.last).ends) == len(row.ends)
            entries += len(row.ends)
    return entries


def cut_power_everywhere(seeds: int) -> int:
    footers_found = operation = 0
    cut = True
    while cut:
        for seed in range(seeds):
            disk, cut = cut_power_at(operation, seed, "torn")
            footers_found += bool(records_of_every_footer(disk))
        operation += 1
    return footers_found


def test_whoever_finds_a_footer_may_trust_it() -> None:
    assert cut_power_everywhere(seeds=8) > 20


def test_a_footer_that_is_synced_together_with_its_records_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = EntryLogWriter.finish

    def finish(writer: EntryLogWriter) -> None:
        writer._write_parts()
        writer._synced = writer._end
        real(writer)

    monkeypatch.setattr(EntryLogWriter, "finish", finish)
    with pytest.raises((AssertionError, CorruptData)):
        cut_power_everywhere(seeds=8)
