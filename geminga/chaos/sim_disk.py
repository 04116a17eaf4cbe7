"""A disk that crashes: what is durable and what is only pending are kept apart, without threads, by seed.

A `write` reaches the file as every reader sees it at once, and the durable file only when it is synced or
when a crash happens to keep it. A crash decides for each pending operation on its own, in 512-byte sectors
for writes: kept, lost, or torn in the middle; a lost sector that a later kept one makes part of the file
reads as zeros, or as whatever was durable there. Names behave the same until their directory is synced.

All is a function of the seed and the operations, so a failing case can be run again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeVar

import trio

from geminga.disk import Buffer, DirectoryInUse, DirectoryLock, File
from geminga.errors import StorageError

T = TypeVar("T")
SECTOR_BYTES = 512
CrashMode = Literal["drop", "keep", "torn"]
"""What becomes of everything not synced: all lost, all kept, or each thing as the seed has it."""


class PowerCut(BaseException):
    """The machine is off, until `crash` turns it on. No `Exception`: no code below a test survives it."""


class _Write:
    """Bytes on their way to a file; `extends_to` is the length that the file has with them."""

    __slots__ = ("data", "offset")

    def __init__(self, offset: int, data: bytes) -> None:
        self.offset = offset
        self.data = data


class _Resize:
    __slots__ = ("length",)

    def __init__(self, length: int) -> None:
        self.length = length


class _Inode:
    __slots__ = ("current", "durable", "pending")

    def __init__(self) -> None:
        self.durable = bytearray()
        self.current = bytearray()
        self.pending: list[_Write | _Resize] = []

    def write(self, offset: int, data: bytes) -> None:
        _apply_write(self.current, offset, data)
        self.pending.append(_Write(offset, data))

    def resize(self, length: int) -> None:
        _apply_resize(self.current, length)
        self.pending.append(_Resize(length))

    def sync(self) -> None:
        for operation in self.pending:
            _apply(self.durable, operation)
        self.pending.clear()

    def crash(self, mode: CrashMode, chance: random.Random) -> None:
        if mode == "keep":
            self.sync()
        elif mode == "torn":
            for operation in self.pending:
                _apply_torn(self.durable, operation, chance)
        self.pending.clear()
        self.current = bytearray(self.durable)


def _apply(content: bytearray, operation: _Write | _Resize) -> None:
    if isinstance(operation, _Write):
        _apply_write(content, operation.offset, operation.data)
    else:
        _apply_resize(content, operation.length)


def _apply_write(content: bytearray, offset: int, data: bytes) -> None:
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _apply_resize(content: bytearray, length: int) -> None:
    if length > len(content):
        content.extend(bytes(length - len(content)))
    else:
        del content[length:]


def _apply_torn(content: bytearray, operation: _Write | _Resize, chance: random.Random) -> None:
    if isinstance(operation, _Resize):
        if chance.random() < 0.5:
            _apply_resize(content, operation.length)
        return
    end = operation.offset + len(operation.data)
    if chance.random() < 0.5 and end > len(content):
        # The length got there before the bytes did.
        _apply_resize(content, end)
    keep = chance.choice((0.1, 0.5, 0.9))
    position = operation.offset
    while position < end:
        until = min(end, position - position % SECTOR_BYTES + SECTOR_BYTES)
        fate = chance.random()
        if fate < keep:
            if chance.random() < 0.1:
                until_kept = chance.randrange(position, until)
                data = operation.data[position - operation.offset : until_kept - operation.offset]
            else:
                data = operation.data[position - operation.offset : until - operation.offset]
            _apply_write(content, position, data)
        position = until


class SimFile:
    """A handle; it dies with the crash that follows its opening."""

    def __init__(self, disk: SimDisk, path: str, inode: _Inode) -> None:
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
        self._inode.write(offset, bytes(data))

    def pwrite_many(self, offset: int, parts: Sequence[Buffer]) -> None:
        self.pwrite(offset, b"".join(parts))

    def pread(self, offset: int, length: int) -> bytes:
        self._step("read")
        return bytes(self._inode.current[offset : offset + length])

    def size(self) -> int:
        return len(self._inode.current)

    def sync(self) -> None:
        self._step("sync")
        self._inode.sync()

    def allocate(self, length: int) -> None:
        if length > len(self._inode.current):
            self._step("allocate")
            self._inode.resize(length)

    def truncate(self, length: int) -> None:
        self._step("truncate")
        self._inode.resize(length)

    def drop_cache(self, offset: int, length: int) -> None:
        pass

    def close(self) -> None:
        self._closed = True

    def _step(self, kind: str) -> None:
        if self._life != self._disk.crashes:
            raise PowerCut(f"{self.path} was opened before the crash")
        assert not self._closed, f"{self.path} is closed"
        self._disk.step(kind, self.path)


class SimDisk:
    """Paths are plain strings; a directory exists once made. Everything is owned by one thread."""

    def __init__(self, seed: int = 0) -> None:
        self.crashes = 0
        self.operations = 0
        """Operations so far that change something; the n-th (from 0) is what `crash_at` counts."""
        self.crash_at: int | None = None
        self.log: list[tuple[str, str]] = []
        """Kind and path of each of them."""
        self.inject: Callable[[str, str], None] | None = None
        """Called with kind and path before every operation, reads included; may raise a StorageError."""
        self.free = 1 << 40
        """What `free_bytes` answers, whatever is written."""
        self._chance = random.Random(seed)
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._pending_names: list[tuple[str, dict[str, _Inode | None]]] = []
        """Directory, and what its names mean after the operation (None: nothing)."""
        self._directories = {"", "."}
        self._locks: set[str] = set()
        self._off = False

    # ---- the disk's surface

    def create(self, path: str) -> File:
        if path in self._names:
            raise StorageError(f"{path}: cannot create: it exists")
        self._need_directory(path)
        self.step("create", path)
        inode = _Inode()
        self._rename({path: inode})
        return SimFile(self, path, inode)

    def open(self, path: str) -> File:
        return SimFile(self, path, self._inode(path, "open"))

    def exists(self, path: str) -> bool:
        return path in self._names or path in self._directories

    def rename(self, old: str, new: str) -> None:
        inode = self._inode(old, "rename")
        assert _parent(old) == _parent(new), "a rename between directories is not atomic to a crash"
        self.step("rename", new)
        self._rename({new: inode, old: None})

    def unlink(self, path: str) -> None:
        self._inode(path, "delete")
        self.step("unlink", path)
        self._rename({path: None})

    def list(self, directory: str) -> list[str]:
        return sorted(name.rsplit("/", 1)[-1] for name in self._names if _parent(name) == directory)

    def make_directory(self, path: str) -> None:
        if path in self._directories:
            return
        self.make_directory(_parent(path))
        self.step("make_directory", path)
        self._directories.add(path)

    def sync_directory(self, path: str) -> None:
        self.step("sync_directory", path)
        for directory, names in self._pending_names:
            if directory == path:
                _set_names(self._durable_names, names)
        self._pending_names = [(where, names) for where, names in self._pending_names if where != path]

    def free_bytes(self, path: str) -> int:
        return self.free

    def total_bytes(self, path: str) -> int:
        return 1 << 40

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
        self.sync_directory(_parent(path))

    def lock(self, path: str) -> DirectoryLock:
        if path in self._locks:
            raise DirectoryInUse(f"{path}: already in use by this simulation")
        self._locks.add(path)
        return _SimLock(self._locks, path)

    async def run(self, function: Callable[..., T], *args: object) -> T:
        await trio.lowlevel.checkpoint()
        return function(*args)

    # ---- what a test does to it

    def step(self, kind: str, path: str) -> None:
        """An operation is about to happen: count it, fail it, or cut the power before it. Other simulated
        stores that crash together with this disk call it too.
        """
        if self._off:
            raise PowerCut("the power is off")
        if self.inject is not None:
            self.inject(kind, path)
        if kind == "read":
            return
        if self.crash_at is not None and self.operations >= self.crash_at:
            self._off = True
            raise PowerCut(f"before operation {self.operations}: {kind} {path}")
        self.operations += 1
        self.log.append((kind, path))

    def crash(self, mode: CrashMode) -> None:
        """Lose, keep or tear what was not synced, and be on again. Open files and locks are gone."""
        if mode == "keep":
            self._durable_names = dict(self._names)
        elif mode == "torn":
            for _, names in self._pending_names:
                if self._chance.random() < 0.5:
                    _set_names(self._durable_names, names)
        self._pending_names = []
        self._names = dict(self._durable_names)
        for inode in self._inodes():
            inode.crash(mode, self._chance)
        self._locks.clear()
        self.crashes += 1
        self.crash_at = None
        self._off = False

    def flip_bit(self, path: str, offset: int, bit: int) -> None:
        """Damage at rest."""
        inode = self._names[path]
        inode.durable[offset] ^= 1 << bit
        inode.current[offset] ^= 1 << bit

    def unsynced(self) -> Sequence[str]:
        """Paths with anything that a crash could lose."""
        names = {name for _, changed in self._pending_names for name in changed}
        return sorted(names | {name for name, inode in self._names.items() if inode.pending})

    def _inodes(self) -> Iterator[_Inode]:
        seen: set[int] = set()
        for inode in self._names.values():
            if id(inode) not in seen:
                seen.add(id(inode))
                yield inode

    def _inode(self, path: str, doing: str) -> _Inode:
        if self._off:
            raise PowerCut("the power is off")
        inode = self._names.get(path)
        if inode is None:
            raise StorageError(f"{path}: cannot {doing}: no such file")
        return inode

    def _need_directory(self, path: str) -> None:
        if _parent(path) not in self._directories:
            raise StorageError(f"{path}: cannot create: no such directory")

    def _rename(self, names: dict[str, _Inode | None]) -> None:
        _set_names(self._names, names)
        self._pending_names.append((_parent(next(iter(names))), names))


class _SimLock:
    def __init__(self, locks: set[str], path: str) -> None:
        self._locks = locks
        self._path = path

    def release(self) -> None:
        self._locks.discard(self._path)


def _set_names(target: dict[str, _Inode], names: dict[str, _Inode | None]) -> None:
    for name, inode in names.items():
        if inode is None:
            target.pop(name, None)
        else:
            target[name] = inode


def _parent(path: str) -> str:
    return path.rsplit("/", 1)[0] if "/" in path else ""
