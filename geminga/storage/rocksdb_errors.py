"""What RocksDB's texts mean: it tells errors apart by nothing else. Pure."""

from __future__ import annotations

import errno
import os
import re
from typing import Final

from geminga.errors import CorruptData, StorageError

_FILE_MISSING: Final = "IO error: No such file or directory: While open"
"""A database that names a file which is not there."""
_OPENS: Final = re.compile(r"IO error: (while|when) (re|f)?open", re.IGNORECASE)
"""What RocksDB says of a file, a directory or its lock that could not be opened; the name and the system's
words follow. What it was about to do may stand before that. A file that was open and could not be written is
`While appending to file`.
"""
_SHORT_OF: Final = tuple(f": {os.strerror(number)}" for number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM))


def shortage(text: str) -> str:
    """The system's words if it could not open something for want of descriptors or memory, or "".

    All that was open then still is, nothing that was written is lost, and no disk has failed.
    """
    if _OPENS.search(text) and text.endswith(_SHORT_OF):
        return text.rpartition(": ")[2]
    return ""


def translated(text: str, doing: str, path: str) -> StorageError:
    """Ours for RocksDB's: CorruptData or StorageError, with the directory's path."""
    if "/LOCK" in text and "lock" in text:
        return StorageError(f"{path}: in use by another process, or opened twice in this one ({text})")
    if text.startswith("Corruption"):
        return CorruptData(f"{path}: damaged, cannot {doing}: {text}")
    if doing != "write" and text.startswith(_FILE_MISSING):
        return CorruptData(f"{path}: damaged, a file is missing, cannot {doing}: {text}")
    return StorageError(f"{path}: cannot {doing}: {text}")
