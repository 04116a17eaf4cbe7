"""The events on disk: two files of JSON lines, of which the older one is dropped when the newer one is full.

Written behind and without a sync: events are a report. What a crash has torn is skipped by readers. A file
that cannot be written costs the events that would stand in it, and is tried again with the next ones.

A third file has the last number that may have been given out, so that no number is given twice: a running
process reserves numbers ahead, and a process that ends in order leaves the last one that it used.
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
NEWER, OLDER, NUMBERS = "events.jsonl", "events.older.jsonl", "numbers"
NUMBERS_STEP: Final = 1_000_000
"""Numbers are reserved up to multiples of this. Readers can tell a start after a crash by it."""
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
        self._numbers = os.path.join(directory, NUMBERS)
        if disk.exists(directory):
            disk.close_to_others(directory)
        self.lost = 0
        """How many events could not be written since the start."""
        self._is_unreserved = False

    def last_sequence(self) -> int:
        """The last number that an earlier process may have given to an event, written or not; 0: there was
        none, or the files cannot be read.
        """
        written, reserved = self._last_written(), self._reserved()
        if reserved is None:
            # Of a version that reserved nothing, or damaged: how that process ended is not known.
            return next_step(written) if written else 0
        return max(written, reserved)

    def _reserved(self) -> int | None:
        try:
            content = self._disk.read_file(self._numbers) if self._disk.exists(self._numbers) else b""
        except StorageError as error:
            log.warning("the last number of an event cannot be read: %s", error)
            return None
        return int(content) if content.rstrip(b"\n").isdigit() and len(content) < 20 else None

    def reserve(self, last: int) -> bool:
        """Durable on return: later processes begin behind this number. False: it cannot be written."""
        line = b"%018d\n" % last
        try:
            if not self._disk.exists(self._numbers):
                self._make_directory()
                self._disk.replace_file(self._numbers, line)
                return True
            file = self._disk.open(self._numbers)
            try:
                # In place, because a full disk has no room for a second file.
                file.pwrite(0, line)
                file.sync()
            finally:
                file.close()
        except StorageError as error:
            if not self._is_unreserved:
                log.warning("numbers of events may come again after a crash: %s", error)
            self._is_unreserved = True
            return False
        return True

    def _last_written(self) -> int:
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

    def _make_directory(self) -> None:
        # Not the data directory: if it was moved away, a new one would be in its way when it is moved back,
        # and would pass for an empty broker's.
        above = os.path.dirname(self._directory)
        if not self._disk.exists(above):
            raise StorageError(f"{above}: is not there")
        self._disk.make_directory(self._directory)

    def _append(self, lines: bytes) -> None:
        self._make_directory()
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


def next_step(number: int) -> int:
    """The first multiple of `NUMBERS_STEP` above it."""
    return (number // NUMBERS_STEP + 1) * NUMBERS_STEP


def decode_lines(lines: Iterable[bytes]) -> Iterable[Event]:
    """The events of these lines, without those that are torn or not ours."""
    decoder = msgspec.json.Decoder(Event)
    for line in lines:
        if line:
            try:
                yield decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
