"""The machine's disk, with faults in the bookie's files."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from geminga.bookie.records.file_names import ENTRY_LOG_SUFFIX, JOURNAL_SUFFIX
from geminga.chaos.rules.can_hit import kinds_at
from geminga.chaos.rules.deciding import Armed, Facts
from geminga.chaos.rules.faults import Door, Faults
from geminga.chaos.rules.killing import Points, has, kill_process
from geminga.chaos.rules.waiting import wait_slow
from geminga.storage.disk import File, RealDisk
from geminga.storage.disk_errors import storage_error
from geminga.storage.real_file import Buffer

PLACE_BY_SUFFIX = {JOURNAL_SUFFIX: "journal", ENTRY_LOG_SUFFIX: "entry-log"}


def injected(number: int, doing: str, path: str) -> Exception:
    """The error that the disk raises for this errno."""
    return storage_error(OSError(number, f"{os.strerror(number)} (injected)"), doing, path)


def failed(door: Door, hit: Sequence[Armed], doing: str, path: str) -> None:
    """Wait or raise as the rules of the door that have hit say."""
    wait_slow(door, hit)
    if has(hit, "eio"):
        raise injected(errno.EIO, doing, path)
    if has(hit, "enospc"):
        raise injected(errno.ENOSPC, doing, path)


class FaultyDisk(RealDisk):
    """Other files than journals and entry logs are opened as they are."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self._doors = {place: faults.doors[place] for place in ("journal", "entry-log")}
        self._points = Points(faults.doors["process"])

    def create(self, path: str) -> File:
        return self._faulty(super().create(path))

    def open(self, path: str) -> File:
        return self._faulty(super().open(path))

    def free_bytes(self, path: str) -> int:
        # Journals and entry logs are on the disk of the bookie's directory, unless it says which it is about.
        places = ("entry-log",) if os.path.basename(path) == "entry-logs" else ("journal", "entry-log")
        for place in places:
            door = self._doors[place]
            if door.armed and door.hit(Facts(operation="space", path=path), kinds_at(place, "space")):
                return 0
        return super().free_bytes(path)

    def _faulty(self, file: File) -> File:
        place = PLACE_BY_SUFFIX.get(os.path.splitext(file.path)[1])
        if place is None:
            return file
        return FaultyFile(file, place, self._doors[place], self._points)


class FaultyFile:
    """A `File` that asks a door before each operation."""

    __slots__ = ("_door", "_file", "_place", "_points", "path")

    def __init__(self, file: File, place: str, door: Door, points: Points) -> None:
        self.path = file.path
        self._file = file
        self._place = place
        self._door = door
        self._points = points

    def append(self, data: Buffer) -> int:
        if self._door.armed:
            self._before_write(self._file.size(), [data])
        return self._file.append(data)

    def append_many(self, parts: Sequence[Buffer]) -> int:
        if self._door.armed:
            self._before_write(self._file.size(), parts)
        return self._file.append_many(parts)

    def pwrite(self, offset: int, data: Buffer) -> None:
        if self._door.armed:
            self._before_write(offset, [data])
        self._file.pwrite(offset, data)

    def pwrite_many(self, offset: int, parts: Sequence[Buffer]) -> None:
        if self._door.armed:
            self._before_write(offset, parts)
        self._file.pwrite_many(offset, parts)
        if self._place == "journal":
            self._points.passed("journal-written")

    def write_synced(self, offset: int, parts: Sequence[Buffer]) -> None:
        if self._door.armed or self._points.door.armed:
            # In two steps: a sync that is to fail leaves the bytes behind, not durable, as the one call does
            # when its sync fails; and a kill may come in between.
            self.pwrite_many(offset, parts)
            self.sync()
        else:
            self._file.write_synced(offset, parts)

    def pread(self, offset: int, length: int) -> bytes:
        if self._door.armed:
            failed(self._door, self._hit("read", "read"), "read", self.path)
        return self._file.pread(offset, length)

    def sync(self) -> None:
        if self._door.armed:
            failed(self._door, self._hit("sync", "sync"), "sync", self.path)
        self._file.sync()
        self._points.passed(f"{self._place}-synced")

    def allocate(self, length: int) -> None:
        if self._door.armed:
            failed(self._door, self._hit("write", "reserve"), "allocate", self.path)
        self._file.allocate(length)

    def size(self) -> int:
        return self._file.size()

    def truncate(self, length: int) -> None:
        self._file.truncate(length)

    def drop_cache(self, offset: int, length: int) -> None:
        self._file.drop_cache(offset, length)

    def close(self) -> None:
        self._file.close()

    def _hit(self, selected_by: str, operation: str) -> tuple[Armed, ...]:
        return self._door.hit(Facts(operation=selected_by, path=self.path), kinds_at(self._place, operation))

    def _before_write(self, offset: int, parts: Sequence[Buffer]) -> None:
        hit = self._hit("write", "write")
        if has(hit, "torn"):
            data = b"".join(parts)
            self._file.pwrite(offset, data[: len(data) // 2])
            # So that the power cut that this stands for leaves the half on the disk.
            self._file.sync()
            kill_process()
        failed(self._door, hit, "write", self.path)
