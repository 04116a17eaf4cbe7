"""A disk that crashes, fills and fails: durable and pending state kept apart, without threads, by seed.

**Writes.** A write reaches what every reader sees at once, and the durable file only when it is synced or
when a crash happens to keep it. `sync` makes all writes of the file durable. `write_synced` makes its own
bytes durable and no others; it is a write and a sync in turn, between which the power may go. A crash
decides for each pending write in sectors of 512 bytes, each on its own: kept, lost (old bytes stay, or zeros
where a later sector made the file longer), zeroed, or torn: the first bytes of it kept. So writes persist out
of order unless a sync orders them, and a length may get there without its bytes. Three limits, which real
disks and file systems keep: bytes that a write did not name do not change, even in a sector that it shares
with them; what lies beyond the old end is zeros and no other file's bytes; and what was synced stays.

**Names.** Creating, renaming and unlinking take effect at once and are durable when the directory was synced.
A crash keeps or drops each of them on its own; a rename is whole or not there at all. Directories are durable
when made.

**While the power is on** (`faults`, `space_bytes`): an operation fails with EIO once, or from then on always;
a write fails after a part of it; nothing grows beyond `space_bytes` (DiskFull, after the part that fitted).
A failed sync, also one of `write_synced`, has written some of what was pending in the file and forgotten the
rest: readers still see it, a later sync succeeds and does nothing for it, a crash loses it. Syncs may take
virtual time.

**At rest**: `flip_bit`, and `swap_sectors` for a write that went to the wrong place.

Not modelled: reads that return different bytes each time, syncs that lie, damage that chooses its moment.

All is a function of the seed and the operations, so a failing case can be run again. `log` has every
operation, `faults.log` every fault, `story` both as text.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import trio

from geminga.errors import StorageError
from geminga.storage.descriptor_wait import DescriptorWait
from geminga.storage.disk import DirectoryLock, File
from geminga.storage.disk_errors import DirectoryInUse
from geminga.storage.real_file import Buffer
from simulation.disk.disk_faults import DiskFaults
from simulation.disk.sim_inode import SECTOR_BYTES, CrashMode, Inode
from simulation.disk.sim_names import SimNames, parent

__all__ = ["SECTOR_BYTES", "CrashMode", "PowerCut", "SimDisk", "SimFile"]
T = TypeVar("T")


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

    def write_synced(self, offset: int, parts: Sequence[Buffer]) -> None:
        self.pwrite_many(offset, parts)
        self._step_sync()
        self._inode.sync_last_write()

    def pread(self, offset: int, length: int) -> bytes:
        self._step("read")
        return bytes(self._inode.current[offset : offset + length])

    def size(self) -> int:
        return len(self._inode.current)

    def sync(self) -> None:
        self._step_sync()
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

    def _step_sync(self) -> None:
        try:
            self._step("sync")
        except StorageError:
            self._disk.fail_sync(self._inode)
            raise

    def _step(self, kind: str) -> None:
        if self._life != self._disk.crashes:
            raise PowerCut(f"{self.path} was opened before the crash")
        assert not self._closed, f"{self.path} is closed"
        self._disk.step(kind, self.path)


class SimDisk:
    """Paths are plain strings; a directory exists once made. Everything is owned by one thread."""

    def __init__(self, seed: int = 0) -> None:
        self.descriptors: Final = DescriptorWait()
        self.crashes = 0
        self.operations = 0
        """Operations so far that change something; the n-th (from 0) is what `crash_at` counts."""
        self.crash_at: int | None = None
        self.log: list[tuple[str, str]] = []
        """Kind and path of each of them."""
        self.inject: Callable[[str, str], None] | None = None
        """Called with kind and path before every operation, reads included; may raise a StorageError."""
        self.faults = DiskFaults(seed)
        self.space_bytes: int | None = None
        """What all files together may hold, as readers see them; None: no limit."""
        self.free = 1 << 40
        """What `free_bytes` answers at most, whatever is written."""
        self.inodes: int | None = None
        """What `free_inodes` answers."""
        self._owed_s = 0.0
        self._chance = random.Random(seed)
        self._names = SimNames()
        self._directories = {"", "."}
        self._locks: set[str] = set()
        self._off = False

    # ---- the disk's surface

    def create(self, path: str) -> File:
        if path in self._names.current:
            raise StorageError(f"{path}: cannot create: it exists")
        self._need_directory(path)
        self.step("create", path)
        inode = Inode()
        self._names.change({path: inode})
        return SimFile(self, path, inode)

    def open(self, path: str) -> File:
        return SimFile(self, path, self._inode(path, "open"))

    def exists(self, path: str) -> bool:
        return path in self._names.current or path in self._directories

    def rename(self, old: str, new: str) -> None:
        inode = self._inode(old, "rename")
        assert parent(old) == parent(new), "a rename between directories is not atomic to a crash"
        self.step("rename", new)
        self._names.change({new: inode, old: None})

    def unlink(self, path: str) -> None:
        self._inode(path, "delete")
        self.step("unlink", path)
        self._names.change({path: None})

    def list(self, directory: str) -> list[str]:
        return sorted(name.rsplit("/", 1)[-1] for name in self._names.current if parent(name) == directory)

    def make_directory(self, path: str) -> None:
        if path in self._directories:
            return
        self.make_directory(parent(path))
        self.step("make_directory", path)
        self._directories.add(path)

    def close_to_others(self, path: str) -> None:
        """There are no others."""

    def sync_directory(self, path: str) -> None:
        self.step("sync_directory", path)
        self._names.sync(path)

    def identity(self, path: str) -> tuple[int, int] | None:
        if path in self._directories:
            return 0, 0
        inode = self._names.current.get(path)
        return (1, id(inode)) if inode is not None else None

    def size(self, path: str) -> int | None:
        inode = self._names.current.get(path)
        return len(inode.current) if inode is not None else None

    def free_bytes(self, path: str) -> int:
        left = self.free if self.space_bytes is None else self.space_bytes - self._used_bytes()
        return max(0, min(self.free, left))

    def free_inodes(self, path: str) -> int | None:
        return self.inodes

    def total_bytes(self, path: str) -> int:
        return 1 << 40 if self.space_bytes is None else self.space_bytes

    def read_file(self, path: str) -> bytes:
        file = self.open(path)
        return file.pread(0, file.size())

    def replace_file(self, path: str, data: bytes) -> None:
        temporary = path + ".tmp"
        if self.exists(temporary):
            self.unlink(temporary)
        file = self.create(temporary)
        file.append(data)
        file.sync()
        self.rename(temporary, path)
        self.sync_directory(parent(path))

    def lock(self, path: str) -> DirectoryLock:
        if path in self._locks:
            raise DirectoryInUse(f"{path}: already in use by this simulation")
        self._locks.add(path)
        return _SimLock(self._locks, path)

    def lock_folder(self, path: str) -> DirectoryLock:
        return self.lock(path)

    async def run(self, function: Callable[..., T], *args: object) -> T:
        await trio.lowlevel.checkpoint()
        if self._off:
            raise PowerCut("the power is off")
        try:
            return function(*args)
        finally:
            owed_s, self._owed_s = self._owed_s, 0.0
            if owed_s and not self._off:
                with trio.CancelScope(shield=True):
                    await trio.sleep(owed_s)

    # ---- what a test does to it

    @property
    def is_off(self) -> bool:
        """The power went, and `crash` was not called yet."""
        return self._off

    def step(self, kind: str, path: str) -> None:
        """An operation is about to happen: count it, fail it, or cut the power before it. Other simulated
        stores that crash together with this disk call it too.
        """
        if self._off:
            raise PowerCut("the power is off")
        if self.inject is not None:
            self.inject(kind, path)
        self.faults.before(kind, path)
        if kind.endswith("read"):
            return
        if self.crash_at is not None and self.operations >= self.crash_at:
            self._off = True
            raise PowerCut(f"before operation {self.operations}: {kind} {path}")
        self.operations += 1
        self.log.append((kind, path))
        if kind == "sync" and self.faults.sync_s is not None:
            self._owed_s += self.faults.sync_s()

    def cut_power(self) -> None:
        """Whatever is done from now on fails with PowerCut, until `crash`."""
        self._off = True

    def crash(self, mode: CrashMode) -> None:
        """Lose, keep or tear what was not synced, and be on again. Open files and locks are gone."""
        self._names.crash(mode, self._chance)
        for inode in self._names.inodes():
            inode.crash(mode, self._chance)
        self._locks.clear()
        self.crashes += 1
        self.crash_at = None
        self._off = False

    def flip_bit(self, path: str, offset: int, bit: int) -> None:
        """Damage at rest."""
        self._names.current[path].flip_bit(offset, bit)

    def swap_sectors(self, path: str, first: int, second: int) -> None:
        """Damage at rest: two sectors, counted from 0, have changed places."""
        for content in (self._names.current[path].durable, self._names.current[path].current):
            places = [slice(n * SECTOR_BYTES, (n + 1) * SECTOR_BYTES) for n in (first, second)]
            one, other = bytes(content[places[0]]), bytes(content[places[1]])
            assert len(one) == len(other) == SECTOR_BYTES
            content[places[0]], content[places[1]] = other, one

    def story(self, count: int = 50) -> str:
        """The faults injected and the last operations, for whoever has to find out what happened."""
        last = range(max(0, len(self.log) - count), len(self.log))
        lines = [f"faults injected: {len(self.faults.log)}", *(f"  {text}" for text in self.faults.log)]
        lines += [f"last operations of {self.operations}:"]
        lines += [f"  {number:5} {self.log[number][0]} {self.log[number][1]}" for number in last]
        return "\n".join(lines)

    def fail_sync(self, inode: Inode) -> None:
        """A sync of this file has failed."""
        inode.fail_sync(self._chance)

    def room(self, inode: Inode, end: int) -> int:
        """Up to which length at most `end` the file may grow now; what it has already is its own."""
        if self.space_bytes is None or end <= len(inode.current):
            return end
        return min(end, len(inode.current) + max(0, self.space_bytes - self._used_bytes()))

    def _used_bytes(self) -> int:
        return sum(len(inode.current) for inode in self._names.inodes())

    def unsynced(self) -> Sequence[str]:
        """Paths with anything that a crash could lose."""
        names = self._names.unsynced()
        return sorted(names | {name for name, inode in self._names.current.items() if inode.pending})

    def _inode(self, path: str, doing: str) -> Inode:
        if self._off:
            raise PowerCut("the power is off")
        inode = self._names.current.get(path)
        if inode is None:
            raise StorageError(f"{path}: cannot {doing}: no such file")
        return inode

    def _need_directory(self, path: str) -> None:
        if parent(path) not in self._directories:
            raise StorageError(f"{path}: cannot create: no such directory")


class _SimLock:
    def __init__(self, locks: set[str], path: str) -> None:
        self._locks = locks
        self._path = path

    def release(self) -> None:
        self._locks.discard(self._path)
