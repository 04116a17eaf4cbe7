"""The change note: how far the metadata was written, kept beside the journals.

Policies, subscriptions without a ledger and requests to compact leave no trace in the bookie's files. So
metadata that was put back from an older copy, or whose write-ahead log was cut, could look complete. After
each synced batch of the metadata the note gets the number of changes up to there. A start whose metadata has
fewer is refused (`server/metadata_check.py`).

The note is not synced: it survives the end of the process, and after a power cut it may be older, torn or
gone. A note that cannot be read counts as none, and no note is ever ahead of what is durable in the metadata.
docs/formats/directories.md has the format.
"""

from __future__ import annotations

import logging
import re
import zlib
from typing import Final, NamedTuple

from geminga.errors import StorageError
from geminga.storage.disk import Disk, File

log = logging.getLogger("geminga.metadata")

CHANGE_NOTE: Final = "metadata-changes"
"""The name inside the first journal directory, beside its cookie."""
_NOTE_BYTES_MAX = 1024
_NOTE = re.compile(
    rb"(geminga change note, format 1\ninstance=([!-~]+)\nchanges=([0-9]{20})\n(restoring\n)?)"
    rb"crc32=([0-9a-f]{8})\n"
)


class Noted(NamedTuple):
    """The content of a note."""

    instance_id: str
    changes: int
    """The metadata of this instance had at least so many changes, by RocksDB's sequence numbers."""
    is_restoring: bool = False
    """Whether an operator's command has begun to complete metadata that lacks changes, and has not ended.
    What it wrote counts as changes, too, so the number alone would pass for complete metadata.
    """


def encode_note(note: Noted) -> bytes:
    # All notes that a broker writes are of one length, so that each overwrites the one before.
    head = b"geminga change note, format 1\ninstance=%s\n" % note.instance_id.encode()
    text = head + b"changes=%020d\n" % note.changes + (b"restoring\n" if note.is_restoring else b"")
    return text + b"crc32=%08x\n" % zlib.crc32(text)


def read_note(disk: Disk, directory: str) -> Noted | None:
    """The note in the first journal directory; None if it has none that can be read."""
    try:
        file = disk.open(f"{directory}/{CHANGE_NOTE}")
    except StorageError:
        return None
    try:
        found = _NOTE.fullmatch(file.pread(0, _NOTE_BYTES_MAX))
    except StorageError:
        return None
    finally:
        file.close()
    if found is None or int(found[5], 16) != zlib.crc32(found[1]):
        return None
    return Noted(found[2].decode(), int(found[3]), found[4] is not None)


def replace_note(disk: Disk, directory: str, note: Noted) -> None:
    """Write the note in the place of the one that is there; durable on return. StorageError."""
    disk.replace_file(f"{directory}/{CHANGE_NOTE}", encode_note(note))


class ChangeNote:
    """Writes the note of one instance. One call at a time; blocking, for microseconds."""

    def __init__(self, disk: Disk, directory: str, instance_id: str) -> None:
        self._disk = disk
        self._directory = directory
        self._instance_id = instance_id
        self._file: File | None = None
        self._has_warned = False

    def write(self, changes: int) -> None:
        """Note the number of changes, which are durable. Without space, or after an error, the older note
        stays: it proves less, and nothing wrong.
        """
        try:
            if self._file is None:
                self._file = self._opened()
            self._file.pwrite(0, encode_note(Noted(self._instance_id, changes)))
        except StorageError as error:
            if not self._has_warned:
                self._has_warned = True
                log.warning("the change note of the metadata is not written for now: %s", error)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def _opened(self) -> File:
        path = f"{self._directory}/{CHANGE_NOTE}"
        if self._disk.exists(path):
            return self._disk.open(path)
        return self._disk.create(path)
