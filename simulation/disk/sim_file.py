"""An open file of the simulated disk. What it can do and suffer is told in `sim_disk`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from geminga.errors import StorageError
from geminga.storage.real_file import Buffer
from simulation.disk.sim_inode import Inode

if TYPE_CHECKING:
    from simulation.disk.sim_disk import SimDisk


class PowerCut(BaseException):
    """The machine is off, until `crash` turns it on. No `Exception`: no code below a test survives it."""


class SimFile:
    """A handle; it dies with the crash that follows its opening."""

    def __init__(self, disk: SimDisk, path: str, inode: Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._life = disk.crashes
        self._closed = False

    def append(self, data: Buffer) -> int:
        offset = len(self._inode.current)
        self.pwrite(offset, data)
        return offset

    def append_many(self, parts: Sequence[Buffer]) -> int:
        return self.append(b"".join(parts))

    def pwrite(self, offset: int, data: Buffer) -> None:
        self._step("write")
        self._write(offset, bytes(data))

    def pwrite_many(self, offset: int, parts: Sequence[Buffer]) -> None:
        self.pwrite(offset, b"".join(parts))

    def pread(self, offset: int, length: int) -> bytes:
        self._step("read")
        return bytes(self._inode.current[offset : offset + length])

    def size(self) -> int:
        return len(self._inode.current)

    def sync(self) -> None:
        try:
            self._step("sync")
        except StorageError:
            self._disk.fail_sync(self._inode)
            raise
        self._inode.sync()

    def allocate(self, length: int) -> None:
        if length > len(self._inode.current):
            self._step("allocate")
            if self._disk.room(self._inode, length) < length:
                raise self._disk.faults.full(self.path)
            self._inode.resize(length)

    def truncate(self, length: int) -> None:
        self._step("truncate")
        self._inode.resize(length)

    def drop_cache(self, offset: int, length: int) -> None:
        pass

    def close(self) -> None:
        self._closed = True

    def _write(self, offset: int, data: bytes) -> None:
        end = offset + len(data)
        room = self._disk.room(self._inode, end)
        if room < end:
            fitting = data[: max(0, room - offset)]
            if fitting:
                self._inode.write(offset, fitting)
            raise self._disk.faults.full(self.path)
        written = self._disk.faults.admit(self.path, len(data))
        if written < len(data):
            self._inode.write(offset, data[:written])
            raise self._disk.faults.note(
                f"{self.path}: injected: short write, {written} of {len(data)} bytes"
            )
        self._inode.write(offset, data)

    def _step(self, kind: str) -> None:
        if self._life != self._disk.crashes:
            raise PowerCut(f"{self.path} was opened before the crash")
        assert not self._closed, f"{self.path} is closed"
        self._disk.step(kind, self.path)
