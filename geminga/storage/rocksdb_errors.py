"""Interprets RocksDB's error texts, because it distinguishes errors by nothing else. Pure."""

from __future__ import annotations

import errno
import os
import re
from typing import Final

from geminga.errors import CorruptData, StorageError
from geminga.storage.disk_errors import FULL_ERRORS, DiskFull

_FILE_MISSING: Final = "IO error: No such file or directory: While open"
"""The database names a missing file."""
_OPENS: Final = re.compile(r"IO error: (while|when) (re|f)?open", re.IGNORECASE)
"""RocksDB's text for a file, a directory or a lock that could not be opened; the name and the system's text
follow. The intended operation may precede it. An open file that could not be written has
`While appending to file`.
"""
_FULL: Final = tuple(os.strerror(number) for number in FULL_ERRORS)
_SHORT_OF: Final = tuple(f": {os.strerror(number)}" for number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM))


def shortage(text: str) -> str:
    """The system's text if RocksDB could not open a file for lack of descriptors or memory, or "".

    All files that were open still are, nothing that was written is lost, and no disk has failed.
    """
    if _OPENS.search(text) and text.endswith(_SHORT_OF):
        return text.rpartition(": ")[2]
    return ""


def translated(text: str, doing: str, path: str) -> StorageError:
    """CorruptData, DiskFull or StorageError for RocksDB's error, with the directory's path."""
    # RocksDB repeats this text for each later write, until it finds space or is opened again.
    if text.startswith("IO error") and any(full in text for full in _FULL):
        return DiskFull(f"{path}: disk full, cannot {doing}: {text}; free some space")
    if "/LOCK" in text and "lock" in text:
        return StorageError(f"{path}: in use by another process, or opened twice in this one ({text})")
    if text.startswith("Corruption"):
        return CorruptData(f"{path}: damaged, cannot {doing}: {text}")
    if doing != "write" and text.startswith(_FILE_MISSING):
        return CorruptData(f"{path}: damaged, a file is missing, cannot {doing}: {text}")
    return StorageError(f"{path}: cannot {doing}: {text}")
