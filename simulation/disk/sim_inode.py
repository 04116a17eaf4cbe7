"""One file's bytes on the simulated disk: what every reader sees, what is durable, and what is between.

The fault model is told in `sim_disk`; here it is done.
"""

from __future__ import annotations

import random
from typing import Final, Literal

SECTOR_BYTES: Final = 512
CrashMode = Literal["drop", "keep", "torn"]
"""What becomes of everything not synced: all lost, all kept, or each thing as the seed has it."""


class _Write:
    __slots__ = ("data", "is_durable", "offset")

    def __init__(self, offset: int, data: bytes) -> None:
        self.offset = offset
        self.data = data
        self.is_durable = False
        """It was synced, and something before it was not."""


class _Resize:
    __slots__ = ("length",)
    is_durable = False

    def __init__(self, length: int) -> None:
        self.length = length


class Inode:
    """A file without its names."""

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

    def sync_last_write(self) -> None:
        """The last write is durable, with the length that it needs. What was pending before it stays so, each
        by itself; a crash applies all in their order, so that this write wins where they overlap.
        """
        last = self.pending[-1]
        assert isinstance(last, _Write)
        last.is_durable = True
        if len(self.pending) == 1:
            self.sync()

    def fail_sync(self, chance: random.Random) -> None:
        """Some of it got there, the rest never will: its pages are clean now, readers still see them, and a
        later sync has nothing to do.
        """
        self._settle("torn", chance)

    def crash(self, mode: CrashMode, chance: random.Random) -> None:
        self._settle(mode, chance)
        self.current = bytearray(self.durable)

    def _settle(self, mode: CrashMode, chance: random.Random) -> None:
        for operation in self.pending:
            if operation.is_durable or mode == "keep":
                _apply(self.durable, operation)
            elif mode == "torn":
                _apply_torn(self.durable, operation, chance)
        self.pending.clear()

    def flip_bit(self, offset: int, bit: int) -> None:
        for content in (self.durable, self.current):
            content[offset] ^= 1 << bit


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
    begin, data = operation.offset, operation.data
    end = begin + len(data)
    if chance.random() < 0.5 and end > len(content):
        # The length got there before the bytes did.
        _apply_resize(content, end)
    keep = chance.choice((0.1, 0.5, 0.9))
    zero = keep + (1 - keep) * 0.2
    position = begin
    while position < end:
        until = min(end, position - position % SECTOR_BYTES + SECTOR_BYTES)
        fate = chance.random()
        if fate < keep:
            kept = until
            if chance.random() < 0.1:
                kept = chance.randrange(position, until)
            _apply_write(content, position, data[position - begin : kept - begin])
        elif fate < zero:
            _apply_write(content, position, bytes(until - position))
        position = until
