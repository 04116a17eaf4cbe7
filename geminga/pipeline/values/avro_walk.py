"""Where the items of one AVRO array begin, one after the other: for a few long arrays among others, each of
which would take as many steps over all rows as it has items.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from geminga.pipeline.values.avro_cursor import (
    LONG_NUMBER,
    NEGATIVE,
    NO_BRANCH,
    NO_SYMBOL,
    TOO_SHORT,
    Refused,
)

Walk = Callable[[bytes, int, int], int]
"""Of one value in these bytes, from a place on: the place behind it, which is at most the end that is given.
There are zeros behind the end. Raises `Refused`.
"""
_NUMBER_BYTES = 10
_64_BITS = (1 << 64) - 1


def _number(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The number, zigzag, and the place behind it."""
    value = 0
    for index in range(_NUMBER_BYTES):
        byte = data[at + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            break
    else:
        raise Refused(LONG_NUMBER)
    at += index + 1
    if at > end:
        raise Refused(TOO_SHORT)
    value &= _64_BITS
    return (value >> 1) ^ -(value & 1), at


def walk_nothing(data: bytes, at: int, end: int) -> int:
    return at


def walk_number(data: bytes, at: int, end: int) -> int:
    if at < end and data[at] < 0x80:
        return at + 1
    return _number(data, at, end)[1]


def walk_span(data: bytes, at: int, end: int) -> int:
    size, at = _number(data, at, end)
    if size < 0:
        raise Refused(NEGATIVE)
    if size > end - at:
        raise Refused(TOO_SHORT)
    return at + size


def walk_width(width: int) -> Walk:
    def walk(data: bytes, at: int, end: int) -> int:
        if width > end - at:
            raise Refused(TOO_SHORT)
        return at + width

    return walk


def walk_enum(symbols: int) -> Walk:
    def walk(data: bytes, at: int, end: int) -> int:
        found, at = _number(data, at, end)
        if not 0 <= found < symbols:
            raise Refused(NO_SYMBOL)
        return at

    return walk


def walk_all(parts: Sequence[Walk]) -> Walk:
    def walk(data: bytes, at: int, end: int) -> int:
        for part in parts:
            at = part(data, at, end)
        return at

    return walk


def walk_union(branches: Sequence[Walk]) -> Walk:
    def walk(data: bytes, at: int, end: int) -> int:
        branch, at = _number(data, at, end)
        if not 0 <= branch < len(branches):
            raise Refused(NO_BRANCH)
        return branches[branch](data, at, end)

    return walk


@dataclass(frozen=True)
class ArrayWalk:
    """Of arrays whose items take at least one byte each."""

    part: Walk
    width: int | None
    """What each item takes; None: it varies."""
    smallest: int

    def rest(self, data: bytes, at: int, end: int, found: array[int]) -> int:
        """From the beginning of a block on: adds where each item begins, and returns the place behind the
        array. Raises `Refused`.
        """
        while True:
            count, at = _number(data, at, end)
            if count < 0:  # then its size in bytes follows
                count, at = -count, _number(data, at, end)[1]
            if count == 0:
                return at
            if count > (end - at) // self.smallest:
                raise Refused(TOO_SHORT)
            at = self.some(count, data, at, end, found)

    def some(self, count: int, data: bytes, at: int, end: int, found: array[int]) -> int:
        """Of so many items."""
        if self.width is not None:
            found.extend(range(at, at + self.width * count, self.width))
            return at + self.width * count
        part, add = self.part, found.append
        for _ in range(count):
            add(at)
            at = part(data, at, end)
        return at

    def __call__(self, data: bytes, at: int, end: int) -> int:
        """Behind an array within another."""
        return self.rest(data, at, end, array("q"))
