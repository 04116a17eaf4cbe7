"""The note of the metadata's changes: what it says, and that it is never ahead of what is durable."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from geminga.metadata.change_note import (
    CHANGE_NOTE,
    ChangeNote,
    History,
    Noted,
    encode_note,
    lacking_changes,
    read_note,
)
from geminga.metadata.records import Start
from geminga.storage.disk import RealDisk
from geminga.storage.key_value import RocksKeyValue
from geminga.storage.rocksdb_logs import cut_logs
from simulation.disk.sim_disk import SimDisk

STARTS = (Start("00000000000000aa", 0), Start("00000000000000bb", 7))
NOTED = Noted("f00d", History(12, STARTS))
BYTES = (
    b"geminga change note, format 2\nstarts=00000000000000aa:0,00000000000000bb:7\ninstance=f00d\n"
    b"changes=00000000000000000012\ncrc32=636d9229\n"
)
EARLIER = b"geminga change note, format 1\ninstance=f00d\nchanges=00000000000000000012\ncrc32=4ea215f0\n"


def test_the_format_and_a_note_of_any_other_bytes_is_none(tmp_path: Path) -> None:
    disk, path = RealDisk(), tmp_path / CHANGE_NOTE
    assert encode_note(NOTED) == BYTES
    others = (
        NOTED._replace(restoring="00000000000000cc"),
        NOTED._replace(history=History(12), before=NOTED.history),
        NOTED._replace(restoring="00000000000000cc", before=History(7)),
    )
    for noted in (NOTED, *others):
        path.write_bytes(encode_note(noted))
        assert read_note(disk, str(tmp_path)) == noted
    path.unlink()
    assert read_note(disk, str(tmp_path)) is None
    path.write_bytes(EARLIER)
    assert read_note(disk, str(tmp_path)) == NOTED._replace(history=History(12))
    for torn in (
        b"",
        BYTES[:-1],
        BYTES.replace(b"12", b"13"),
        BYTES.replace(b"aa", b"ab"),
        bytes(len(BYTES)),
    ):
        path.write_bytes(torn)
        assert read_note(disk, str(tmp_path)) is None, torn


def test_each_note_replaces_the_one_before_and_only_the_first_makes_a_file() -> None:
    disk = SimDisk()
    disk.make_directory("/bookie")
    full = tuple(Start(f"{number:016x}", (1 << 63) - 1) for number in range(16))
    for starts in (full, STARTS, ()):
        # The next one is shorter, and read before the rest of the longer one.
        note = ChangeNote(disk, "/bookie", "f00d" * 8, starts)
        for changes in (99, 100, 7):
            note.write(changes)
            assert read_note(disk, "/bookie") == Noted("f00d" * 8, History(changes, starts))
        note.close()
    assert disk.list("/bookie") == [CHANGE_NOTE]


def test_a_note_that_is_removed_or_replaced_is_made_again() -> None:
    disk = SimDisk()
    disk.make_directory("/bookie")
    note = ChangeNote(disk, "/bookie", "f00d")
    note.write(1)
    disk.unlink(f"/bookie/{CHANGE_NOTE}")
    note.write(2)
    assert read_note(disk, "/bookie") == Noted("f00d", History(2))
    disk.replace_file(f"/bookie/{CHANGE_NOTE}", b"of another process")
    note.write(3)
    assert read_note(disk, "/bookie") == Noted("f00d", History(3))
    note.close()


A, B, C, D = (Start(each * 16, changes) for each, changes in (("a", 0), ("b", 100), ("c", 200), ("d", 150)))
R, S = Start("f" * 16, 70), Start("e" * 16, 90)
FULL = History(300, (A, B, C))


@pytest.mark.parametrize(
    ("starts", "changes", "missing"),
    [
        ([A, B, C], 300, 0),
        ([A, B, C], 290, 10),
        ([A, B], 200, 100),  # a copy from before the last start
        ([A, B], 199, 101),
        ([A, B], 201, None),  # a copy that ran on without a start of its own, under an earlier version
        ([A], 60, 240),
        ([], 0, 300),
        ([], 1, None),  # an earlier version's, from behind the first start that is noted
        ([A, B, C, Start("e" * 16, 300)], 400, 0),  # an older note is left by a power cut
        ([A, B, C, Start("e" * 16, 299)], 400, None),  # a copy that ran on from before the note's end
        ([A, B, D], 1000, None),  # a copy that ran on
        ([A, B, D], 160, None),  # and has fewer changes
        ([D], 1000, None),  # and has no start in common
        ([Start("9" * 16, 0)], 0, 300),  # of more starts ago than the note has
    ],
)
def test_how_many_changes_metadata_lacks(starts: list[Start], changes: int, missing: int | None) -> None:
    assert lacking_changes(Noted("f00d", FULL), History(changes, starts)) == missing


def test_a_note_without_starts_counts_only() -> None:
    assert lacking_changes(Noted("f00d", History(300)), History(250, [A, B])) == 50
    assert lacking_changes(Noted("f00d", History(300)), History(350, [A, B])) == 0


@pytest.mark.parametrize(
    ("starts", "changes", "missing"),
    [
        ([A, R], 80, 0),  # what the command has left
        ([A, R, S], 95, 0),  # and a broker after it
        ([A, R], 79, 1),
        ([A, B, C], 300, 0),  # the right one is put back
        ([A, B], 200, 100),  # a better one, not the right one
        ([A, B, D], 400, None),
    ],
)
def test_behind_a_command_other_metadata_is_compared_with_what_was_before(
    starts: list[Start], changes: int, missing: int | None
) -> None:
    note = Noted("f00d", History(80, (A, R)), before=FULL)
    assert lacking_changes(note, History(changes, starts)) == missing


def test_an_interrupted_command_counts_in_the_metadata_that_it_has_changed() -> None:
    for history, before in ((FULL, None), (History(80, (A, R)), FULL)):
        note = Noted("f00d", history, restoring=S.id, before=before)
        assert lacking_changes(note, History(1000, [A, R, S])) == 1
        assert lacking_changes(note, History(250, [A, S])) == max(1, history.changes - 250)
        assert lacking_changes(note, FULL) == 0


def test_a_note_that_cannot_be_written_is_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    note = ChangeNote(RealDisk(), str(tmp_path / "absent"), "f00d")
    note.write(1)
    note.write(2)
    assert len(caplog.records) == 1


def test_what_is_noted_is_in_the_log_that_a_power_cut_leaves(tmp_path: Path) -> None:
    values = RocksKeyValue(str(tmp_path / "metadata"))
    assert values.synced_changes == 0
    values.write([(b"a", b"1"), (b"b", b"2")], sync=True)
    first = values.synced_changes
    values.write([(b"c", b"3")], sync=False)
    assert values.synced_changes == first
    values.write([], [b"a"], sync=True)
    synced = values.synced_changes
    path = str(tmp_path / "copy")
    shutil.copytree(tmp_path / "metadata", path)
    values.close()
    # The mark behind the sync is not synced itself.
    cut_logs(RealDisk(), path, synced)
    left = RocksKeyValue(path, read_only=True)
    assert left.found_changes == synced > first
    left.close()
