"""A full disk under RocksDB: what was refused is nowhere, and what was confirmed is there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from geminga.errors import StorageError
from geminga.storage.disk_errors import DiskFull
from geminga.storage.key_value import RocksKeyValue
from geminga.storage.rocksdb_log_format import Part, end_of_writes, read_log
from geminga.storage.rocksdb_logs import cut_logs
from simulation.disk.sim_disk import SimDisk
from simulation.disk.sim_inode import CrashMode

NO_SPACE = "IO error: No space left on device: While {}: /d/000004.log: No space left on device"
MODES: tuple[CrashMode, ...] = ("drop", "keep", "torn")
LOG = "db/000004.log"
EVER = 1 << 60


def rows_of(values: RocksKeyValue) -> list[tuple[bytes, bytes]]:
    return list(values.scan(b"", b"\xff"))


def failing(values: RocksKeyValue, monkeypatch: pytest.MonkeyPatch, step: str, *, applied: bool) -> None:
    """From now on this step of the open database finds no space, before or after it was done."""
    done: Callable[..., None] = getattr(values._database, step)

    def fail(*arguments: object) -> None:
        if applied:
            done(*arguments)
        raise Exception(NO_SPACE.format("appending to file" if step == "apply" else "fdatasync"))

    monkeypatch.setattr(values._database, step, fail)


@pytest.mark.parametrize(("step", "applied"), [("apply", False), ("sync", False), ("sync", True)])
def test_a_refused_write_is_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, applied: bool
) -> None:
    """Also if all of it is in the log, and if it was even synced."""
    path = str(tmp_path / "db")
    values = RocksKeyValue(path)
    values.write([(b"a", b"1"), (b"b", b"1")], sync=True)
    scan = values.scan(b"", b"\xff")
    assert next(scan) == (b"a", b"1")
    with monkeypatch.context() as full:
        failing(values, full, step, applied=applied)
        with pytest.raises(DiskFull, match="disk full, cannot write"):
            values.write([(b"a", b"2"), (b"c", b"2")], [b"b"], sync=True)
    with monkeypatch.context() as still_full:
        still_full.setattr(values._database, "has_room_to_open", lambda: False)
        with pytest.raises(DiskFull, match="disk full, cannot write"):
            values.write([(b"d", b"2")], sync=True)
        assert rows_of(values) == [(b"a", b"1"), (b"b", b"1")]
        assert list(scan) == [(b"b", b"1")], "a scan that was under way goes on"
        killed = tmp_path / "killed"
        shutil.copytree(path, killed)
    after_kill = RocksKeyValue(str(killed))
    assert rows_of(after_kill) == [(b"a", b"1"), (b"b", b"1")]
    after_kill.close()
    values.write([(b"e", b"3")], sync=True)
    assert rows_of(values) == [(b"a", b"1"), (b"b", b"1"), (b"e", b"3")]
    values.close()
    values = RocksKeyValue(path)
    assert rows_of(values) == [(b"a", b"1"), (b"b", b"1"), (b"e", b"3")]
    values.close()


def test_an_opening_that_runs_out_of_space_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = RocksKeyValue(str(tmp_path / "db"))
    values.write([(b"a", b"1")], sync=True)
    with monkeypatch.context() as full:
        failing(values, full, "apply", applied=False)
        with pytest.raises(DiskFull):
            values.write([(b"b", b"1")], sync=True)
    opened = values._database._opened

    def no_space(*, read_only: bool) -> object:
        if read_only:
            return opened(read_only=True)
        raise DiskFull("db: disk full, cannot open")

    with monkeypatch.context() as full:
        full.setattr(values._database, "_opened", no_space)
        for _ in range(2):
            with pytest.raises(DiskFull, match="cannot open"):
                values.write([(b"b", b"2")], sync=True)
            assert rows_of(values) == [(b"a", b"1")]
    values.write([(b"b", b"3")], sync=True)
    assert rows_of(values) == [(b"a", b"1"), (b"b", b"3")]
    values.close()


def test_a_refused_write_in_a_table_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocksDB has found space by itself, and has flushed the batch: that cannot be taken back."""
    values = RocksKeyValue(str(tmp_path / "db"))
    values.write([(b"a", b"1")], sync=True)

    def flush_and_fail() -> None:
        values._database.flush_tables()
        raise Exception(NO_SPACE.format("fdatasync"))

    monkeypatch.setattr(values._database, "sync", flush_and_fail)
    with pytest.raises(StorageError, match="opened after a full disk") as failure:
        values.write([(b"b", b"1")], sync=True)
    assert not isinstance(failure.value, DiskFull)
    with pytest.raises(StorageError, match="refused after an earlier failure"):
        values.write([(b"c", b"1")], sync=True)
    values.close()


def test_a_database_on_a_full_disk_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = RocksKeyValue(str(tmp_path / "db"))
    values.write([(b"a", b"1")], sync=True)

    def full(path: str) -> None:
        raise Exception(NO_SPACE.format("appending to file").replace("/d/", f"{values.path}/"))

    monkeypatch.setattr(values._database, "checkpoint", full)
    values.checkpoint(str(tmp_path / "copy"))
    copy = RocksKeyValue(str(tmp_path / "copy"))
    assert rows_of(copy) == [(b"a", b"1")]
    copy.close()
    values.write([(b"b", b"1")], sync=True)
    values.close()


def test_a_full_target_of_a_copy_says_nothing_of_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = RocksKeyValue(str(tmp_path / "db"))
    with monkeypatch.context() as full:
        failing(values, full, "checkpoint", applied=False)
        with pytest.raises(DiskFull, match="cannot copy to"):
            values.checkpoint(str(tmp_path / "copy"))
    values.write([(b"a", b"1")], sync=True)
    values.close()


# ---- a log on the simulated disk


def log_of(directory: Path) -> tuple[bytes, bytes, int]:
    """The bytes of a write-ahead log of RocksDB: what was confirmed, one more batch, and the last confirmed
    sequence number.
    """
    values = RocksKeyValue(str(directory))
    for number in range(3):
        values.write([(b"key %d" % number, b"x" * 700)], sync=True)
    sequence = values._confirmed
    (log,) = directory.glob("*.log")
    confirmed = log.read_bytes()
    values.write([(b"refused", b"y" * 1500)], sync=True)
    both = log.read_bytes()
    values.close()
    (batch, *_) = [part for part in read_log(both[len(confirmed) :]) if isinstance(part, Part)]
    return confirmed, both[len(confirmed) :][: 7 + len(batch.payload)], sequence


def test_a_log_that_a_full_disk_cuts_short(tmp_path: Path) -> None:
    """No space in the middle of an append, at any byte, or at its sync; with and without a power cut before
    and after the refused batch is taken back.
    """
    confirmed, batch, sequence = log_of(tmp_path / "db")
    assert end_of_writes(confirmed + batch, EVER) == len(confirmed + batch), "the whole batch would be read"
    for fitting in (*range(0, len(batch), 13), len(batch) - 1, len(batch)):
        for mode in MODES:
            disk = SimDisk(seed=fitting)
            disk.make_directory("db")
            file = disk.create(LOG)
            file.append(confirmed)
            file.sync()
            disk.sync_directory("db")
            if fitting < len(batch):
                disk.space_bytes = len(confirmed) + fitting
                with pytest.raises(DiskFull):
                    file.append(batch)
            else:
                file.append(batch)
                disk.faults.fail("sync")
                with pytest.raises(StorageError):
                    file.sync()
            if fitting % 2:
                # Killed before the answer: the batch is torn, and nothing of it is read.
                disk.crash(mode)
                content = disk.read_file(LOG)
                assert content.startswith(confirmed)
                assert end_of_writes(content, EVER) == len(confirmed)
            cut_logs(disk, "db", sequence)
            assert disk.read_file(LOG) == confirmed
            disk.crash(mode)
            assert disk.read_file(LOG) == confirmed


def test_a_cut_takes_later_logs_too(tmp_path: Path) -> None:
    confirmed, batch, sequence = log_of(tmp_path / "db")
    disk = SimDisk()
    disk.make_directory("db")
    for name, content in ((LOG, confirmed + batch), ("db/000007.log", batch)):
        file = disk.create(name)
        file.append(content)
        file.sync()
    cut_logs(disk, "db", sequence)
    assert (disk.read_file(LOG), disk.read_file("db/000007.log")) == (confirmed, b"")


# ---- a real full disk

SCRIPT = """
import os, subprocess, sys
from geminga.storage.disk_errors import DiskFull
from geminga.storage.key_value import RocksKeyValue
root = sys.argv[1]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "none", root], check=True)
path, filler = f"{root}/db", f"{root}/filler"

def fill(left):
    facts = os.statvfs(root)
    with open(filler, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, facts.f_bavail * facts.f_frsize - left)

def rows():
    return dict(values.scan(b"", b"~"))

values = RocksKeyValue(path)
expected = {}
for turn in range(2):
    fill(4096 * turn)
    for number in range(40):
        key, value = b"%d/%d" % (turn, number), os.urandom(1500)
        try:
            values.write([(key, value)], sync=True)
        except DiskFull:
            continue
        expected[key] = value
    assert len(expected) < 40 * (turn + 1) - 10, "the disk was not full"
    assert rows() == expected
    os.unlink(filler)
    values.write([(b"again", b"%d" % turn)], sync=True)
    expected[b"again"] = b"%d" % turn
    assert rows() == expected
    if turn % 2:
        fill(0)
        values.close()
        os.unlink(filler)
        values = RocksKeyValue(path)
        assert rows() == expected
values.close()
"""


def test_a_tmpfs_that_is_full(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user cannot mount a file system in a namespace of its own (unshare -rm)")
    command = ["unshare", "-rm", sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
