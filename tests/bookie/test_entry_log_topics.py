"""A footer names the topic of every ledger inside, whenever its log became full."""

from __future__ import annotations

import pytest

from geminga.bookie.entry_log_scan import read_footer
from geminga.bookie.entry_log_writer import EntryLogWriter
from geminga.bookie.journal_format import FileHeader, encode_group
from geminga.bookie.segment_map import SegmentMap
from geminga.bookie.settings import BookieSettings
from geminga.chaos.sim_disk import SimDisk

TOPICS = {2: "a/two", 5: "a/five", 9: "a/nine"}


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
            found[int(name.split(".")[0])] = {id_: ledger.topic for id_, ledger in footer.ledgers.items()}
    return found


@pytest.mark.parametrize("row_entries_max", [2, 1000])
def test_a_log_that_fills_while_a_ledger_is_written_names_its_topic(row_entries_max: int) -> None:
    disk = SimDisk()
    disk.make_directory("logs")
    settings = BookieSettings(entry_log_bytes=600, row_entries_max=row_entries_max)
    writer = EntryLogWriter(disk, "logs", settings, next_log_id=1)
    writer.write(cache_of((5, 0, [b"x" * 100] * 4), (2, 0, [b"x" * 50] * 3)), TOPICS)
    writer.write(cache_of((5, 4, [b"x" * 100] * 20), (9, 0, [b"x" * 300] * 3)), TOPICS)
    writer.write(cache_of((5, 24, [b"x" * 100]), (9, 3, [b"y"])), TOPICS)
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
    writer.write(cache_of((5, 1, [b"new"]), (2, 0, [b"new"])), {5: "a/five"})
    writer.finish()
    assert topics_by_log(disk) == {1: {2: "", 5: "a/five"}}
