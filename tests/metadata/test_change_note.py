"""The note of the metadata's changes: what it says, and that it is never ahead of what is durable."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from geminga.metadata.change_note import CHANGE_NOTE, ChangeNote, Noted, encode_note, read_note
from geminga.storage.disk import RealDisk
from geminga.storage.key_value import RocksKeyValue
from geminga.storage.rocksdb_logs import cut_logs
from simulation.disk.sim_disk import SimDisk

NOTED = Noted("f00d", 12)
BYTES = b"geminga change note, format 1\ninstance=f00d\nchanges=00000000000000000012\ncrc32=4ea215f0\n"


def test_the_format_and_a_note_of_any_other_bytes_is_none(tmp_path: Path) -> None:
    disk, path = RealDisk(), tmp_path / CHANGE_NOTE
    assert encode_note(NOTED) == BYTES
    (tmp_path / CHANGE_NOTE).write_bytes(encode_note(NOTED._replace(is_restoring=True)))
    assert read_note(disk, str(tmp_path)) == NOTED._replace(is_restoring=True)
    (tmp_path / CHANGE_NOTE).unlink()
    assert read_note(disk, str(tmp_path)) is None
    path.write_bytes(BYTES)
    assert read_note(disk, str(tmp_path)) == NOTED
    for torn in (b"", BYTES[:-1], BYTES + b"\n", BYTES.replace(b"12", b"13"), b"\0" * len(BYTES)):
        path.write_bytes(torn)
        assert read_note(disk, str(tmp_path)) is None, torn


def test_each_note_replaces_the_one_before_and_only_the_first_makes_a_file() -> None:
    disk = SimDisk()
    disk.make_directory("/bookie")
    note = ChangeNote(disk, "/bookie", "f00d")
    for changes in (99, 100, 7):
        note.write(changes)
        assert read_note(disk, "/bookie") == Noted("f00d", changes)
    note.close()
    assert disk.list("/bookie") == [CHANGE_NOTE]


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
