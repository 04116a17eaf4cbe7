"""The events on disk: two files of JSON lines, of which the older one is dropped when the newer one is full.

Written behind and without a sync: events are a report. What a crash has torn is skipped by readers. A file
that cannot be written costs the events that would stand in it, and is tried again with the next ones.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from geminga.errors import StorageError
from geminga.events.event import Event, Filter
from geminga.limits import MIB
from geminga.storage.disk import Disk

log = logging.getLogger("geminga.events")

FILE_BYTES_MAX: Final = 4 * MIB
NEWER, OLDER = "events.jsonl", "events.older.jsonl"
TAIL_BYTES: Final = 64 * 1024
"""More than the longest line: read at a start to learn the last number."""


class EventFiles:
    """In a directory that is made with the first event. Methods block; one call at a time writes."""

    def __init__(self, disk: Disk, directory: str, *, file_bytes_max: int = FILE_BYTES_MAX) -> None:
        self._disk = disk
        self._directory = directory
        self._file_bytes_max = file_bytes_max
        self._newer = os.path.join(directory, NEWER)
        self._older = os.path.join(directory, OLDER)
        if disk.exists(directory):
            disk.close_to_others(directory)
        self.lost = 0
        """How many events could not be written since the start."""

    def last_sequence(self) -> int:
        """The number of the last event of earlier processes; 0: there is none, or the files cannot be
        read.
        """
        for path in (self._newer, self._older):
            try:
                if self._disk.exists(path) and (last := self._last_in(path)):
                    return last
            except StorageError as error:
                log.warning("earlier events cannot be read, so numbers begin again: %s", error)
        return 0

    def _last_in(self, path: str) -> int:
        file = self._disk.open(path)
        try:
            start = max(0, file.size() - TAIL_BYTES)
            tail = file.pread(start, TAIL_BYTES)
        finally:
            file.close()
        return max((event.sequence for event in decode_lines(tail.split(b"\n"))), default=0)

    def append(self, events: Sequence[Event]) -> None:
        """Write them at the end of the newer file, or count them as lost."""
        try:
            self._append(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
        except StorageError as error:
            if not self.lost:
                log.warning("events are kept in memory only, and lost with the process: %s", error)
            self.lost += len(events)

    def _append(self, lines: bytes) -> None:
        self._disk.make_directory(self._directory)
        if not self._disk.exists(self._newer):
            self._disk.create(self._newer).close()
        file = self._disk.open(self._newer)
        try:
            size = file.size()
            # A line that a crash has torn stays by itself: joined with it, the next event would be lost too.
            if size and file.pread(size - 1, 1) != b"\n":
                lines = b"\n" + lines
            file.append(lines)
            size = file.size()
        finally:
            file.close()
        if size > self._file_bytes_max:
            self._disk.rename(self._newer, self._older)

    def read(self, since: int, before: int, limit: int, wanted: Filter) -> list[Event]:
        """The events with numbers above `since` and below `before`: the first `limit` that are wanted, or the
        last if `since` is negative. What cannot be read is left out.
        """
        found: list[Event] = []
        for path in (self._older, self._newer):
            try:
                if not self._disk.exists(path):
                    continue
                content = self._disk.read_file(path)
            except StorageError as error:
                log.warning("events are left out of an answer: %s", error)
                continue
            in_range = (e for e in decode_lines(content.split(b"\n")) if since < e.sequence < before)
            found += wanted.of(in_range)
        return found[-limit:] if since < 0 else found[:limit]


def decode_lines(lines: Iterable[bytes]) -> Iterable[Event]:
    """The events of these lines, without those that are torn or not ours."""
    decoder = msgspec.json.Decoder(Event)
    for line in lines:
        if line:
            try:
                yield decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
