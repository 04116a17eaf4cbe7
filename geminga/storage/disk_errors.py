"""Turns a disk's failures into `StorageError`s that name the file."""

from __future__ import annotations

import contextlib
import errno
import stat
from collections.abc import Iterator
from typing import Final

from geminga.errors import ReadOnly, StorageError

FULL_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT)
"""The system's errors for a lack of bytes or inodes, or for a quota that is used up."""


class DirectoryInUse(StorageError):
    """Another process holds the directory's lock."""


class DiskFull(ReadOnly):
    """No bytes or no inodes are left: nothing was promised, and freeing space helps."""


class SpecialFile(StorageError):
    """A FIFO, a socket or a device is in the place of a file. It was not opened."""


_SPECIAL: Final = {
    stat.S_IFIFO: "a FIFO (named pipe)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def refuse_special(path: str, mode: int) -> None:
    """Raise SpecialFile for a mode of neither a file nor a directory: opening or reading one may wait for
    ever, or never end.
    """
    what = _SPECIAL.get(stat.S_IFMT(mode))
    if what is not None:
        raise SpecialFile(
            f"{path}: this is {what}, not a file. Move it away, put the file that belongs there back if "
            "there was one, and start again"
        )


def storage_error(error: OSError, doing: str, path: str) -> StorageError:
    """A StorageError for the system's error, with the file's name and the system's text."""
    reason = error.strerror or str(error)
    if error.errno in FULL_ERRORS:
        return DiskFull(f"{path}: disk full, cannot {doing}: {reason}; free some space")
    return StorageError(f"{path}: cannot {doing}: {reason}")


def is_read_only(error: StorageError) -> bool:
    """Whether the file system is mounted read-only."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EROFS


@contextlib.contextmanager
def translated(doing: str, path: str) -> Iterator[None]:
    """Raise an OSError of the block as a StorageError, which names the failed operation and the file."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, doing, path) from error
