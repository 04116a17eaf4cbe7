"""The change note: how far the metadata was written, kept beside the journals.

Policies, subscriptions without a ledger and requests to compact leave no trace in the bookie's files. So
metadata that was put back from an older copy, or whose write-ahead log was cut, could look complete. After
each synced batch of the metadata the note gets the number of changes up to there. A start whose metadata has
fewer is refused (`server/metadata_check.py`).

A number alone cannot tell two copies of a directory that both ran on. So each start gets a random id, which
the metadata and the note have, and a start whose metadata went another way than the note is refused as well.

The note is not synced: it survives the end of the process, and after a power cut it may be older, torn or
gone. A note that cannot be read counts as none, and no note is ever ahead of what is durable in the metadata.
docs/formats/directories.md has the format.
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from geminga.errors import StorageError
from geminga.metadata.records import STARTS_MAX, Start
from geminga.storage.disk import Disk, File

log = logging.getLogger("geminga.metadata")

CHANGE_NOTE: Final = "metadata-changes"
"""The name inside the first journal directory, beside its cookie."""
_NOTE_BYTES_MAX = 1024
"""Enough for `STARTS_MAX` starts."""
_NOTE = re.compile(
    rb"(geminga change note, format (?:1|2\nstarts=([0-9a-f:,]*))\ninstance=([!-~]+)\nchanges=([0-9]{20})\n"
    rb"(restoring\n)?)crc32=([0-9a-f]{8})\n"
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
    starts: Sequence[Start] = ()
    """The latest starts of this metadata, the last of them the one that wrote the note. () in notes of format
    1, and behind a command that completed metadata without starts.
    """


def encode_note(note: Noted) -> bytes:
    starts = ",".join(f"{start.id}:{start.changes}" for start in note.starts[-STARTS_MAX:])
    head = f"geminga change note, format 2\nstarts={starts}\ninstance={note.instance_id}\n".encode()
    text = head + b"changes=%020d\n" % note.changes + (b"restoring\n" if note.is_restoring else b"")
    return text + b"crc32=%08x\n" % zlib.crc32(text)


def decode_note(data: bytes) -> Noted | None:
    """None if the bytes do not begin with a whole note. Bytes behind it are left from a longer note, which
    this one has overwritten.
    """
    found = _NOTE.match(data)
    if found is None or int(found[6], 16) != zlib.crc32(found[1]):
        return None
    pairs = (each.split(":") for each in (found[2] or b"").decode().split(",") if each)
    starts = tuple(Start(id_, int(changes)) for id_, changes in pairs)
    return Noted(found[3].decode(), int(found[4]), found[5] is not None, starts)


def read_note(disk: Disk, directory: str) -> Noted | None:
    """The note in the first journal directory; None if it has none that can be read."""
    try:
        file = disk.open(f"{directory}/{CHANGE_NOTE}")
    except StorageError:
        return None
    try:
        return decode_note(file.pread(0, _NOTE_BYTES_MAX))
    except StorageError:
        return None
    finally:
        file.close()


def missing_changes(note: Noted, starts: Sequence[Start], found_changes: int) -> int | None:
    """How many of the note's changes the metadata lacks, which has `found_changes` and these starts; None if
    each has changes that the other has never had: they are of two copies of one directory that both ran on.
    """
    lacking = max(0, note.changes - found_changes)
    if not note.starts or not starts:
        return lacking  # of an earlier version, which had no starts
    noted = [start.id for start in note.starts]
    common = [at for at, start in enumerate(starts) if start.id in noted]
    if not common:
        # Metadata of more starts ago than the note has, or of another copy. All of the older one's changes
        # came before the first start that is noted.
        return lacking if found_changes <= note.starts[0].changes else None
    last = common[-1]
    if last == len(starts) - 1:
        return lacking  # the broker of the note began where this metadata ends, or is the same
    is_last_noted = noted[-1] == starts[last].id
    # The metadata went on: behind all that is noted, or beside it.
    return 0 if is_last_noted and starts[last + 1].changes >= note.changes else None


def replace_note(disk: Disk, directory: str, note: Noted) -> None:
    """Write the note in the place of the one that is there; durable on return. StorageError."""
    disk.replace_file(f"{directory}/{CHANGE_NOTE}", encode_note(note))


class ChangeNote:
    """Writes the note of one start. One call at a time; blocking, for microseconds."""

    def __init__(self, disk: Disk, directory: str, instance_id: str, starts: Sequence[Start] = ()) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{CHANGE_NOTE}"
        self._note = Noted(instance_id, 0, starts=starts)
        self._file: File | None = None
        self._identity: tuple[int, int] | None = None
        self._has_warned = False

    def write(self, changes: int) -> None:
        """Note the number of changes, which are durable. Without space, or after an error, the older note
        stays: it proves less, and nothing wrong. A note that something else has removed is made again.
        """
        try:
            if self._file is None or self._disk.identity(self._path) != self._identity:
                self._open()
            assert self._file is not None
            self._file.pwrite(0, encode_note(self._note._replace(changes=changes)))
        except StorageError as error:
            if not self._has_warned:
                self._has_warned = True
                log.warning("the change note of the metadata is not written for now: %s", error)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def _open(self) -> None:
        self.close()
        exists = self._disk.exists(self._path)
        self._file = self._disk.open(self._path) if exists else self._disk.create(self._path)
        self._identity = self._disk.identity(self._path)
