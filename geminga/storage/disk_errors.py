"""What a disk's failures are to the rooms above: `StorageError`s that name the file."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from geminga.errors import StorageError


class DirectoryInUse(StorageError):
    """Another process holds the directory's lock."""


class DiskFull(StorageError):
    """No space left: nothing was promised, and freeing space helps."""


def storage_error(error: OSError, doing: str, path: str) -> StorageError:
    """Ours for the system's, with the file's name and the system's own words."""
    text = f"{path}: cannot {doing}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(text)
    return StorageError(text)


@contextlib.contextmanager
def translated(doing: str, path: str) -> Iterator[None]:
    """An OSError of the block as a StorageError: it could not do this to that file."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, doing, path) from error
