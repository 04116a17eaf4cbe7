"""The index is lost after a crash at any point: what the logs and the journal hold is all there again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from geminga.bookie.entry_logs.entry_log_format import encode_footer
from geminga.bookie.entry_logs.scan import read_footer, read_rows, scan_rows
from geminga.bookie.entry_logs.writer import EntryLogWriter
from geminga.bookie.index.ledger_index import LedgerIndex, LedgerRow
from geminga.bookie.journal.inventory import JournalInventory
from geminga.bookie.journal.journal_format import FileHeader, encode_file_header, encode_group
from geminga.bookie.records.file_names import journal_path
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.records.ledger_name import LedgerName
from geminga.bookie.records.segment_map import SegmentMap
from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.recovery import directory_replay, index_rebuild
from geminga.bookie.recovery.directory_replay import DirectoryReplay
from simulation.disk.sim_disk import SimDisk
from simulation.disk.sim_key_value import SimKeyValue

World = Any
MODES = ("drop", "keep", "torn")


def lose_index_after_crashes(
    new_world: Callable[..., World], script: Any, *, step: int, seed: int = 0, age: int | None = None
) -> int:
    at = cases = 0
    ended = False
    while not ended:
        world = new_world(seed + at)
        world.settings = replace(world.settings, journal_free_files_max=at % 3)
        world.disk.crash_at = at
        ended = world.run(script)
        world.crash(MODES[at % 3])
        if cases % 3:
            # After a clean start nothing is in the journal any more, all in the logs.
            world.recover()
            world.crash("drop")
        world.lose_index(age)
        if cases % 2:
            # The rebuild itself is cut short.
            world.disk.crash_at = world.disk.operations + random.Random(at).randrange(25)
            world.recover()
            world.crash("torn")
        world.check()
        cases += 1
        at += step
    return cases


@pytest.mark.parametrize(
    "name", ["trickle", "bursts", "deletions", "fences", "large", "overlaps", "compactions"]
)
def test_nothing_durable_is_lost_with_the_index(
    new_world: Callable[..., World], scripts: Any, name: str
) -> None:
    assert lose_index_after_crashes(new_world, scripts[name], step=2) > 20


AGES = (1, 2, 3, 5)
SEEDS = (0, 7000)
"""Enough for every planted bug to show."""


@pytest.mark.parametrize("age", AGES)
def test_an_old_copy_of_the_index_loses_nothing_either(
    new_world: Callable[..., World], scripts: Any, age: int
) -> None:
    for name in ("bursts", "deletions", "overlaps", "compactions"):
        assert lose_index_after_crashes(new_world, scripts[name], step=5, age=age) > 5


def rows_only_from_closed_logs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(index_rebuild, "scan_rows", lambda *_, **__: [])


def doubled_entries_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(index_rebuild, "_new_parts", lambda covered, row: [row])


def last_log_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = index_rebuild.rebuild_index
    patch.setattr(
        "geminga.bookie.recovery.directory_replay.rebuild_index",
        lambda disk, directory, log_ids, *args, **kwargs: real(
            disk, directory, log_ids[:-1], *args, **kwargs
        ),
    )


@pytest.mark.parametrize("plant", [rows_only_from_closed_logs, doubled_entries_kept, last_log_forgotten])
def test_a_planted_bug_is_caught(
    monkeypatch: pytest.MonkeyPatch, new_world: Callable[..., World], scripts: Any, plant: Callable[..., None]
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, BaseExceptionGroup)):
        all_scripts(new_world, scripts)


def test_trusting_an_old_index_is_caught(
    monkeypatch: pytest.MonkeyPatch, new_world: Callable[..., World], scripts: Any
) -> None:
    monkeypatch.setattr(DirectoryReplay, "check_index", lambda self, is_older: None)
    with pytest.raises((AssertionError, BaseExceptionGroup)):
        for_every_age(new_world, scripts)


def test_not_looking_for_what_compaction_moved_is_caught(
    monkeypatch: pytest.MonkeyPatch, new_world: Callable[..., World], scripts: Any
) -> None:
    monkeypatch.setattr(directory_replay, "find_moved_entries", lambda *_, **__: 0)
    with pytest.raises((AssertionError, BaseExceptionGroup)):
        for_every_age(new_world, scripts)


@pytest.mark.parametrize(("name", "header"), [(1, 2), (2, 1)], ids=["header first", "name first"])
def test_a_journal_that_was_about_to_be_written_over_betrays_an_old_index(name: int, header: int) -> None:
    """The crash came between the file's new name and its new header. Only a later mark lets a journal go."""
    disk = SimDisk()
    disk.make_directory("journal")
    file = disk.create(journal_path("journal", name))
    file.append(encode_file_header(FileHeader(header, 7, 512, 0, 0)))
    journals = JournalInventory(disk, "journal", file_bytes=4096)
    assert journals.starts_after(JournalPosition(1, 0))
    assert journals.starts_after(JournalPosition(1, 2048))
    assert not journals.starts_after(JournalPosition(2, 0))
    assert not journals.starts_after(JournalPosition(3, 0))


def for_every_age(new_world: Callable[..., World], scripts: Any) -> None:
    for age in AGES:
        for name in ("bursts", "compactions"):
            lose_index_after_crashes(new_world, scripts[name], step=5, age=age)


def all_scripts(new_world: Callable[..., World], scripts: Any) -> None:
    for seed in SEEDS:
        for name in ("bursts", "deletions", "overlaps", "compactions"):
            lose_index_after_crashes(new_world, scripts[name], step=2, seed=seed)
    # Some show at a single operation only.
    lose_index_after_crashes(new_world, scripts["bursts"], step=1, seed=2000)


def test_footer_and_scan_agree() -> None:
    disk = SimDisk()
    disk.make_directory("logs")
    cache = SegmentMap()
    header = FileHeader(1, 2, 512, 0, 0)
    for at in range(10):
        batches = [(ledger, at * 3, [b"x" * (ledger + i) for i in range(3)]) for ledger in (5, 2, 900)]
        for segment in encode_group(header, 512, 512, batches)[1]:
            cache.add(segment)
    settings = BookieSettings(row_entries_max=7)
    writer = EntryLogWriter(disk, "logs", settings, next_log_id=4)
    rows = writer.write(cache, {5: LedgerName("data", "a/topic")})
    file = disk.open("logs/00000000000000000004.log")
    assert read_footer(file) is None
    assert listed(read_rows(file, 4, row_entries_max=7)) == listed(rows)
    writer.finish()
    footer = read_footer(file)
    assert footer is not None
    assert {ledger: (usage.entries, *name) for ledger, (usage, name) in footer.ledgers.items()} == {
        2: (30, "", ""),
        5: (30, "data", "a/topic"),
        900: (30, "", ""),
    }
    assert listed(read_rows(file, 4, row_entries_max=7)) == listed(rows)
    assert listed(scan_rows(file, 4, row_entries_max=7)) == listed(rows)
    assert scan_rows(file, 5, row_entries_max=7) == []
    disk.flip_bit("logs/00000000000000000004.log", file.size() - 50, 1)
    assert read_footer(file) is None


def listed(rows: list[LedgerRow]) -> dict[tuple[int, int], tuple[int, int, int]]:
    """Every entry's place and length: rows may be cut differently."""
    places = {}
    for ledger_id, row in rows:
        begin = 0
        for index, end in enumerate(row.ends):
            assert (ledger_id, row.first + index) not in places
            places[ledger_id, row.first + index] = (row.log_id, row.offset + begin, end - begin)
            begin = end
    return places


@pytest.mark.parametrize("harm", ["header", "body", "footer"])
def test_a_damaged_log_without_an_index_costs_no_other_ledger(
    harm: str,
) -> None:
    """A log that was being written has no footer; a closed one may have a damaged one. One flipped bit."""
    disk = SimDisk()
    disk.make_directory("logs")
    cache = SegmentMap()
    batches = [(ledger, 0, [b"%d" % ledger * 50] * 6) for ledger in (1, 2, 3)]
    for segment in encode_group(FileHeader(1, 2, 512, 0, 0), 512, 512, batches)[1]:
        cache.add(segment)
    writer = EntryLogWriter(disk, "logs", BookieSettings(row_entries_max=4), next_log_id=1)
    rows = writer.write(cache, {})
    if harm == "footer":
        writer.finish()
    path = "logs/00000000000000000001.log"
    size = disk.open(path).size()
    row = next(row for ledger_id, row in rows if ledger_id == 2 and row.first == 0)
    damaged = {"header": 10, "body": row.offset + row.ends[1] + 40, "footer": size - 60}[harm]
    disk.flip_bit(path, damaged, 3)
    index = LedgerIndex(SimKeyValue())
    rebuilt = index_rebuild.rebuild_index(disk, "logs", [1], index, row_entries_max=4)
    if harm == "body":
        # What is behind the damage waits until the journals had their turn.
        assert (rebuilt.entries, [index.last_entry_id(ledger_id) for ledger_id in (1, 2, 3)]) == (
            8,
            [5, 1, -1],
        )
    index.add_rows(rebuilt.behind_damage)
    found = [
        entry
        for ledger_id in (1, 2, 3)
        for row in index.rows(ledger_id)
        for entry in range(row.first, row.last + 1)
    ]
    expected = [entry for ledger_id in (1, 2, 3) for entry in range(6)]
    if harm == "body":
        del expected[6 + 2]
    assert found == expected


def test_a_trailer_that_does_not_end_its_file_is_none() -> None:
    """Say one in a message: whoever writes into a log that has no footer yet should not make one up."""
    disk = SimDisk()
    disk.make_directory("logs")
    file = disk.create("logs/00000000000000000001.log")
    file.append(bytes(100) + encode_footer(37, {}, []))
    assert read_footer(file) is None
    file.append(encode_footer(file.size(), {}, []))
    assert read_footer(file) is not None
