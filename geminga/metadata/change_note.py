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
_NOTE_BYTES_MAX = 4096
"""Enough for twice `STARTS_MAX` starts."""
_NOTE = re.compile(
    rb"(geminga change note, format (?:1|2\nstarts=([0-9a-f:,]*))\ninstance=([!-~]+)\nchanges=([0-9]{20})\n"
    rb"(?:restoring=([0-9a-f]+)\n)?(?:before=([0-9]+);([0-9a-f:,]*)\n)?)crc32=([0-9a-f]{8})\n"
)


class History(NamedTuple):
    """How far some metadata was written, and on which way."""

    changes: int
    """By RocksDB's sequence numbers."""
    starts: Sequence[Start] = ()
    """The latest, the last one last; () in metadata that this version has not opened yet."""


class Noted(NamedTuple):
    """The content of a note."""

    instance_id: str
    history: History
    """The metadata of this instance had at least so many changes."""
    restoring: str = ""
    """The id that an operator's command took which has begun to complete metadata and has not ended. What it
    wrote counts as changes, too, so the number alone would pass for complete metadata.
    """
    before: History | None = None
    """The furthest history from before a command that completed metadata, until the broker starts."""


def encode_note(note: Noted) -> bytes:
    history, before = note.history, note.before
    head = f"geminga change note, format 2\nstarts={_text_of(history.starts)}\ninstance={note.instance_id}\n"
    text = f"{head}changes={history.changes:020}\n"
    if note.restoring:
        text += f"restoring={note.restoring}\n"
    if before is not None:
        text += f"before={before.changes};{_text_of(before.starts)}\n"
    data = text.encode()
    return data + b"crc32=%08x\n" % zlib.crc32(data)


def _text_of(starts: Sequence[Start]) -> str:
    return ",".join(f"{start.id}:{start.changes}" for start in starts[-STARTS_MAX:])


def decode_note(data: bytes) -> Noted | None:
    """None if the bytes do not begin with a whole note. Bytes behind it are left from a longer note, which
    this one has overwritten.
    """
    found = _NOTE.match(data)
    if found is None or int(found[8], 16) != zlib.crc32(found[1]):
        return None
    return Noted(
        found[3].decode(),
        History(int(found[4]), _starts_in(found[2])),
        (found[5] or b"").decode(),
        History(int(found[6]), _starts_in(found[7])) if found[6] else None,
    )


def _starts_in(text: bytes | None) -> tuple[Start, ...]:
    pairs = (each.split(":") for each in (text or b"").decode().split(",") if each)
    return tuple(Start(id_, int(changes)) for id_, changes in pairs)


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


def lacking_changes(note: Noted, found: History) -> int | None:
    """How many of the note's changes the metadata lacks, at least 1 if a command was to complete it and was
    interrupted; None if each has changes that the other has never had: they are of two copies of one
    directory that both ran on.
    """
    known = {start.id for start in found.starts}
    if note.restoring in known:
        return max(1, note.history.changes - found.changes)
    if note.before is not None and note.history.starts[-1].id not in known:
        # Other metadata is in the place of what the command completed, and no broker has started since.
        return _missing(note.before, found)
    return _missing(note.history, found)


def _missing(noted: History, found: History) -> int | None:
    lacking = max(0, noted.changes - found.changes)
    if not noted.starts:
        return lacking  # of an earlier version
    known = [start.id for start in noted.starts]
    common = [at for at, start in enumerate(found.starts) if start.id in known]
    if not common:
        # Metadata of an earlier version, of more starts ago than are noted, or of another copy. The older
        # one's changes all came before the first start that is noted.
        return lacking if found.changes <= noted.starts[0].changes else None
    last = common[-1]
    following = known.index(found.starts[last].id) + 1
    if last == len(found.starts) - 1:
        # The noted history goes on where this metadata ends, or parted from it before.
        is_ahead = following < len(known) and found.changes > noted.starts[following].changes
        return None if is_ahead else lacking
    # The metadata went on: behind all that is noted, or beside it.
    is_behind = following == len(known) and found.starts[last + 1].changes >= noted.changes
    return 0 if is_behind else None


def replace_note(disk: Disk, directory: str, note: Noted) -> None:
    """Write the note in the place of the one that is there; durable on return. StorageError."""
    disk.replace_file(f"{directory}/{CHANGE_NOTE}", encode_note(note))


class ChangeNote:
    """Writes the note of one start. One call at a time; blocking, for microseconds."""

    def __init__(self, disk: Disk, directory: str, instance_id: str, starts: Sequence[Start] = ()) -> None:
        self._disk = disk
        self._path = f"{directory}/{CHANGE_NOTE}"
        self._instance_id = instance_id
        self._starts = starts
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
            noted = Noted(self._instance_id, History(changes, self._starts))
            self._file.pwrite(0, encode_note(noted))
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
