"""A database notices the files that something else removes, and writes them again from what it has open."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from geminga.errors import CorruptData, StorageError
from geminga.storage.disk_errors import DiskFull
from geminga.storage.key_value import RocksKeyValue
from geminga.storage.rocksdb import Database

ROWS = 300


@pytest.fixture
def values(tmp_path: Path) -> Iterator[RocksKeyValue]:
    database = RocksKeyValue(str(tmp_path / "db"), write_buffer_bytes=64 << 10)
    database.write(rows("flushed"), sync=True)
    database.close()
    database = RocksKeyValue(str(tmp_path / "db"), write_buffer_bytes=64 << 10)
    database.write(rows("logged"), sync=True)
    yield database
    database.close()


def rows(name: str) -> list[tuple[bytes, bytes]]:
    return [(f"{name}-{number:06d}".encode(), b"x" * 100) for number in range(ROWS)]


def remove(path: Path, pattern: str) -> list[str]:
    removed = sorted(path.glob(pattern))
    for file in removed:
        file.unlink()
    return [str(file) for file in removed]


@pytest.mark.parametrize("pattern", ["*.log", "*.sst", "MANIFEST-*", "CURRENT", "*"])
def test_removed_files_are_named_and_written_again(
    values: RocksKeyValue, tmp_path: Path, pattern: str
) -> None:
    assert values.gone_files() == []
    removed = remove(tmp_path / "db", pattern)
    named = values.gone_files()
    assert named
    assert set(named) <= set(removed)
    if pattern != "*":
        assert named == removed
    assert values.write_files_again() == []
    with pytest.raises(StorageError, match="files were removed"):
        values.write([(b"late", b"")], sync=True)
    values.close()
    again = RocksKeyValue(str(tmp_path / "db"))
    assert list(again.scan(b"", b"\xff")) == rows("flushed") + rows("logged")
    again.close()


@pytest.mark.parametrize("is_written", [False, True])
def test_a_cut_log_is_named_and_what_it_had_is_written_again(
    values: RocksKeyValue, tmp_path: Path, is_written: bool
) -> None:
    assert values.gone_files() == []
    [cut] = (tmp_path / "db").glob("*.log")
    os.truncate(cut, 0)
    if is_written:  # the file is as long as before then, with a hole
        values.write([(b"z", b"")], sync=True)
    assert values.gone_files() == [str(cut)]
    assert values.write_files_again() == []
    values.close()
    again = RocksKeyValue(str(tmp_path / "db"))
    late = [(b"z", b"")] if is_written else []
    assert list(again.scan(b"", b"\xff")) == rows("flushed") + rows("logged") + late
    again.close()


@pytest.mark.parametrize("pattern", ["*.sst", "MANIFEST-*"])
def test_cut_tables_and_manifests_are_named(values: RocksKeyValue, tmp_path: Path, pattern: str) -> None:
    assert values.gone_files() == []
    cut = next((tmp_path / "db").glob(pattern))
    os.truncate(cut, 20)
    assert values.gone_files() == [str(cut)]


def test_a_table_that_nothing_has_open_stays_named(values: RocksKeyValue, tmp_path: Path) -> None:
    table = next((tmp_path / "db").glob("*.sst"))
    away = tmp_path / "away"
    table.rename(away)  # its descriptor shows the new name, as that of a closed file shows none
    assert values.gone_files() == [str(table)]
    assert values.write_files_again() == [str(table)]
    values.close()
    with pytest.raises(CorruptData):
        RocksKeyValue(str(tmp_path / "db"))
    away.rename(table)
    RocksKeyValue(str(tmp_path / "db")).close()


def test_a_log_is_copied_if_the_database_cannot_be_flushed(
    values: RocksKeyValue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(database: Database) -> None:
        raise Exception("IO error: No space left on device")

    monkeypatch.setattr(Database, "begin_log", fail)
    remove(tmp_path / "db", "*")
    assert values.write_files_again() == []
    values.close()
    again = RocksKeyValue(str(tmp_path / "db"))
    assert list(again.scan(b"", b"\xff")) == rows("flushed") + rows("logged")
    again.close()


def test_a_directory_that_was_replaced_is_named(values: RocksKeyValue, tmp_path: Path) -> None:
    """Copies in it would be hidden when the right disk is mounted again."""
    (tmp_path / "db").rename(tmp_path / "away")
    (tmp_path / "db").mkdir()
    assert values.gone_files() == [str(tmp_path / "db")]
    assert values.write_files_again() == [str(tmp_path / "db")]
    assert list((tmp_path / "db").iterdir()) == []
    values.close()
    again = RocksKeyValue(str(tmp_path / "away"))
    assert list(again.scan(b"", b"\xff")) == rows("flushed") + rows("logged")
    again.close()


def test_what_the_database_itself_deletes_is_no_alarm(tmp_path: Path) -> None:
    """Each write buffer is full at once, so logs, tables and merges follow each other as fast as they can."""
    values = RocksKeyValue(str(tmp_path / "db"), write_buffer_bytes=64 << 10)
    written = threading.Event()

    def write() -> None:
        for round_number in range(60):
            puts = [(os.urandom(4), os.urandom(500)) for _ in range(150)]
            values.write(puts, sync=round_number % 5 == 0)
        written.set()

    thread = threading.Thread(target=write)
    thread.start()
    seen: set[str] = set()
    looks = 0
    try:
        while not written.is_set():
            assert values.gone_files() == []
            seen.update(os.listdir(tmp_path / "db"))
            looks += 1
    finally:
        thread.join()
    assert looks > 10
    assert len(seen - set(os.listdir(tmp_path / "db"))) > 5, "it has deleted nothing"
    values.close()


@pytest.mark.parametrize("pattern", ["*.log", "*.sst"])
def test_files_of_the_same_name_are_no_replacement(
    values: RocksKeyValue, tmp_path: Path, pattern: str
) -> None:
    assert values.gone_files() == []
    for path in (replaced := sorted((tmp_path / "db").glob(pattern))):
        (tmp_path / "other").write_bytes(b"")
        (tmp_path / "other").rename(path)
    assert values.gone_files() == [str(path) for path in replaced]
    assert values.write_files_again() == []
    values.close()
    again = RocksKeyValue(str(tmp_path / "db"))
    assert list(again.scan(b"", b"\xff")) == rows("flushed") + rows("logged")
    again.close()


@pytest.mark.parametrize("applied", [False, True])
def test_a_log_that_is_removed_just_before_the_disk_is_full(
    values: RocksKeyValue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    """To take the failed write back, the database would be closed, and with it the removed log."""
    done = values._database.apply

    def full(*arguments: Any) -> None:
        if applied:
            done(*arguments)
        raise Exception(
            "IO error: No space left on device: While appending to file: /d: No space left on device"
        )

    remove(tmp_path / "db", "*.log")
    with monkeypatch.context() as patch:
        patch.setattr(values._database, "apply", full)
        with pytest.raises(StorageError, match="removed, moved, replaced or cut short"):
            values.write([(b"late", b"")], sync=True)
    assert values.gone_files()
    assert values.write_files_again() == []
    values.close()
    again = RocksKeyValue(str(tmp_path / "db"))
    assert list(again.scan(b"", b"\xff")) == rows("flushed") + rows("logged")
    again.close()


@pytest.mark.parametrize("pattern", ["*.log", "*.sst", "MANIFEST-*", "CURRENT", "*"])
def test_files_removed_on_a_full_disk(
    values: RocksKeyValue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    """The database is open for reading only then, and has its logs in memory."""

    def full(*arguments: object) -> None:
        raise Exception(
            "IO error: No space left on device: While appending to file: /d: No space left on device"
        )

    with monkeypatch.context() as patch:
        patch.setattr(values._database, "apply", full)
        with pytest.raises(DiskFull):
            values.write([(b"late", b"")], sync=True)
    assert values.gone_files() == []
    removed = remove(tmp_path / "db", pattern)
    named = values.gone_files()
    assert named
    assert set(named) <= set(removed)
    # There is space by now, and an opening would make new files.
    with pytest.raises(DiskFull, match="removed, moved, replaced or cut short"):
        values.write([(b"late", b"")], sync=True)
    assert values.write_files_again() == []
    values.close()
    again = RocksKeyValue(str(tmp_path / "db"))
    assert list(again.scan(b"", b"\xff")) == rows("flushed") + rows("logged")
    again.close()
