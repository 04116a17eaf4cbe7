"""The only way to files. All code that opens, writes, syncs or renames a file calls a `Disk`.

The real disk is below, with its files in `real_file.py` and its lock in `directory_lock.py`.
`simulation.disk.sim_disk` has one that crashes. Both keep these promises:

- Written bytes are durable once `File.sync` has returned, those of `File.write_synced` once that has. A name
  (created, renamed, unlinked) is durable once `sync_directory` of its directory has returned.
- A failure is a `StorageError` that names the file. A failed sync is final: the kernel may have dropped the
  pages and marked them clean, so a second sync would falsely succeed. The caller stops using the file.

Methods block. The event loop may only call methods without significant I/O; all others go through
`Disk.run`.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol, TypeVar

import trio

from geminga.errors import StorageError
from geminga.storage.descriptor_wait import SHORTAGES, Attempts, DescriptorWait
from geminga.storage.directory_lock import RealDirectoryLock, RealFolderLock
from geminga.storage.disk_errors import is_read_only, refuse_special, storage_error, translated
from geminga.storage.real_file import FILE_MODE, Buffer, RealFile

T = TypeVar("T")

UNLIMITED_BYTES = 1 << 62

WORKERS_MAX = 8
"""The limit of blocking calls that `RealDisk.run` runs at a time."""
DIRECTORY_MODE = 0o700
"""As `FILE_MODE`, for directories."""


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
        """Write all parts, one after the other, from `offset` on."""
        ...

    def write_synced(self, offset: int, parts: Sequence[Buffer]) -> None:
        """As `pwrite_many`, and these bytes survive a power cut on return, with the length that they need;
        of other writes nothing is promised. In one system call where the file system is known to keep it. A
        failure is final as that of a sync: the bytes may be there, and may get lost.
        """
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
        """A hint: these synced bytes will not be read soon, so the page cache may drop them."""
        ...

    def close(self) -> None: ...


class DirectoryLock(Protocol):
    """Held until `release` or the end of the process."""

    def release(self) -> None: ...


class Disk(Protocol):
    """Files by path. Paths are strings, `/`-joined below a data directory."""

    @property
    def descriptors(self) -> DescriptorWait:
        """What to do when no file can be opened. Code that opens files of its own uses it, too."""
        ...

    def create(self, path: str) -> File:
        """A new, empty file; StorageError if the name exists. The name is durable after `sync_directory`."""
        ...

    def open(self, path: str) -> File:
        """An existing file, for reading and writing; appends go to its end."""
        ...

    def exists(self, path: str) -> bool:
        """Raises StorageError if that cannot be told, as in a directory that may not be searched."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Replaces `new` if it exists. Both in one directory, durable after `sync_directory`."""
        ...

    def unlink(self, path: str) -> None: ...

    def list(self, directory: str) -> list[str]:
        """Names in the directory, sorted."""
        ...

    def make_directory(self, path: str) -> None:
        """Create the directory and its parents, all durable on return. Does nothing if it exists."""
        ...

    def close_to_others(self, path: str) -> None:
        """Deny group and others access to a directory of an earlier version, and so to all files below it.
        Does nothing if the system refuses.
        """
        ...

    def sync_directory(self, path: str) -> None: ...

    def identity(self, path: str) -> tuple[int, int] | None:
        """The identity of the directory or file at the path: constant as long as that file has this name.
        None if there is none.
        """
        ...

    def size(self, path: str) -> int | None:
        """The length of the file at the path in bytes; None if there is none."""
        ...

    def free_bytes(self, path: str) -> int:
        """Bytes that this user may still write; `UNLIMITED_BYTES` if the file system counts no blocks."""
        ...

    def free_inodes(self, path: str) -> int | None:
        """Files that this user may still create; None if the file system has no limit of its own."""
        ...

    def total_bytes(self, path: str) -> int:
        """Free and used bytes together, without those reserved for other users; `UNLIMITED_BYTES` if the file
        system counts no blocks.
        """
        ...

    def read_file(self, path: str) -> bytes: ...

    def replace_file(self, path: str, data: bytes) -> None:
        """Replace a file's content; durable on return. After a crash the file has either its old content or
        all of `data`.
        """
        ...

    def lock(self, path: str) -> DirectoryLock:
        """Claim the directory for this process. Raises DirectoryInUse, which names the process
        that owns it.
        """
        ...

    def lock_folder(self, path: str) -> DirectoryLock:
        """Claim the directory for this process without a file in it. Raises DirectoryInUse."""
        ...

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Call `function(*args)` on a thread that may block. Cancelling waits for the call to finish."""
        ...


class RealDisk:
    """The machine's own file systems.

    An open that fails for lack of descriptors or memory raises OutOfDescriptors at once. Between
    `descriptors.begin` and `descriptors.stop` it is retried until it succeeds, except on the event loop:
    storage waits meanwhile, and nothing is lost.

    New files and directories are for their owner alone, and a FIFO, socket or device is refused where a file
    is expected. With `for_owner` False, for files of the user, the process' mask decides, as for the output
    of any program, and anything is read. With `for_reading` files and locks of a read-only file system are
    opened for reading.
    """

    def __init__(self, *, for_owner: bool = True, for_reading: bool = False) -> None:
        self._for_owner, self._for_reading = for_owner, for_reading
        self._file_mode, self._directory_mode = (FILE_MODE, DIRECTORY_MODE) if for_owner else (0o666, 0o777)
        self._limiter: trio.CapacityLimiter | None = None
        self.descriptors: Final = DescriptorWait()

    def create(self, path: str) -> File:
        return self._open_file(path, os.O_CREAT | os.O_EXCL, "create")

    def open(self, path: str) -> File:
        self._refuse_special(path)
        return self._open_file(path, 0, "open")

    def exists(self, path: str) -> bool:
        # Not `os.path.exists`: what may not be looked at was once taken for a lost disk.
        with translated("look", path):
            try:
                os.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
        return True

    def rename(self, old: str, new: str) -> None:
        with translated(f"rename to {new}", old):
            # Unlike `os.rename` it replaces on Windows too.
            os.replace(old, new)

    def unlink(self, path: str) -> None:
        with translated("delete", path):
            os.unlink(path)

    def list(self, directory: str) -> list[str]:
        # Sorted, since the system's order differs from one file system to the next, and recovery must not.
        return sorted(self._opened(functools.partial(os.listdir, directory), "list", directory))

    def inodes(self, directory: str) -> dict[str, int]:
        """The inode numbers of the files in the directory, by name, at the cost of `list`."""

        def look() -> dict[str, int]:
            with os.scandir(directory) as entries:
                return {entry.name: entry.inode() for entry in entries}

        return self._opened(look, "list", directory)

    def refuse_special_files(self, directory: str) -> None:
        """Raise SpecialFile for a FIFO, a socket or a device in a directory in which a library opens files.
        The system's list has the kinds of files: only links cost a look each.
        """

        def look() -> list[str]:
            with os.scandir(directory) as entries:
                return [entry.path for entry in entries if not _is_usual(entry)]

        for path in self._opened(look, "list", directory):
            self._refuse_special(path)

    def make_directory(self, path: str) -> None:
        # Up to the root, so that the recursion ends at a directory that exists.
        path = os.path.abspath(path)
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        self.make_directory(parent)
        with translated("create directory", path):
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
        flags = os.O_RDONLY | os.O_DIRECTORY
        descriptor = self._opened(functools.partial(os.open, path, flags), "sync directory", path)
        with translated("sync directory", path):
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
        # The inode and not the path: a directory that was replaced by another one, or mounted over, keeps its
        # path.
        return facts.st_dev, facts.st_ino

    def size(self, path: str) -> int | None:
        with translated("look", path):
            try:
                return os.stat(path).st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

    def free_bytes(self, path: str) -> int:
        if sys.platform == "win32":
            return shutil.disk_usage(path).free
        with translated("ask for free space", path):
            facts = os.statvfs(path)
        # `f_bavail` and not `f_bfree`: the difference is reserved for root. A tmpfs of size 0 has no
        # limit and /proc has no blocks: neither is full.
        return facts.f_bavail * facts.f_frsize if facts.f_blocks else UNLIMITED_BYTES

    def free_inodes(self, path: str) -> int | None:
        if sys.platform == "win32":
            return None
        with translated("ask for free inodes", path):
            facts = os.statvfs(path)
        return facts.f_favail if facts.f_files else None  # btrfs, for one, makes inodes as it needs them

    def total_bytes(self, path: str) -> int:
        if sys.platform == "win32":
            return shutil.disk_usage(path).total
        with translated("ask for space", path):
            facts = os.statvfs(path)
        # Without the blocks that only root may use: with them, a disk that is full for this user might never
        # reach the share at which the bookie becomes read-only.
        blocks = facts.f_blocks - facts.f_bfree + facts.f_bavail
        return blocks * facts.f_frsize if facts.f_blocks else UNLIMITED_BYTES

    def read_file(self, path: str) -> bytes:
        self._refuse_special(path)
        # Unbuffered: all of it is read at once, and a buffer would only copy it.
        opened: io.FileIO = self._opened(functools.partial(io.FileIO, path), "read", path)
        with opened as file, translated("read", path):
            return file.readall()

    def read_pieces(self, path: str, piece_bytes: int) -> Iterator[bytes]:
        """A file's content in pieces; the file may be one that this user cannot write."""
        self._refuse_special(path)
        opened: io.FileIO = self._opened(functools.partial(io.FileIO, path), "read", path)
        with opened as file, translated("read", path):
            while piece := file.read(piece_bytes):
                yield piece

    def replace_file(self, path: str, data: bytes) -> None:
        temporary = path + ".tmp"
        # Left by a crash before the rename. It may be half-written, and `create` refuses a name that exists.
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
        """Delete the directory and everything below it; links are deleted, not followed."""
        with translated("delete", path):
            shutil.rmtree(path)

    def size_of(self, path: str) -> int:
        """The size of a file, without opening it."""
        with translated("look", path):
            return os.stat(path).st_size

    def lock(self, path: str) -> DirectoryLock:
        return RealDirectoryLock(path, for_reading=self._for_reading)

    def lock_folder(self, path: str) -> DirectoryLock:
        return RealFolderLock(path)

    async def run(self, function: Callable[..., T], *args: object) -> T:
        if self._limiter is None:
            # Not trio's default of 40 shared by the whole process: DNS look-ups or an export must not keep
            # reads waiting.
            self._limiter = trio.CapacityLimiter(WORKERS_MAX)
        return await trio.to_thread.run_sync(functools.partial(function, *args), limiter=self._limiter)

    def _refuse_special(self, path: str) -> None:
        if self._for_owner:
            try:
                mode = os.stat(path).st_mode
            except OSError:
                return  # the opening says what is wrong
            refuse_special(path, mode)

    def _open_file(self, path: str, flags: int, doing: str) -> File:
        flags |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)

        def opened(access: int) -> int:
            return self._opened(
                functools.partial(os.open, path, flags | access, self._file_mode), doing, path
            )

        try:
            descriptor = opened(os.O_RDWR)
        except StorageError as error:
            if not (self._for_reading and is_read_only(error)):
                raise
            descriptor = opened(os.O_RDONLY)
        with translated(doing, path):
            return RealFile(path, descriptor)

    def _opened(self, call: Callable[[], T], doing: str, path: str) -> T:
        """The file that `call` opens. Raises StorageError, including OutOfDescriptors."""
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


def _is_usual(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file() or entry.is_dir()
    except OSError:
        return False  # a link that leads nowhere, for one
