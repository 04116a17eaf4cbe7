"""Advisory locks, which show which process owns a directory. Behind `disk.py`."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys

from geminga.errors import StorageError
from geminga.storage.disk_errors import DirectoryInUse, is_read_only, storage_error
from geminga.storage.real_file import FILE_MODE


class RealDirectoryLock:
    """An advisory lock on the file `lock` in the directory, which has the owner's process id as text.

    The system releases the lock when the process ends, however it ends.

    With `for_reading`, on a read-only file system, the file is not written: a broker may run on the directory
    through another mount of it. Without the file no broker does.
    """

    def __init__(self, path: str, *, for_reading: bool = False) -> None:
        name = os.path.join(path, "lock")
        self._file: io.FileIO | None = None
        try:
            file = _open_lock(name)
        except StorageError as error:
            if not (for_reading and is_read_only(error)):
                raise
            if not os.path.exists(name):
                return
            file = io.FileIO(name)
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
            # Only now: until the lock is held the file may name the process that holds it.
            file.truncate(0)
            file.write(b"%d\n" % os.getpid())
        self._file = file

    def release(self) -> None:
        """Unlock. The file is kept: if it were removed, two later owners could lock different files."""
        if self._file is not None:
            self._file.close()


class RealFolderLock:
    """An advisory lock on a directory itself, which needs no file in it and names no owner. The same through
    any link or mount of the directory. Does nothing where the system cannot lock a directory.
    """

    def __init__(self, path: str) -> None:
        self._descriptor = -1
        if sys.platform == "win32":
            return
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise storage_error(error, "lock", path) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # Others: NFS locks no directory. What holds the directory above is then the only lock.
            if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
                self.release()
                raise DirectoryInUse(f"{path}: already in use by another process") from None

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _open_lock(name: str) -> io.FileIO:
    """Open the lock's file; create it if absent. The process that gets the lock empties the file, so it must
    have no other use.
    """
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
    """The owner's process id in the lock's file; "" if it cannot be read."""
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
        # NFS locks a file that is open for reading against writers only.
        operation = fcntl.LOCK_EX if file.writable() else fcntl.LOCK_SH
        fcntl.flock(file.fileno(), operation | fcntl.LOCK_NB)
