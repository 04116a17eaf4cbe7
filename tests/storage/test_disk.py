"""What every disk promises, held against the machine's own and the simulated one; and what only a real one
has.
"""

from __future__ import annotations

import errno
import io
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from geminga.errors import StorageError
from geminga.storage import real_file
from geminga.storage.descriptor_wait import OutOfDescriptors
from geminga.storage.disk import Disk, RealDisk
from geminga.storage.disk_errors import DirectoryInUse, DiskFull, SpecialFile, storage_error
from geminga.storage.key_value import RocksKeyValue
from geminga.storage.real_file import Buffer
from simulation.disk.sim_disk import SimDisk
from tests.e2e.child_process import running


@pytest.fixture(params=["real", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    if request.param == "real":
        return RealDisk(), str(tmp_path)
    simulated = SimDisk()
    simulated.make_directory("data")
    return simulated, "data"


def test_a_file_is_written_and_read_at_offsets(place: tuple[Disk, str]) -> None:
    disk, directory = place
    file = disk.create(f"{directory}/a")
    assert file.append(b"hello") == 0
    assert file.append_many([b" ", bytearray(b"wor"), memoryview(b"ld")]) == 5
    assert file.size() == 11
    file.pwrite(0, b"J")
    file.pwrite_many(13, (b"x", b"", b"yz"))
    assert file.pread(0, 100) == b"Jello world\0\0xyz"
    assert file.pread(4, 3) == b"o w"
    assert file.pread(100, 5) == b""
    assert file.append(b"!") == 16
    file.truncate(5)
    file.allocate(8)
    file.allocate(2)
    file.sync()
    file.drop_cache(0, 8)
    file.close()
    again = disk.open(f"{directory}/a")
    assert again.size() == 8
    assert again.append(b"end") == 8
    assert again.pread(0, 20) == b"Jello\0\0\0end"
    again.close()
    assert disk.read_file(f"{directory}/a") == b"Jello\0\0\0end"


def test_what_is_written_and_synced_in_one_call(place: tuple[Disk, str]) -> None:
    disk, directory = place
    file = disk.create(f"{directory}/a")
    file.write_synced(0, (b"one", b"", bytearray(b"two"), memoryview(b"three")))
    assert file.size() == 11
    file.allocate(20)
    file.write_synced(3, [b"TWO"])
    assert file.size() == 20
    parts = [bytes([i % 251]) * (i % 5) for i in range(5000)]
    file.write_synced(30, parts)
    assert file.append(b"end") == 30 + 10_000
    assert file.pread(0, 1 << 20) == b"oneTWOthree" + bytes(19) + b"".join(parts) + b"end"
    file.close()


def test_more_parts_than_one_call_takes(place: tuple[Disk, str]) -> None:
    disk, directory = place
    parts = [bytes([i % 251]) * (i % 5) for i in range(5000)]
    file = disk.create(f"{directory}/a")
    file.append(b"head")
    assert file.append_many(parts) == 4
    assert file.pread(0, 1 << 20) == b"head" + b"".join(parts)
    file.close()


def test_names(place: tuple[Disk, str]) -> None:
    disk, directory = place
    disk.make_directory(f"{directory}/deep/er")
    disk.make_directory(f"{directory}/deep/er")
    for name in ("b", "a"):
        disk.create(f"{directory}/deep/er/{name}").close()
    disk.sync_directory(f"{directory}/deep/er")
    assert disk.list(f"{directory}/deep/er") == ["a", "b"]
    assert disk.exists(f"{directory}/deep/er/a")
    disk.rename(f"{directory}/deep/er/a", f"{directory}/deep/er/b")
    assert disk.list(f"{directory}/deep/er") == ["b"]
    disk.unlink(f"{directory}/deep/er/b")
    assert not disk.exists(f"{directory}/deep/er/b")


def test_replacing_a_file(place: tuple[Disk, str]) -> None:
    disk, directory = place
    for data in (b"one", b"two, longer", b""):
        disk.replace_file(f"{directory}/a", data)
        assert disk.read_file(f"{directory}/a") == data
    assert disk.list(directory) == ["a"]


def test_errors_name_the_file_and_what_was_tried(place: tuple[Disk, str]) -> None:
    disk, directory = place
    with pytest.raises(StorageError, match=r"gone: cannot open"):
        disk.open(f"{directory}/gone")
    with pytest.raises(StorageError, match=r"gone: cannot delete"):
        disk.unlink(f"{directory}/gone")
    disk.create(f"{directory}/there").close()
    with pytest.raises(StorageError, match=r"there: cannot create"):
        disk.create(f"{directory}/there")
    with pytest.raises(StorageError, match=r"nowhere/a: cannot create"):
        disk.create(f"{directory}/nowhere/a")


def test_a_directory_is_locked_once(place: tuple[Disk, str]) -> None:
    disk, directory = place
    lock = disk.lock(directory)
    with pytest.raises(DirectoryInUse, match="already in use by"):
        disk.lock(directory)
    lock.release()
    disk.lock(directory).release()


async def test_work_runs_where_it_may_block(place: tuple[Disk, str]) -> None:
    disk, _ = place
    assert await disk.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await disk.run(divmod, 7, 0)
    if isinstance(disk, RealDisk):
        assert await disk.run(threading.get_ident) != threading.get_ident()
    else:
        assert await disk.run(threading.get_ident) == threading.get_ident()


def test_the_lock_names_the_process_that_has_it(tmp_path: Path) -> None:
    code = (
        "import sys; from geminga.storage.disk import RealDisk; lock = RealDisk().lock(sys.argv[1]);"
        " print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(DirectoryInUse, match=rf"already in use by process {process.pid}$"):
            RealDisk().lock(str(tmp_path))
        process.kill()
        process.wait()
        assert process.stdin is not None
    RealDisk().lock(str(tmp_path)).release()


def test_a_full_disk_has_its_own_error() -> None:
    assert isinstance(storage_error(OSError(errno.ENOSPC, "No space left"), "write", "x"), DiskFull)
    assert not isinstance(storage_error(OSError(errno.EIO, "I/O error"), "write", "x"), DiskFull)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_failed_write_is_a_storage_error() -> None:
    file = RealDisk(for_owner=False).open("/dev/full")
    with pytest.raises(DiskFull, match="/dev/full: disk full, cannot write: No space left"):
        file.pwrite(0, b"x")
    with pytest.raises(DiskFull, match="/dev/full: disk full, cannot write"):
        file.pwrite_many(0, [b"x", b"y"])
    file.close()


def test_a_failed_sync_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    file = RealDisk().create(str(tmp_path / "a"))
    monkeypatch.setattr(real_file, "_sync", broken)
    with pytest.raises(StorageError, match=r"a: cannot sync: Input/output error"):
        file.sync()
    file.close()


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(real_file, "_pwrite", lambda fd, data, at: real(fd, bytes(data[:3]), at))
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: real(fd, b"".join(parts)[:2], at), raising=False)
    file = RealDisk().create(str(tmp_path / "a"))
    file.append(b"0123456789")
    file.append_many([b"abcd", b"efgh", b"i"])
    assert file.pread(0, 100) == b"0123456789abcdefghi"
    file.close()


class Calls:
    """The calls by which real files are written and synced, in order, each with its bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, keeps_dsync: bool) -> None:
        self.made: list[tuple[str, bytes]] = []
        self.bytes_max = 1 << 30
        """More a single call does not take."""
        self.errors: list[int] = []
        """Of the next writes that ask for a sync."""
        real = os.pwrite

        def write(name: str, descriptor: int, data: bytes, at: int) -> int:
            self.made.append((name, data[: self.bytes_max]))
            return real(descriptor, data[: self.bytes_max], at)

        def pwritev(descriptor: int, parts: list[Buffer], at: int, flags: int = 0) -> int:
            if flags and self.errors:
                self.made.append(("refused", b""))
                number = self.errors.pop(0)
                raise OSError(number, os.strerror(number))
            assert len(parts) <= 1024
            assert flags in (0, os.RWF_DSYNC)
            return write("write+sync" if flags else "write", descriptor, b"".join(parts), at)

        monkeypatch.setattr(os, "pwritev", pwritev)
        monkeypatch.setattr(real_file, "_pwrite", lambda fd, data, at: write("write", fd, bytes(data), at))
        monkeypatch.setattr(real_file, "_sync", lambda descriptor: self.made.append(("sync", b"")))
        monkeypatch.setattr(real_file, "_keeps_dsync", lambda descriptor: keeps_dsync)


needs_dsync = pytest.mark.skipif(not hasattr(os, "RWF_DSYNC"), reason="a system without RWF_DSYNC")


@needs_dsync
@pytest.mark.parametrize("keeps_dsync", [True, False])
def test_a_write_is_synced_by_its_call_where_the_file_system_keeps_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps_dsync: bool
) -> None:
    calls = Calls(monkeypatch, keeps_dsync=keeps_dsync)
    file = RealDisk().create(str(tmp_path / "a"))
    file.write_synced(0, [b"ab", b"cd"])
    assert calls.made == ([("write+sync", b"abcd")] if keeps_dsync else [("write", b"abcd"), ("sync", b"")])
    file.close()


@needs_dsync
def test_each_part_of_a_write_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag syncs what its own call has written, and nothing else."""
    calls = Calls(monkeypatch, keeps_dsync=True)
    file = RealDisk().create(str(tmp_path / "a"))
    calls.bytes_max = 3
    file.write_synced(5, [b"ab", b"", b"cdef", b"g"])
    assert calls.made == [("write+sync", data) for data in (b"abc", b"def", b"g")]
    assert file.pread(0, 100) == bytes(5) + b"abcdefg"
    assert file.size() == 12
    calls.made.clear()
    calls.bytes_max = 1000
    parts = [b"%04d" % number for number in range(1500)]
    file.write_synced(0, parts)
    assert {name for name, _ in calls.made} == {"write+sync"}
    assert b"".join(data for _, data in calls.made) == b"".join(parts)
    assert file.pread(0, 10_000) == b"".join(parts)
    file.close()


@needs_dsync
@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS])
def test_a_system_that_refuses_the_call_gets_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    calls = Calls(monkeypatch, keeps_dsync=True)
    file = RealDisk().create(str(tmp_path / "a"))
    file.write_synced(0, [b"before"])
    calls.made.clear()
    calls.errors = [number]
    file.write_synced(6, [b"a", b"b"])
    file.write_synced(8, [b"c"])
    assert calls.made == [
        ("refused", b""),
        ("write", b"ab"),
        ("sync", b""),
        ("write", b"c"),
        ("sync", b""),
    ]
    assert file.pread(0, 10) == b"beforeabc"
    file.close()


@needs_dsync
def test_a_write_with_its_sync_that_fails_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch, keeps_dsync=True)
    file = RealDisk().create(str(tmp_path / "a"))
    calls.errors = [errno.EIO, errno.ENOSPC, errno.ENOMEM]
    with pytest.raises(StorageError, match=r"a: cannot write and sync: Input/output error"):
        file.write_synced(0, [b"x"])
    with pytest.raises(DiskFull, match=r"a: disk full, cannot write and sync: No space left"):
        file.write_synced(0, [b"x"])
    with pytest.raises(StorageError, match=r"a: cannot write and sync: Cannot allocate"):
        file.write_synced(0, [b"x"])
    assert calls.made == [("refused", b"")] * 3
    file.close()


@pytest.mark.skipif(sys.platform != "linux", reason="looks at the file systems of Linux")
def test_file_systems_that_keep_the_flag_are_known_by_their_number(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    found = 0
    for path in (tmp_path / "a", Path("/proc/self/stat"), Path("/dev/shm"), Path("/dev/null")):
        told = subprocess.run(["stat", "-f", "-c", "%t", path], capture_output=True, text=True, check=False)
        if told.returncode == 0:
            found += 1
            descriptor = os.open(path, os.O_RDONLY)
            keeps = told.stdout.strip() in ("ef53", "58465342", "9123683e")
            assert real_file._keeps_dsync(descriptor) == keeps, path
            os.close(descriptor)
    assert found >= 2


def test_there_is_free_space(tmp_path: Path) -> None:
    assert 0 < RealDisk().free_bytes(str(tmp_path)) <= RealDisk().total_bytes(str(tmp_path))


async def test_cancelling_waits_for_the_call(tmp_path: Path) -> None:
    started, finish = threading.Event(), threading.Event()
    done = []

    def work() -> None:
        started.set()
        finish.wait()
        done.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(RealDisk().run, work)
        await trio.to_thread.run_sync(started.wait)
        nursery.cancel_scope.cancel()
        finish.set()
    assert done == [True]


def test_a_lock_is_held_even_where_its_owner_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.FileIO):
        def write(self, data: Buffer) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(io, "FileIO", Full)
    lock = RealDisk().lock(str(tmp_path))
    with pytest.raises(DirectoryInUse, match="already in use by another process"):
        RealDisk().lock(str(tmp_path))
    lock.release()
    RealDisk().lock(str(tmp_path)).release()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
async def test_an_open_without_descriptors_waits_until_there_are_some(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off the loop, between `descriptors.begin` and `descriptors.stop`; else it is refused."""
    disk, directory, path = RealDisk(), str(tmp_path), str(tmp_path / "a")
    disk.create(path).close()
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: disk.create(path + "2").close(),
        "open": lambda: disk.open(path).close(),
        "list": lambda: disk.list(directory),
        "sync_directory": lambda: disk.sync_directory(directory),
        "read_file": lambda: disk.read_file(path),
    }
    shortages = 0
    tries: list[str] = []

    def short(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            if shortages > len(tries):
                raise OSError(number, os.strerror(number))
            return real(*arguments, **options)

        return call

    for module, name in ((os, "open"), (os, "listdir"), (io, "FileIO")):
        monkeypatch.setattr(module, name, short(getattr(module, name)))
    for name, call in calls.items():
        shortages, tries = 1, []
        with pytest.raises(OutOfDescriptors, match=f"^{directory}.*: cannot .* now: .*; try again$"):
            await disk.run(call)
        assert tries == [], name
    disk.descriptors.begin(lambda: tries.append("try"))
    for name, call in calls.items():
        shortages, tries = 2, []
        with pytest.raises(OutOfDescriptors):
            call()  # on the loop
        await disk.run(call)
        assert len(tries) == 2, name
    shortages = 10**9
    async with trio.open_nursery() as nursery:

        async def refused_at_the_end() -> None:
            with pytest.raises(OutOfDescriptors):
                await disk.run(calls["open"])

        nursery.start_soon(refused_at_the_end)
        await trio.testing.wait_all_tasks_blocked()
        disk.descriptors.stop()


def test_a_sync_or_a_write_without_memory_is_a_failed_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk()
    disk.descriptors.begin(lambda: None)
    file = disk.create(str(tmp_path / "a"))

    def no_memory(*arguments: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(real_file, "_sync", no_memory)
    monkeypatch.setattr(real_file, "_pwrite", no_memory)
    for failing in (file.sync, partial(file.pwrite, 0, b"x")):
        with pytest.raises(StorageError) as failure:
            failing()
        assert not isinstance(failure.value, OutOfDescriptors)
    file.close()


def test_a_lock_that_is_a_link_is_refused_and_its_target_stays(tmp_path: Path) -> None:
    target = tmp_path / "letters"
    target.write_text("dear")
    for name, points_to in (("a", target), ("b", tmp_path / "nothing"), ("c", Path(os.devnull))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").symlink_to(points_to)
        with pytest.raises(StorageError, match=rf"{name}/lock: is a link or no file.*remove it"):
            RealDisk().lock(str(tmp_path / name))
    (tmp_path / "d" / "lock").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"d/lock: is a link or no file"):
        RealDisk().lock(str(tmp_path / "d"))
    assert target.read_text() == "dear"
    assert not (tmp_path / "nothing").exists()


def test_what_is_created_is_its_owners_alone(tmp_path: Path) -> None:
    disk, data = RealDisk(), str(tmp_path / "new" / "data")
    before = os.umask(0)  # the mask takes nothing away here
    try:
        disk.make_directory(data)
        disk.create(f"{data}/created").close()
        disk.replace_file(f"{data}/replaced", b"x")
        disk.lock(data).release()
        shared = RealDisk(for_owner=False)
        shared.make_directory(f"{data}/shared")
        shared.create(f"{data}/shared/created").close()
    finally:
        os.umask(before)
    assert modes_below(tmp_path / "new") == {
        ".": 0o700,
        "data": 0o700,
        "data/created": 0o600,
        "data/lock": 0o600,
        "data/replaced": 0o600,
        "data/shared": 0o777,
        "data/shared/created": 0o666,
    }


def test_an_older_directory_and_lock_are_closed_to_others(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir(0o755)
    (old / "lock").touch(0o644)
    RealDisk().lock(str(old)).release()
    RealDisk().close_to_others(str(old))
    assert modes_below(old) == {".": 0o700, "lock": 0o600}


def modes_below(directory: Path) -> dict[str, int]:
    found = [directory, *directory.rglob("*")]
    return {str(path.relative_to(directory)): path.stat().st_mode & 0o777 for path in found}


@pytest.fixture(params=["FIFO", "socket", "device"])
def special(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """In a directory of its own, beside a file and a link to it."""
    path = tmp_path / "directory" / "special"
    path.parent.mkdir()
    (path.parent / "file").write_bytes(b"here")
    (path.parent / "link").symlink_to("file")
    (path.parent / "loop").symlink_to("loop")
    if request.param == "FIFO":
        os.mkfifo(path)
    elif request.param == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.path.relpath(path))
    else:
        path.symlink_to("/dev/zero")
    return path


# A reader of a FIFO waits for a writer, and one of /dev/zero for the end: neither would ever come.
@pytest.mark.skipif(sys.platform == "win32", reason="a system without FIFOs")
def test_what_is_no_file_is_not_opened(special: Path, request: pytest.FixtureRequest) -> None:
    disk, path = RealDisk(), str(special)
    kind = request.node.callspec.params["special"]
    for call in (disk.open, disk.read_file, lambda path: next(disk.read_pieces(path, 9))):
        with pytest.raises(SpecialFile, match=rf"^{path}: this is a {kind}.*Move it away, put the file"):
            call(path)
    with pytest.raises(SpecialFile, match=path):
        disk.refuse_special_files(str(special.parent))
    with pytest.raises(SpecialFile, match=path):
        RocksKeyValue(str(special.parent))
    special.unlink()
    disk.refuse_special_files(str(special.parent))
    assert disk.read_file(str(special.parent / "link")) == b"here"


@pytest.mark.skipif(sys.platform == "win32", reason="a system without FIFOs")
def test_a_file_of_the_user_may_be_a_pipe(tmp_path: Path) -> None:
    """As `--conf <(...)` is for a shell."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(b"given",))
    writer.start()
    assert RealDisk(for_owner=False).read_file(str(path)) == b"given"
    writer.join()
