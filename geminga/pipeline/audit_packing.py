"""Columns of integers packed into one, so that grouping is one sort; and the bitmaps of what is in each
group.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

Integers = NDArray[np.int64]
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
        columns: list[Integers] = []
        for least, bits, values in reversed(list(zip(self.least, self.bits, self.values, strict=True))):
            low = keys & ((1 << bits) - 1)
            keys = keys >> bits
            columns.append(values[low] if values is not None else low + least)
        return columns[::-1]

    def last(self, keys: Integers) -> Integers:
        """The last column alone."""
        low: Integers = keys & ((1 << self.bits[-1]) - 1)
        values = self.values[-1]
        if values is not None:
            low = values[low]
            return low
        low += self.least[-1]
        return low


def pack(columns: Sequence[Integers]) -> tuple[Integers, Packing]:
    """One key for each row, which sort as the columns do from left to right. At least one row.

    A column that spans more than the key has room for is replaced by ranks.
    """
    least = [int(column.min()) for column in columns]
    bits = [(int(column.max()) - low).bit_length() for column, low in zip(columns, least, strict=True)]
    values: list[Integers | None] = [None] * len(columns)
    offsets = list(columns)
    while sum(bits) > 63:
        widest = max((i for i in range(len(bits)) if values[i] is None), key=bits.__getitem__)
        found, ranks = np.unique(columns[widest], return_inverse=True)
        values[widest], offsets[widest] = found, ranks.astype(np.int64)
        least[widest], bits[widest] = 0, (len(found) - 1).bit_length()
    keys = np.zeros(len(columns[0]), np.int64)
    for column, low, width in zip(offsets, least, bits, strict=True):
        if width:
            keys <<= width
            keys |= column - low
    return keys, Packing(least, bits, values)


def ordered(keys: Integers) -> Integers:
    """Ascending; the same array if it is so already."""
    return keys if bool(np.all(keys[1:] >= keys[:-1])) else np.sort(keys)


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
    width = packing.bits[-1]
    groups = keys >> width
    begins = np.flatnonzero(np.diff(groups, prepend=groups[0] - 1))
    ends = np.append(begins[1:], len(keys))
    of = [column.tolist() for column in packing.unpack(keys[begins])[:-1]]
    low = packing.last(keys).astype(np.uint32)
    doubles = np.flatnonzero(keys[1:] == keys[:-1]) + 1
    in_doubles = np.searchsorted(doubles, np.append(begins, len(keys)))
    for number, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        first, last = in_doubles[number], in_doubles[number + 1]
        yield Group(
            tuple(column[number] for column in of),
            bitmap(low[begin:end]),
            bitmap(low[doubles[first:last]]),
            int(last - first),
        )


def bitmap(codes: NDArray[np.uint32]) -> BitMap:
    # From a buffer of C ints pyroaring takes a tenth of the time that it takes from numpy's array.
    return BitMap(array("I", codes.tobytes()))


def packed(codes: BitMap) -> bytes:
    codes.run_optimize()
    data: bytes = codes.serialize()
    return data
