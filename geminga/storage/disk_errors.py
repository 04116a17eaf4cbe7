"""Turns a disk's failures into `StorageError`s that name the file."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from geminga.errors import StorageError


class DirectoryInUse(StorageError):
    """Another process holds the directory's lock."""


class DiskFull(StorageError):
    """No space is left: nothing was promised, and freeing space helps."""


def storage_error(error: OSError, doing: str, path: str) -> StorageError:
    """A StorageError for the system's error, with the file's name and the system's text."""
    text = f"{path}: cannot {doing}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(text)
    return StorageError(text)


@contextlib.contextmanager
def translated(doing: str, path: str) -> Iterator[None]:
    """Raise an OSError of the block as a StorageError, which names the failed operation and the file."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, doing, path) from error
