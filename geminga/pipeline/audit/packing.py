"""Columns of integers packed into one, so that grouping is one sort; and the bitmaps of what is in each
group.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from geminga.pipeline.audit.events import constant, is_constant

Integers = NDArray[np.int64]
_KEY_BITS_MAX: Final = 63
_NARROW_BITS_MAX: Final = 32
_COUNTED_MAX: Final = 1 << 22
CODE_BITS = 32
CODE_MASK = (1 << CODE_BITS) - 1


class Packing(NamedTuple):
    """How columns became one: each takes `bits`, the first the highest, and has `values` (or counts from
    `least`).
    """

    least: list[int]
    bits: list[int]
    values: list[Integers | None]

    def unpack(self, keys: Integers) -> list[Integers]:
        """The columns of packed keys, which may be any of them in any order."""
        keys = keys.astype(np.int64, copy=False)
        columns: list[Integers] = []
        for least, bits, values in reversed(list(zip(self.least, self.bits, self.values, strict=True))):
            low = keys & ((1 << bits) - 1)
            keys = keys >> bits
            columns.append(values[low] if values is not None else low + least)
        return columns[::-1]

    def last(self, keys: Integers) -> Integers:
        """The last column alone; of keys of 32 bits in as many, so that it has to fit."""
        low: Integers = keys & keys.dtype.type((1 << self.bits[-1]) - 1)
        values = self.values[-1]
        if values is not None:
            low = values[low]
            return low
        if self.least[-1]:
            low += low.dtype.type(self.least[-1])
        return low


def pack(columns: Sequence[Integers]) -> tuple[Integers, Packing]:
    """One key for each row, which sort as the columns do from left to right. At least one row.

    Keys are of 32 bits if that is enough for them, which halves what has to be moved. A column that spans
    more than the key has room for is replaced by ranks. Keys may be constant as columns may.
    """
    extremes = [_extremes(column) for column in columns]
    least = [low for low, _ in extremes]
    bits = [(high - low).bit_length() for low, high in extremes]
    values: list[Integers | None] = [None] * len(columns)
    offsets = list(columns)
    while sum(bits) > _KEY_BITS_MAX:
        widest = max((i for i in range(len(bits)) if values[i] is None), key=bits.__getitem__)
        found, ranks = np.unique(columns[widest], return_inverse=True)
        values[widest], offsets[widest] = found, ranks.astype(np.int64)
        least[widest], bits[widest] = 0, (len(found) - 1).bit_length()
    kind = np.uint32 if sum(bits) <= _NARROW_BITS_MAX else np.int64
    keys: Any = None
    for column, low, width in zip(offsets, least, bits, strict=True):
        if not width:
            continue
        part = np.subtract(column, low).astype(kind, copy=False) if low else column.astype(kind, copy=False)
        if keys is None:
            keys = part.copy() if part is column else part
        else:
            np.left_shift(keys, kind(width), out=keys)
            np.bitwise_or(keys, part, out=keys)
    if keys is None:
        keys = constant(0, len(columns[0]))
    return keys, Packing(least, bits, values)


def _extremes(column: Integers) -> tuple[int, int]:
    if is_constant(column):
        return int(column[0]), int(column[0])
    return int(column.min()), int(column.max())


def ordered(keys: Integers) -> Integers:
    """Ascending; the same array if it is so already."""
    if is_constant(keys):
        return keys
    return keys if bool(np.all(keys[1:] >= keys[:-1])) else np.sort(keys)


def begins_of(groups: Integers) -> Integers:
    """Where in a column whose equal values stand together each of them begins."""
    if is_constant(groups):
        return np.zeros(1, np.int64)
    changes = np.flatnonzero(groups[1:] != groups[:-1])
    begins = np.zeros(len(changes) + 1, np.int64)
    np.add(changes, 1, out=begins[1:])
    return begins


def distinct(keys: Integers) -> tuple[Integers, Integers]:
    """The values of a column, ascending, and how often each is there. At least one row; none below 0."""
    if is_constant(keys):
        return keys[:1], np.array([len(keys)])
    if int(keys.max()) < min(_COUNTED_MAX, 4 * len(keys)):
        counts = np.bincount(keys)
        values = np.flatnonzero(counts)
        return values, counts[values]
    found, counts = np.unique(keys, return_counts=True)
    return found, counts


def stable_order(groups: Integers) -> Integers:
    """The rows by group, each group's in the order in which they stand. None below 0."""
    width = int(groups.max()).bit_length()
    # Numpy sorts short integers by counting, in a tenth of the time.
    narrow = groups.astype(np.uint8 if width <= 8 else np.uint16) if width <= 16 else groups
    return np.argsort(narrow, kind="stable")


class Group(NamedTuple):
    of: tuple[int, ...]
    """The values of the grouping columns."""
    codes: BitMap
    repeated: BitMap
    """Codes that are there more than once, and"""
    extra: int
    """how many rows that is too many."""


def bitmaps(columns: Sequence[Integers], codes: Integers) -> Iterator[Group]:
    """The codes (from 0, below 2**32) of each combination of the columns, ascending. Any number of rows."""
    if not len(codes):
        return
    keys, packing = pack([*columns, codes])
    keys = ordered(keys)
    begins = begins_of(keys >> packing.bits[-1])
    of = [column.tolist() for column in packing.unpack(keys[begins])[:-1]]
    low = packing.last(keys).astype(np.uint32, copy=False)
    again = np.zeros(0, np.int64)
    if not is_constant(keys):
        again = np.flatnonzero(keys[1:] == keys[:-1]) + 1
    elif len(keys) > 1:
        again = np.arange(1, len(keys))
    bounds = np.append(begins, len(keys))
    in_again = np.searchsorted(again, bounds).tolist()
    ends = bounds.tolist()
    for number, begin in enumerate(ends[:-1]):
        first, last = in_again[number], in_again[number + 1]
        yield Group(
            tuple(column[number] for column in of),
            bitmap(low[begin : ends[number + 1]]),
            bitmap(low[again[first:last]]) if last > first else BitMap(),
            last - first,
        )


def bitmap(codes: NDArray[np.uint32]) -> BitMap:
    """Of ascending codes, some perhaps twice."""
    size = len(codes)
    if (
        size
        and int(codes[-1]) - int(codes[0]) == size - 1
        and (size < 3 or bool((np.diff(codes) == 1).all()))
    ):
        return BitMap(range(int(codes[0]), int(codes[-1]) + 1))
    # From a buffer of C ints pyroaring takes a tenth of the time that it takes from numpy's array.
    return BitMap(array("I", codes.tobytes()))


def packed(codes: BitMap) -> bytes:
    codes.run_optimize()
    data: bytes = codes.serialize()
    return data
