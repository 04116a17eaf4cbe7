"""Zeros behind small groups: the groups that follow are written to blocks that have been written before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from geminga.bookie.journal.files import SMALL_GROUP_BYTES_MAX, ZEROS_BYTES, JournalFiles
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.records.settings import BookieSettings
from geminga.limits import KIB, MIB
from geminga.storage.disk import RealDisk
from geminga.storage.real_file import RealFile

SETTINGS = BookieSettings(journal_file_bytes=MIB, journal_allocate_bytes=256 * KIB)
PAGE_BYTES = SETTINGS.journal_alignment_bytes


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(begin, end) of each write of a group."""
    found: list[tuple[int, int]] = []
    write_synced = RealFile.write_synced

    def noted(file: RealFile, offset: int, parts: Sequence[Any]) -> None:
        found.append((offset, offset + sum(map(len, parts))))
        write_synced(file, offset, parts)

    monkeypatch.setattr(RealFile, "write_synced", noted)
    return found


def journal_in(path: Path, journal_id: int = 1, free: Sequence[str] = ()) -> JournalFiles:
    position = JournalPosition(0, 0)
    return JournalFiles(RealDisk(), str(path), SETTINGS, journal_id=journal_id, previous=position, free=free)


def write(journal: JournalFiles, entry_id: int, body_bytes: int = 1000) -> tuple[int, int]:
    """One group; returns where it begins and ends."""
    before = journal.position.offset
    group = journal.write([(1, entry_id, [b"x" * body_bytes])])
    return before, group.end.offset


def test_one_small_group_writes_zeros_for_those_that_follow(
    tmp_path: Path, writes: list[tuple[int, int]]
) -> None:
    journal = journal_in(tmp_path)
    groups = [write(journal, entry_id) for entry_id in range(40)]
    journal.close()
    written = 0
    for group, (begin, end) in zip(groups, writes, strict=True):
        assert begin == group[0]
        if group[1] > written:
            assert end == group[1] + ZEROS_BYTES
            written = end
        else:
            assert end == group[1]
    with_zeros = [end - begin for begin, end in writes if end - begin > PAGE_BYTES]
    assert len(with_zeros) == 3


def test_a_large_group_has_no_zeros_behind_it(tmp_path: Path, writes: list[tuple[int, int]]) -> None:
    journal = journal_in(tmp_path)
    groups = [write(journal, entry_id, SMALL_GROUP_BYTES_MAX) for entry_id in range(8)]
    journal.close()
    assert writes == groups


def test_a_small_group_behind_large_ones_has(tmp_path: Path, writes: list[tuple[int, int]]) -> None:
    journal = journal_in(tmp_path)
    write(journal, 0, SMALL_GROUP_BYTES_MAX)
    _, end = write(journal, 1)
    journal.close()
    assert writes[-1][1] == end + ZEROS_BYTES


def test_zeros_never_reach_the_end_of_the_reserved_space(
    tmp_path: Path, writes: list[tuple[int, int]]
) -> None:
    """The length of the file would no longer tell that it was cut. The group that ends there looks for it."""
    journal = journal_in(tmp_path)
    [file] = tmp_path.iterdir()
    for entry_id in range(120):
        _, end = write(journal, entry_id)
        reserved = file.stat().st_size
        assert writes[-1][1] < reserved or writes[-1][1] == end == reserved
    journal.close()
    assert end > SETTINGS.journal_allocate_bytes


def test_a_file_that_is_used_again_has_no_zeros_before_its_old_end(
    tmp_path: Path, writes: list[tuple[int, int]]
) -> None:
    old = journal_in(tmp_path)
    old.close()
    [file] = tmp_path.iterdir()
    old_bytes = file.stat().st_size
    journal = journal_in(tmp_path, 2, [str(file)])
    groups = [write(journal, entry_id) for entry_id in range(old_bytes // PAGE_BYTES)]
    journal.close()
    for group, written in zip(groups, writes, strict=True):
        assert (written == group) == (group[1] <= old_bytes)
