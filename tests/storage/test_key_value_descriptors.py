"""RocksDB without descriptors: nothing that was confirmed is lost, no batch is applied in part, no disk has
failed. By the process' real limit, which RocksDB's own threads meet too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from geminga.errors import CorruptData, StorageError
from geminga.storage.descriptor_wait import DescriptorWait, OutOfDescriptors
from geminga.storage.disk_errors import DiskFull
from geminga.storage.key_value import RocksKeyValue
from geminga.storage.rocksdb_errors import shortage, translated

if sys.platform == "win32":
    pytest.skip("has no limit of descriptors", allow_module_level=True)
import resource

WRITE_BUFFER_BYTES = 1 << 17
SOFT, HARD = resource.getrlimit(resource.RLIMIT_NOFILE)


class Shortage:
    """Only those that are open may be used until `make_room` was called so often."""

    def __init__(self, tries: int = 3) -> None:
        self.tries = 0
        self.tries_max = tries
        self.wait = DescriptorWait()
        self.wait.begin(self.make_room)

    def begin(self, files_max: int = 3) -> None:
        self.tries = 0
        resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, HARD))

    def make_room(self) -> None:
        self.tries += 1
        if self.tries >= self.tries_max:
            self.end()

    def end(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, HARD))


@pytest.fixture
def lack() -> Iterator[Shortage]:
    shortage = Shortage()
    yield shortage
    shortage.end()


def files_max_with(free: int) -> int:
    """The limit that leaves `free` descriptors: it bounds their numbers, not how many are in use."""
    files_max = 0
    while True:
        try:
            os.fstat(files_max)
        except OSError:
            if not free:
                return files_max
            free -= 1
        files_max += 1


def row(number: int) -> tuple[bytes, bytes]:
    return b"k%06d" % number, b"%06d" % number * 200


def rows(key_value: RocksKeyValue) -> list[tuple[bytes, bytes]]:
    return list(key_value.scan(b"k", b"l"))


def opened(path: Path, lack: Shortage | None = None) -> RocksKeyValue:
    wait = lack.wait if lack is not None else None
    return RocksKeyValue(str(path), write_buffer_bytes=WRITE_BUFFER_BYTES, descriptors=wait)


def fill(key_value: RocksKeyValue, count: int, *, sync: bool = True, first: int = 0) -> None:
    for number in range(first, first + count):
        key_value.write([row(number)], sync=sync)


@pytest.mark.parametrize("sync", [True, False])
def test_a_write_that_needs_a_new_log_waits_and_all_before_it_stays(
    sync: bool, lack: Shortage, tmp_path: Path
) -> None:
    key_value = opened(tmp_path / "db", lack)
    fill(key_value, 50, sync=sync)
    lack.begin()
    number = 50
    while not lack.tries:
        # Of one batch: both or neither.
        key_value.write([row(number), (b"z%06d" % number, b"")], [b"k%06d" % (number - 50)], sync=sync)
        number += 1
    assert number < 200
    assert lack.tries == 3
    expected = [row(left) for left in range(number - 50, number)]
    assert rows(key_value) == expected
    fill(key_value, 200, sync=sync, first=number)
    expected += [row(late) for late in range(number, number + 200)]
    assert rows(key_value) == expected
    key_value.close()
    again = opened(tmp_path / "db")
    assert rows(again) == expected
    assert [key for key, _ in again.scan(b"z", b"zz")] == [b"z%06d" % n for n in range(50, number)]
    again.close()


def test_what_a_log_that_was_not_synced_holds_is_synced_before_it_goes(
    lack: Shortage, tmp_path: Path
) -> None:
    """Opening anew makes tables of all logs, and RocksDB syncs those."""
    key_value = opened(tmp_path / "db", lack)
    fill(key_value, 50, sync=False)
    lack.begin()
    with pytest.raises(Exception, match="Too many open files"):
        key_value._database._db.flush(True)
    key_value.flush()
    assert lack.tries == 3
    assert sum(log.stat().st_size for log in (tmp_path / "db").glob("*.log")) < 100
    assert rows(key_value) == [row(number) for number in range(50)]
    key_value.close()


@pytest.mark.parametrize("doing", ["flush", "merge", "checkpoint"])
def test_what_fails_in_the_background_fails_no_write(doing: str, lack: Shortage, tmp_path: Path) -> None:
    key_value = opened(tmp_path / "db", lack)
    database = key_value._database._db
    for part in range(3):
        fill(key_value, 20, first=20 * part)
        database.flush(True)
    fill(key_value, 20, first=60)
    lack.begin()
    if doing == "flush":
        with pytest.raises(Exception, match="While open a file for appending: .*: Too many open files"):
            database.flush(True)
    elif doing == "merge":
        database.compact_range(None, None)
    else:
        key_value.checkpoint(str(tmp_path / "copy"))
        copy = opened(tmp_path / "copy")
        assert rows(copy) == [row(number) for number in range(80)]
        copy.close()
    key_value.write([row(80)], sync=True)
    key_value.flush()
    assert lack.tries == 3
    assert key_value._database._db is not database
    assert rows(key_value) == [row(number) for number in range(81)]
    key_value.close()
    again = opened(tmp_path / "db")
    assert rows(again) == [row(number) for number in range(81)]
    again.close()


def many_tables(path: Path, lack: Shortage | None, monkeypatch: pytest.MonkeyPatch) -> RocksKeyValue:
    """With so many that only some are open: 60 of two rows each."""
    monkeypatch.setattr("geminga.storage.rocksdb_options.OPEN_FILES_MAX", 20)
    key_value = opened(path, lack)
    key_value._database._db.set_options({"disable_auto_compactions": "true"})
    for number in range(60):
        fill(key_value, 2, first=2 * number)
        key_value._database._db.flush(True)
    return key_value


def test_reads_of_tables_that_are_not_open_are_tried_again(
    lack: Shortage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_value = many_tables(tmp_path / "db", lack, monkeypatch)
    waited = 0
    lack.tries_max = 1
    for number in range(0, 120, 2):
        lack.begin()
        assert key_value.get(row(number)[0]) == row(number)[1]
        waited += bool(lack.tries)
    assert waited
    lack.begin()
    assert rows(key_value) == [row(number) for number in range(120)]
    assert lack.tries == 1
    key_value.close()
    lack.end()
    key_value = opened(tmp_path / "db", lack)
    lack.begin()
    assert [key_value.last_before(row(n)[0] + b"\0", b"k") for n in range(120)] == [
        row(n) for n in range(120)
    ]
    assert lack.tries == 1
    key_value.close()


async def test_on_the_loop_a_read_is_refused_at_once(
    lack: Shortage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_value = many_tables(tmp_path / "db", lack, monkeypatch)
    lack.begin()
    with pytest.raises(OutOfDescriptors, match="db: cannot scan now: Too many open files; try again"):
        rows(key_value)
    assert lack.tries == 0
    lack.end()
    assert rows(key_value) == [row(number) for number in range(120)]
    key_value.close()


def test_without_waiting_a_write_is_refused_and_all_after_it(lack: Shortage, tmp_path: Path) -> None:
    """As at a start: whether it is on disk is not known then."""
    key_value = opened(tmp_path / "db")
    lack.begin()
    with pytest.raises(OutOfDescriptors, match="db: cannot write now: Too many open files; try again"):
        fill(key_value, 300)
    lack.end()
    with pytest.raises(StorageError, match="refused after an earlier failure"):
        key_value.write([row(1000)], sync=True)
    found = len(rows(key_value))
    assert 50 < found < 300
    key_value.close()
    again = opened(tmp_path / "db")
    assert rows(again) == [row(number) for number in range(found)]
    again.close()


def test_a_scan_goes_on_as_of_its_start(lack: Shortage, tmp_path: Path) -> None:
    """The write that finds the database failed is applied again after the scan was put in its place."""
    key_value = opened(tmp_path / "db", lack)
    fill(key_value, 50)
    scan = key_value.scan(b"k", b"l")
    read = [next(scan) for _ in range(10)]
    lack.begin()
    with pytest.raises(Exception, match="Too many open files"):
        key_value._database._db.flush(True)
    key_value.write([(b"k000030x", b"")], [row(20)[0]], sync=True)
    assert lack.tries == 3
    assert [key_value.get(key) for key in (b"k000030x", row(20)[0])] == [b"", None]
    assert read + list(scan) == [row(number) for number in range(50)]
    key_value.close()


def test_a_scan_that_cannot_go_on_as_of_its_start_says_so(lack: Shortage, tmp_path: Path) -> None:
    key_value = opened(tmp_path / "db", lack)
    fill(key_value, 50)
    scan = key_value.scan(b"k", b"l")
    assert next(scan) == row(0)
    lack.begin()
    fill_until_short(key_value, lack)
    with pytest.raises(OutOfDescriptors, match="cannot go on with a scan.*try again") as refused:
        list(scan)
    lack.begin()
    fill_until_short(key_value, lack)
    assert refused.tb is not None, "kept until here, and does not keep the database open"
    scan = key_value.scan(b"k", b"l")
    assert next(scan) == row(0)
    key_value.close()
    with pytest.raises(StorageError, match="closed during a scan"):
        next(scan)


def fill_until_short(key_value: RocksKeyValue, lack: Shortage) -> None:
    number = 100_000
    while not lack.tries:
        key_value.write([row(number)], sync=True)
        number += 1


def test_others_read_while_a_write_waits_and_while_it_is_opened_anew(lack: Shortage, tmp_path: Path) -> None:
    key_value = opened(tmp_path / "db", lack)
    fill(key_value, 50)
    has_begun, over = threading.Event(), threading.Event()
    seen: list[int] = []
    failures: list[Exception] = []

    def read() -> None:
        try:
            while not over.is_set():
                assert key_value.get(row(7)[0]) == row(7)[1]
                assert key_value.memory_bytes() > 0
                seen.append(sum(1 for _ in key_value.scan(b"k", b"k000050")))
                has_begun.set()
        except Exception as error:
            failures.append(error)
            has_begun.set()

    lack.tries_max = 5
    reader = threading.Thread(target=read)
    reader.start()
    has_begun.wait()
    lack.begin()
    fill_until_short(key_value, lack)
    over.set()
    reader.join()
    assert failures == []
    assert set(seen) == {50}
    key_value.close()


@pytest.mark.parametrize("free", [0, 1, 3, 6])
def test_a_shortage_that_begins_again_while_it_is_opened_anew_is_waited_for(
    free: int, lack: Shortage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("geminga.storage.key_value.can_open", lambda files: True)
    key_value = opened(tmp_path / "db", lack)
    fill(key_value, 50)
    read: list[bytes | None] = []

    def make_room() -> None:
        lack.make_room()
        resource.setrlimit(resource.RLIMIT_NOFILE, (3 + free if lack.tries < 4 else SOFT, HARD))
        if lack.tries == 4:
            reader.start()

    reader = threading.Thread(target=lambda: read.append(key_value.get(row(7)[0])))
    lack.wait.begin(make_room)
    with contextlib.ExitStack() as held:
        for _ in range(3 + free):  # the lowest numbers, so that `free` of them are left for it
            held.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        lack.begin()
        fill(key_value, 150, first=50)
        reader.join()
        assert lack.tries >= 4
    assert read == [row(7)[1]]
    assert rows(key_value) == [row(number) for number in range(200)]
    key_value.close()
    again = opened(tmp_path / "db")
    assert rows(again) == [row(number) for number in range(200)]
    again.close()


async def test_on_the_loop_a_database_that_is_being_opened_anew_is_not_waited_for(
    lack: Shortage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("geminga.storage.key_value.can_open", lambda files: True)
    key_value = opened(tmp_path / "db", lack)
    fill(key_value, 50)
    lack.tries_max = 10**9
    lack.begin()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, fill, key_value, 150)
        while True:
            try:
                assert key_value.get(row(7)[0]) == row(7)[1]
            except OutOfDescriptors as error:
                assert str(error).endswith("db: cannot read now: Too many open files; try again")  # noqa: PT017
                break
            await trio.lowlevel.checkpoint()
        assert key_value.memory_bytes() >= 0
        lack.end()
    assert rows(key_value) == [row(number) for number in range(150)]
    key_value.close()


def test_closing_without_descriptors_leaves_all_in_a_synced_log(lack: Shortage, tmp_path: Path) -> None:
    key_value = opened(tmp_path / "db")
    fill(key_value, 50, sync=False)
    lack.begin()
    key_value.close()
    lack.end()
    again = opened(tmp_path / "db")
    assert rows(again) == [row(number) for number in range(50)]
    again.close()


def test_opening_with_too_few_descriptors_says_so_and_loses_nothing(lack: Shortage, tmp_path: Path) -> None:
    """At whichever file it is that cannot be opened."""
    path = tmp_path / "db"
    key_value = opened(path)
    fill(key_value, 90, sync=False)
    lack.begin()
    key_value.close()
    lack.end()
    refused = 0
    for free in range(33):
        lack.begin(files_max_with(free))
        try:
            again = opened(path)
        except OutOfDescriptors as error:
            assert f"{path}" in str(error)  # noqa: PT017
            assert str(error).endswith("now: Too many open files; try again")  # noqa: PT017
            refused += 1
            continue
        finally:
            lack.end()
        assert rows(again) == [row(number) for number in range(90)]
        fill(again, 1)
        again.close()
    assert 5 < refused < 30, refused


def test_only_an_open_without_descriptors_or_memory_is_no_failure() -> None:
    for number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        words = os.strerror(number)
        for text in (
            "While open a file for appending: /d/000008.log",
            "While open a file for random read: /d/000137.sst",
            "While opendir: /d",
            "While opening a file for sequentially reading: /d/CURRENT",
            "while open a file for lock: /d/LOCK",
            "when fopen a file for new log: /d/LOG",
        ):
            assert shortage(f"IO error: {text}: {words}") == words, text
            assert shortage(f"Invalid argument: Found something: IO error: {text}: {words}") == words, text
    for text in (
        "IO error: While appending to file: /d/000008.log: Cannot allocate memory",
        "IO error: While fdatasync: /d/000008.log: Cannot allocate memory",
        "IO error: While pread offset 0 len 5: /d/000008.sst: Cannot allocate memory",
        "IO error: While open a file for appending: /d/000008.log: Input/output error",
        "IO error: No space left on device: While open a file for appending: /d/000008.log",
        "Corruption: block checksum mismatch in /d/000008.sst",
    ):
        assert shortage(text) == "", text
        assert type(translated(text, "write", "/d")) is (
            CorruptData if text.startswith("Corruption") else DiskFull if "No space" in text else StorageError
        )


def test_a_database_that_is_damaged_when_it_is_opened_anew_stays_failed(
    lack: Shortage, tmp_path: Path
) -> None:
    key_value = opened(tmp_path / "db", lack)
    fill(key_value, 50)

    def damage_and_make_room() -> None:
        os.pwrite(descriptor, bytes((os.pread(descriptor, 1, 200)[0] ^ 1,)), 200)
        lack.end()

    lack.wait.begin(damage_and_make_room)
    (log,) = (tmp_path / "db").glob("*.log")
    descriptor = os.open(log, os.O_RDWR)
    lack.begin()
    with pytest.raises(CorruptData, match="damaged at offset .* in data that was synced"):
        fill(key_value, 300, first=50)
    with pytest.raises(StorageError, match="refused after an earlier failure: .*damaged"):
        key_value.write([row(1)], sync=True)
    with pytest.raises(StorageError, match="refused after an earlier failure: .*damaged"):
        key_value.get(row(1)[0])
    key_value.close()
    os.close(descriptor)
