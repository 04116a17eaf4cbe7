"""The only door to files. Everything that opens, writes, syncs or renames a file does it here.

The real disk stands below; `simulation.disk.sim_disk` has one that crashes. Both keep these promises:

- What was written is durable once `File.sync` has returned; a name (created, renamed, unlinked) once
  `sync_directory` of its directory has returned.
- A failure is a `StorageError` that names the file. A failed sync is final: the kernel may have dropped the
  pages and called them clean, so a second sync would lie. The caller stops using the file.

Methods block. On the event loop only those that do no I/O worth waiting for may be called; all else goes
through `Disk.run`.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

import trio

from geminga.errors import StorageError
from geminga.storage.descriptor_wait import SHORTAGES, Attempts, DescriptorWait

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview

WORKERS_MAX = 8
"""Blocking calls that may be under way at once through `RealDisk.run`."""
_VECTORS_MAX = 1024
FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
"""What holds messages is its owner's alone; the process' mask may take more away."""


class DirectoryInUse(StorageError):
    """Another process holds the directory's lock."""


class DiskFull(StorageError):
    """No space left: nothing was promised, and freeing space helps."""


class File(Protocol):
    """One open file. Offsets and lengths in bytes. One writer at a time; `pread` on any thread."""

    path: str

    def append(self, data: Buffer) -> int:
        """Write at the end; returns the offset it was written at."""
        ...

    def append_many(self, parts: Sequence[Buffer]) -> int:
        """Write all parts, one after the other, at the end; returns the offset of the first."""
        ...

    def pwrite(self, offset: int, data: Buffer) -> None: ...

    def pwrite_many(self, offset: int, parts: Sequence[Buffer]) -> None:
        """Write all parts, one after the other, from `offset`."""
        ...

    def pread(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; shorter only at the end of the file."""
        ...

    def size(self) -> int: ...

    def sync(self) -> None:
        """Everything written so far survives a power cut on return (not the name: see `sync_directory`)."""
        ...

    def allocate(self, length: int) -> None:
        """Make the file at least `length` bytes long, new bytes zero, their space reserved where possible."""
        ...

    def truncate(self, length: int) -> None: ...

    def drop_cache(self, offset: int, length: int) -> None:
        """A hint: these synced bytes will not be read soon, the page cache may let them go."""
        ...

    def close(self) -> None: ...


class DirectoryLock(Protocol):
    """Held until `release` or the end of the process."""

    def release(self) -> None: ...


class Disk(Protocol):
    """Files by path. Paths are strings, `/`-joined below a data directory."""

    @property
    def descriptors(self) -> DescriptorWait:
        """What to do when nothing can be opened; for what opens files of its own, too."""
        ...

    def create(self, path: str) -> File:
        """A new, empty file; StorageError if the name exists. The name is durable after `sync_directory`."""
        ...

    def open(self, path: str) -> File:
        """An existing file, for reading and writing; appends go to its end."""
        ...

    def exists(self, path: str) -> bool: ...

    def rename(self, old: str, new: str) -> None:
        """Replaces `new` if it exists. Both in one directory, durable after `sync_directory`."""
        ...

    def unlink(self, path: str) -> None: ...

    def list(self, directory: str) -> list[str]:
        """Names in the directory, sorted."""
        ...

    def make_directory(self, path: str) -> None:
        """Create it and its parents, all durable on return; nothing happens if it exists."""
        ...

    def close_to_others(self, path: str) -> None:
        """Take group and others off a directory that an earlier version made: all below is out of their reach
        then. Left as it is where the system refuses.
        """
        ...

    def sync_directory(self, path: str) -> None: ...

    def identity(self, path: str) -> tuple[int, int] | None:
        """Which directory or file the path leads to: the same for as long as that one is there under this
        name. None if there is none.
        """
        ...

    def free_bytes(self, path: str) -> int:
        """What this user may still write there."""
        ...

    def total_bytes(self, path: str) -> int:
        """Free and used together, without what is reserved for others."""
        ...

    def read_file(self, path: str) -> bytes: ...

    def replace_file(self, path: str, data: bytes) -> None:
        """After a crash the file holds either what it held before or all of `data`; durable on return."""
        ...

    def lock(self, path: str) -> DirectoryLock:
        """Claim the directory for this process; DirectoryInUse names the process that has it."""
        ...

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Call `function(*args)` where blocking is allowed. Cancelling waits for the call to finish."""
        ...


def storage_error(error: OSError, doing: str, path: str) -> StorageError:
    """Ours for the system's, with the file's name and the system's own words."""
    text = f"{path}: cannot {doing}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(text)
    return StorageError(text)


@contextlib.contextmanager
def _translated(doing: str, path: str):  # type: ignore[no-untyped-def]
    try:
        yield
    except OSError as error:
        raise storage_error(error, doing, path) from error


if sys.platform == "darwin":
    import fcntl

    def _sync(descriptor: int) -> None:
        # fsync on macOS stops at the drive's cache; F_FULLFSYNC empties that too. Some file systems refuse.
        try:
            # macOS's fsync leaves the data in the drive's cache; only this survives a power cut.
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
            os.fsync(descriptor)
else:
    # fdatasync is enough: it writes the length when that has changed, and journals are allocated in advance.
    _sync = getattr(os, "fdatasync", os.fsync)


class RealFile:
    """A descriptor and the offset where the next append goes."""

    __slots__ = ("_descriptor", "_end", "path")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        # Kept here: O_APPEND would make the kernel choose, and the offset has to be known for the index's
        # row.
        self._end = os.fstat(descriptor).st_size

    def append(self, data: Buffer) -> int:
        offset = self._end
        self.pwrite(offset, data)
        return offset

    def append_many(self, parts: Sequence[Buffer]) -> int:
        offset = self._end
        self.pwrite_many(offset, parts)
        return offset

    def pwrite_many(self, offset: int, parts: Sequence[Buffer]) -> None:
        # The kernel refuses more vectors than IOV_MAX with EINVAL.
        for first in range(0, len(parts), _VECTORS_MAX):
            offset = self._write_vector(offset, parts[first : first + _VECTORS_MAX])

    def pwrite(self, offset: int, data: Buffer) -> None:
        with _translated("write", self.path):
            written = _pwrite(self._descriptor, data, offset)
            length = len(data)
            while written < length:
                # The kernel takes at most 2 GiB at once, and less on a full disk: the next call says which.
                written += _pwrite(self._descriptor, memoryview(data)[written:], offset + written)
        self._end = max(self._end, offset + length)

    def pread(self, offset: int, length: int) -> bytes:
        with _translated("read", self.path):
            data = _pread(self._descriptor, length, offset)
            # A signal or the end of the file may cut a read short; only an empty one is the end.
            while len(data) < length:
                more = _pread(self._descriptor, length - len(data), offset + len(data))
                if not more:
                    break
                data += more
            return data

    def size(self) -> int:
        return self._end

    def sync(self) -> None:
        with _translated("sync", self.path):
            _sync(self._descriptor)

    def allocate(self, length: int) -> None:
        if length <= self._end:
            return
        with _translated("reserve space", self.path):
            if sys.platform != "win32" and hasattr(os, "posix_fallocate"):
                # Real blocks and not a hole: writing into a hole allocates at the sync, which is slow, and
                # fails for want of space when an entry has been accepted already.
                os.posix_fallocate(self._descriptor, self._end, length - self._end)
            else:
                os.ftruncate(self._descriptor, length)
        self._end = length

    def truncate(self, length: int) -> None:
        with _translated("truncate", self.path):
            os.ftruncate(self._descriptor, length)
        self._end = length

    def drop_cache(self, offset: int, length: int) -> None:
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._descriptor, offset, length, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write_vector(self, position: int, parts: Sequence[Buffer]) -> int:
        length = sum(map(len, parts))
        written = 0
        if sys.platform != "win32" and hasattr(os, "pwritev"):
            with _translated("write", self.path):
                written = os.pwritev(self._descriptor, parts, position)
        if written < length:
            self.pwrite(position + written, memoryview(b"".join(parts))[written:])
        self._end = max(self._end, position + length)
        return position + length


if sys.platform == "win32":
    # No positioned reads and writes there: a seek and a call, one at a time.
    _seek_lock = threading.Lock()

    def _pwrite(descriptor: int, data: Buffer, offset: int) -> int:
        with _seek_lock:
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.write(descriptor, data)

    def _pread(descriptor: int, length: int, offset: int) -> bytes:
        with _seek_lock:
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.read(descriptor, length)
else:
    _pwrite = os.pwrite
    _pread = os.pread


class RealDisk:
    """The machine's own file systems.

    An open that fails for want of descriptors or memory raises OutOfDescriptors at once. Between
    `descriptors.begin` and `descriptors.stop` it is tried until it succeeds instead, except on the event
    loop: the storage stands still meanwhile, and nothing is lost.

    Files and directories that it creates are for their owner alone, unless `for_owner` is False: then the
    process' mask decides, as for what any program writes for its user.
    """

    def __init__(self, *, for_owner: bool = True) -> None:
        self._file_mode, self._directory_mode = (FILE_MODE, DIRECTORY_MODE) if for_owner else (0o666, 0o777)
        self._limiter: trio.CapacityLimiter | None = None
        self.descriptors: Final = DescriptorWait()

    def create(self, path: str) -> File:
        return self._open_file(path, os.O_CREAT | os.O_EXCL, "create")

    def open(self, path: str) -> File:
        return self._open_file(path, 0, "open")

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def rename(self, old: str, new: str) -> None:
        with _translated(f"rename to {new}", old):
            os.replace(old, new)

    def unlink(self, path: str) -> None:
        with _translated("delete", path):
            os.unlink(path)

    def list(self, directory: str) -> list[str]:
        return sorted(self._opened(functools.partial(os.listdir, directory), "list", directory))

    def make_directory(self, path: str) -> None:
        path = os.path.abspath(path)
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        self.make_directory(parent)
        with _translated("create directory", path):
            os.mkdir(path, self._directory_mode)
        # Each level by itself: a directory whose own name is not durable takes all its files with it in a
        # power cut.
        self.sync_directory(parent)

    def close_to_others(self, path: str) -> None:
        with contextlib.suppress(OSError):
            # Only ever narrower: an operator may have closed a directory further than we would.
            mode = stat.S_IMODE(os.stat(path).st_mode)
            if mode & 0o077:
                os.chmod(path, mode & ~0o077)

    def sync_directory(self, path: str) -> None:
        if sys.platform == "win32":
            return  # a directory cannot be opened there; NTFS journals names
        descriptor = self._opened(functools.partial(os.open, path, os.O_RDONLY), "sync directory", path)
        with _translated("sync directory", path):
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def identity(self, path: str) -> tuple[int, int] | None:
        try:
            facts = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_error(error, "look", path) from error
        return facts.st_dev, facts.st_ino

    def free_bytes(self, path: str) -> int:
        if sys.platform == "win32":
            return shutil.disk_usage(path).free
        with _translated("ask for free space", path):
            facts = os.statvfs(path)
        return facts.f_bavail * facts.f_frsize

    def total_bytes(self, path: str) -> int:
        if sys.platform == "win32":
            return shutil.disk_usage(path).total
        with _translated("ask for space", path):
            facts = os.statvfs(path)
        return (facts.f_blocks - facts.f_bfree + facts.f_bavail) * facts.f_frsize

    def read_file(self, path: str) -> bytes:
        opened: io.FileIO = self._opened(functools.partial(io.FileIO, path), "read", path)
        with opened as file, _translated("read", path):
            return file.readall()

    def replace_file(self, path: str, data: bytes) -> None:
        temporary = path + ".tmp"
        if self.exists(temporary):
            self.unlink(temporary)
        file = self.create(temporary)
        try:
            file.append(data)
            file.sync()
        finally:
            file.close()
        # Write, sync, rename, sync: a reader after a crash finds the old content or the new one, never half
        # of it.
        self.rename(temporary, path)
        self.sync_directory(os.path.dirname(path) or ".")

    def remove_tree(self, path: str) -> None:
        """The directory and all below it, links themselves and not what they lead to."""
        with _translated("delete", path):
            shutil.rmtree(path)

    def size_of(self, path: str) -> int:
        """Of a file that need not be opened for it."""
        with _translated("look", path):
            return os.stat(path).st_size

    def lock(self, path: str) -> DirectoryLock:
        return RealDirectoryLock(path)

    async def run(self, function: Callable[..., T], *args: object) -> T:
        if self._limiter is None:
            # Not trio's default of 40 shared by the whole process: DNS look-ups or an export must not keep
            # reads waiting.
            self._limiter = trio.CapacityLimiter(WORKERS_MAX)
        return await trio.to_thread.run_sync(functools.partial(function, *args), limiter=self._limiter)

    def _open_file(self, path: str, flags: int, doing: str) -> File:
        flags |= os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        descriptor = self._opened(functools.partial(os.open, path, flags, self._file_mode), doing, path)
        with _translated(doing, path):
            return RealFile(path, descriptor)

    def _opened(self, call: Callable[[], T], doing: str, path: str) -> T:
        """What `call` opens. StorageError, OutOfDescriptors among them."""
        attempts = Attempts(self.descriptors, path, doing)
        while True:
            try:
                opened = call()
            except OSError as error:
                if error.errno not in SHORTAGES:
                    raise storage_error(error, doing, path) from error
                attempts.failed(error.strerror or str(error))
            else:
                attempts.succeeded()
                return opened


class RealDirectoryLock:
    """An advisory lock on the file `lock` in the directory; it holds the owner's process id as text.

    The system lets it go when the process ends, however it ends.
    """

    def __init__(self, path: str) -> None:
        name = os.path.join(path, "lock")
        file = _open_lock(name)
        try:
            _claim(file)
        except OSError as error:
            owner = _owner(file)
            file.close()
            # Other errors (a file system without locks) must stop the start: unlocked, two brokers would
            # write the same files.
            if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK):
                raise storage_error(error, "lock", name) from error
            holder = f"process {owner}" if owner.isdigit() else "another process"
            raise DirectoryInUse(f"{path}: already in use by {holder}") from None
        with contextlib.suppress(OSError):  # on a full disk, say: the lock is held, it only lacks a name
            file.truncate(0)
            file.write(b"%d\n" % os.getpid())
        self._file = file

    def release(self) -> None:
        """Let go. The file stays: if it were removed, two later owners could lock different files."""
        self._file.close()


def _open_lock(name: str) -> io.FileIO:
    """Created if absent; emptied by the process that gets the lock, so it has to be a file of its own."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    # The owner's number is written by truncating the file, so a link planted here would empty its target.
    refused = f"{name}: is a link or no file, and its target would be emptied: remove it, and start again"
    if os.path.islink(name) or (os.path.exists(name) and not os.path.isfile(name)):
        raise StorageError(refused)
    try:
        descriptor = os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), FILE_MODE)
    except OSError as error:
        if error.errno == errno.ELOOP:  # it has become a link since
            raise StorageError(refused) from None
        raise storage_error(error, "lock", name) from error
    with contextlib.suppress(OSError):  # of an earlier version; a process that may read it may hold the lock
        os.chmod(name, FILE_MODE)
    return io.FileIO(descriptor, "a+")


def _owner(file: io.FileIO) -> str:
    """What the lock's file says; "" if it cannot be read."""
    with contextlib.suppress(OSError):
        file.seek(0)
        return file.read(20).decode("ascii", "replace").strip()
    return ""


if sys.platform == "win32":
    import msvcrt

    def _claim(file: io.FileIO) -> None:
        # A byte far behind the text, so that the owner's number stays readable.
        os.lseek(file.fileno(), 1 << 20, os.SEEK_SET)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _claim(file: io.FileIO) -> None:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
