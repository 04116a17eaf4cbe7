"""Reads the segments of a directory of delivery logs in the order in which they were written, while more are
written.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from geminga.errors import CorruptData, StorageError

if TYPE_CHECKING:
    from geminga.storage.disk import Disk, File

ALL_PARTS: Final = 1 << 30


class Written(NamedTuple):
    """How much of a directory can be read."""

    file: int
    segments: int


class LogPosition(NamedTuple):
    """The position of a segment in a directory, or of a part of a segment. Later positions are greater."""

    file: int
    opened_ms: int
    """When the file was opened: another directory may have a file with an equal number."""
    segment: int
    """-1: before the first segment of the file."""
    part: int = ALL_PARTS
    """The part of a segment that was cut; the last part has no number."""

    @property
    def before(self) -> LogPosition:
        """A position between the previous segment and this one."""
        return self._replace(part=-1)

    def encode(self) -> bytes:
        return json.dumps(list(self)).encode()

    @classmethod
    def decode(cls, data: bytes | str) -> LogPosition:
        """Raises `CorruptData`."""
        try:
            numbers = json.loads(data)
            if not (len(numbers) == len(cls._fields) and all(type(number) is int for number in numbers)):
                raise ValueError("other than four numbers")
            return cls(*numbers)
        except (ValueError, TypeError) as error:
            raise CorruptData(f"not a position in a delivery log: {error}") from None


class Read(NamedTuple):
    position: LogPosition
    segment: bytes
    has_gap: bool
    """Whether a segment before this one is gone."""


class LogReader:
    """Blocking; one file is open during a call only."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self.at = Written(0, 0)
        """The current file, and how many of its segments were read."""
        self._offset = 0
        self._opened_ms = 0
        self._has_gap = False

    def seek(self, position: LogPosition | None) -> None:
        """Continue after this position, or from the beginning if None. A segment that was cut in parts is
        read again as a whole.
        """
        self._offset, self._has_gap = 0, False
        if position is None:
            self.at = Written(0, 0)
        else:
            read = position.segment + (position.part == ALL_PARTS)
            self.at, self._opened_ms = Written(position.file, read), position.opened_ms

    def next(self, written: Written) -> Read | None:
        """The next written segment; None if there is none yet. Raises StorageError."""
        if self.at.file > written.file:
            # The directory was emptied since: the log starts with file 1 again.
            self.at, self._offset, self._has_gap = Written(0, 0), 0, True
        while True:
            path = self._path(self.at.file)
            if self.at.file and self.at < written and self._disk.exists(path):
                file = self._disk.open(path)
                try:
                    if (found := self._next_of(file, written)) is not None:
                        self._has_gap = False
                        return found
                finally:
                    file.close()
            elif self.at.file and self.at >= written and self.at.file == written.file:
                return None
            elif self.at.file:
                self._has_gap = True
            if not self._next_file(written):
                return None

    def _next_file(self, written: Written) -> bool:
        """Open the next file. Returns False if there is none yet."""
        from geminga.delivery_log.log_format import file_number

        numbers = [file_number(name) for name in self._disk.list(self._directory)]
        later = [number for number in numbers if number and self.at.file < number <= written.file]
        if not later:
            return False
        if self.at.file and min(later) > self.at.file + 1:
            self._has_gap = True
        self.at, self._offset = Written(min(later), 0), 0
        return True

    def _next_of(self, file: File, written: Written) -> Read | None:
        """The next segment of the file; None if the file has no more. An incomplete segment at its end is
        the end of a crash.
        """
        from geminga.delivery_log.log_format import (
            FILE_HEAD_BYTES,
            SEGMENT_HEAD_BYTES,
            decode_file_head,
            decode_segment_head,
        )

        try:
            if not self._offset:
                opened_ms = decode_file_head(file.pread(0, FILE_HEAD_BYTES)).opened_ms
                if self.at.segments and opened_ms != self._opened_ms:
                    # Another directory's file of this number.
                    self._has_gap, self.at = True, Written(self.at.file, 0)
                self._opened_ms, self._offset = opened_ms, FILE_HEAD_BYTES
                for _ in range(self.at.segments):
                    self._offset = decode_segment_head(
                        file.pread(self._offset, SEGMENT_HEAD_BYTES), at=self._offset
                    ).end
            size = file.size()
            if size - self._offset < SEGMENT_HEAD_BYTES:
                return None
            head = decode_segment_head(file.pread(self._offset, SEGMENT_HEAD_BYTES), at=self._offset)
        except (CorruptData, StorageError):
            self._has_gap = True
            return None
        if head.end > size:
            return None
        segment = file.pread(self._offset, head.size_bytes)
        position = LogPosition(self.at.file, self._opened_ms, self.at.segments)
        self.at, self._offset = Written(self.at.file, self.at.segments + 1), head.end
        return Read(position, segment, self._has_gap)

    def _path(self, number: int) -> str:
        from geminga.delivery_log.log_format import file_name

        return os.path.join(self._directory, file_name(number))
