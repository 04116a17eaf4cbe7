"""One open file of the machine's file systems, on every system that Python runs on. Behind `disk.py`."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys
import threading
from collections.abc import Sequence

from geminga.storage.disk_errors import storage_error, translated

Buffer = bytes | bytearray | memoryview

FILE_MODE = 0o600
"""Files with messages are for their owner alone; the process' mask may restrict them further."""
_VECTORS_MAX = 1024
# Their write paths end in Linux's `generic_write_sync`, which looks at the flag. ext2 and ext3 have ext4's
# number, and do the same. Of all others, such as network and user-space file systems, nothing is known.
_DSYNC_FILE_SYSTEMS = frozenset({0xEF53, 0x58465342, 0x9123683E})
"""ext4, XFS and Btrfs, by the numbers of <linux/magic.h>: they keep RWF_DSYNC."""
# Of kernels before 4.7, and of the C library there.
_DSYNC_REFUSALS = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


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

if sys.platform == "linux" and hasattr(os, "RWF_DSYNC"):

    def _write_synced(descriptor: int, parts: Sequence[Buffer], offset: int) -> int:
        return os.pwritev(descriptor, parts, offset, os.RWF_DSYNC)

    def _keeps_dsync(descriptor: int) -> bool:
        # More than any system's `struct statfs`. Its first member is the type, a long. Where it is shorter
        # (s390x), no known type is found.
        facts = (ctypes.c_long * 64)()
        failed = ctypes.CDLL(None).fstatfs(descriptor, facts)
        return not failed and facts[0] & 0xFFFFFFFF in _DSYNC_FILE_SYSTEMS
else:

    def _write_synced(descriptor: int, parts: Sequence[Buffer], offset: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    def _keeps_dsync(descriptor: int) -> bool:
        return False


class RealFile:
    """A descriptor and the offset where the next append goes."""

    __slots__ = ("_descriptor", "_end", "_keeps_dsync", "path")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        # Kept here: O_APPEND would make the kernel choose, and the offset has to be known for the index's
        # row.
        self._end = os.fstat(descriptor).st_size
        self._keeps_dsync: bool | None = None
        """Whether one call may write and sync; None before the first write that is synced."""

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

    def write_synced(self, offset: int, parts: Sequence[Buffer]) -> None:
        if self._keeps_dsync is None:
            self._keeps_dsync = _keeps_dsync(self._descriptor)
        if self._keeps_dsync:
            try:
                self._write_vectors_synced(offset, parts)
                return
            except OSError as error:
                if error.errno not in _DSYNC_REFUSALS:
                    raise storage_error(error, "write and sync", self.path) from error
                # All is written again below. So even if this was the sync's error, the next sync has dirty
                # pages to write, and does not succeed for want of any.
                self._keeps_dsync = False
        self.pwrite_many(offset, parts)
        self.sync()

    def pwrite(self, offset: int, data: Buffer) -> None:
        with translated("write", self.path):
            written = _pwrite(self._descriptor, data, offset)
            length = len(data)
            while written < length:
                # The kernel takes at most 2 GiB at once, and less on a full disk: the next call says which.
                written += _pwrite(self._descriptor, memoryview(data)[written:], offset + written)
        self._end = max(self._end, offset + length)

    def pread(self, offset: int, length: int) -> bytes:
        with translated("read", self.path):
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
        with translated("sync", self.path):
            _sync(self._descriptor)

    def allocate(self, length: int) -> None:
        if length <= self._end:
            return
        with translated("reserve space", self.path):
            if sys.platform != "win32" and hasattr(os, "posix_fallocate"):
                # Real blocks and not a hole: writing into a hole allocates at the sync, which is slow, and
                # fails for want of space when an entry has been accepted already.
                os.posix_fallocate(self._descriptor, self._end, length - self._end)
            else:
                os.ftruncate(self._descriptor, length)
        self._end = length

    def truncate(self, length: int) -> None:
        with translated("truncate", self.path):
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

    def _write_vectors_synced(self, offset: int, parts: Sequence[Buffer]) -> None:
        # Each write is as under O_DSYNC (pwritev2(2)): "as though each write was followed by a call to
        # fdatasync" (open(2)), so the length and the extents that its bytes need are durable too, also in a
        # file that has just been created or allocated. But "only to the data range written": what one call
        # has left over, or cannot take, needs the flag as well.
        for first in range(0, len(parts), _VECTORS_MAX):
            rest = parts[first : first + _VECTORS_MAX]
            length = sum(map(len, rest))
            while (written := _write_synced(self._descriptor, rest, offset)) < length:
                rest = [memoryview(b"".join(rest))[written:]]
                length -= written
                offset += written
            offset += length
        self._end = max(self._end, offset)

    def _write_vector(self, position: int, parts: Sequence[Buffer]) -> int:
        length = sum(map(len, parts))
        written = 0
        if sys.platform != "win32" and hasattr(os, "pwritev"):
            with translated("write", self.path):
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
