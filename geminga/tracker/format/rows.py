"""Rows of the delayed index: columns of due times and positions, and what is done to whole columns. Pure.

A position is one number here, its *code*: ledger id << 32 | entry id, so that codes sort in the order of the
topic. Ledger ids come from a counter that begins with small numbers; below 2**31 is asserted.

This module imports numpy (75 ms, 15 MB), so nothing that a start needs may import it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

# One int64 for a position halves the memory of a pair and lets numpy sort, search and subtract whole columns.
# Ledger ids get 31 bits, so that no packed position is negative.
ENTRY_BITS: Final = 32
ENTRY_MASK: Final = (1 << ENTRY_BITS) - 1
LEDGER_ID_END: Final = 1 << 31
_DIGIT_END: Final = 1 << 16
_DIGITS_END: Final = 1 << 32
# Clients may send any int64 as a delivery time. Without the cut, adding a delay or a step would overflow and
# make the farthest message due at once.
FAR_MS: Final = 1 << 62
"""Due times beyond this are cut to it: the year 146 million."""


class Rows(NamedTuple):
    """Two columns of the same length. "Sorted" means by (time, code), each code once."""

    times_ms: Integers
    codes: Integers

    @property
    def length(self) -> int:
        return len(self.codes)

    def part(self, start: int, end: int) -> Rows:
        """Rows `start` to `end` - 1, as views."""
        return Rows(self.times_ms[start:end], self.codes[start:end])

    def where(self, chosen: NDArray[np.bool_]) -> Rows:
        return Rows(self.times_ms[chosen], self.codes[chosen])

    def sorted(self) -> Rows:
        """The rows by (time, code); themselves if they are sorted already."""
        # Rows mostly arrive in order (a constant delay), and looking is much cheaper than sorting.
        return self if is_sorted(self) else _sort(self)


EMPTY: Final = Rows(np.zeros(0, np.int64), np.zeros(0, np.int64))


def code_of(ledger_id: int, entry_id: int) -> int:
    assert 0 <= ledger_id < LEDGER_ID_END
    assert 0 <= entry_id <= ENTRY_MASK
    return ledger_id << ENTRY_BITS | entry_id


def position_of(code: int) -> tuple[int, int]:
    """(ledger id, entry id) of a code."""
    return code >> ENTRY_BITS, code & ENTRY_MASK


def from_columns(times_ms: Iterable[int], codes: Iterable[int]) -> Rows:
    """Any columns of integers (lists, arrays of type "q"), copied, in the order given."""
    return Rows(_column(times_ms), _column(codes))


def _column(numbers: Iterable[int]) -> Integers:
    return np.array(numbers if isinstance(numbers, Sequence) else list(numbers), np.int64)


def concatenate(parts: Sequence[Rows]) -> Rows:
    """All rows, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return EMPTY
    return Rows(np.concatenate([p.times_ms for p in parts]), np.concatenate([p.codes for p in parts]))


def merge(parts: Sequence[Rows]) -> Rows:
    """Merge parts, which need not be sorted, into sorted rows. A code in several parts keeps all its rows."""
    return concatenate(parts).sorted()


def is_sorted(rows: Rows) -> bool:
    """By (time, code)."""
    times_ms, codes = rows
    if len(codes) < 2:
        return True
    # Times first: they settle it for most columns, and the codes are not touched.
    if not bool((times_ms[1:] >= times_ms[:-1]).all()):
        return False
    misplaced = times_ms[1:] == times_ms[:-1]
    misplaced &= codes[1:] <= codes[:-1]
    return not bool(misplaced.any())


def order_of(numbers: Integers) -> Integers:
    """The stable order of numbers that are not negative, at least one."""
    highest = int(numbers.max())
    if highest < _DIGITS_END:
        # numpy sorts numbers of up to 16 bits digit by digit, several times as fast as by comparing.
        low = numbers.astype(np.uint8 if highest < 1 << 8 else np.uint16)
        order = np.argsort(low, kind="stable")
        if highest >= _DIGIT_END:
            upper = (numbers >> 16).astype(np.uint8 if highest < 1 << 24 else np.uint16)
            order = order.take(np.argsort(upper.take(order), kind="stable"))
        return order
    bits = len(numbers).bit_length()
    # Number and place do not fit into one word together.
    if highest >> (63 - bits):
        return np.argsort(numbers, kind="stable")
    # One plain sort of (number, place) in a word takes a third of the time of a stable one.
    places = (numbers << bits) | np.arange(len(numbers))
    places.sort()
    ordered: Integers = places & ((1 << bits) - 1)
    return ordered


def _sort(rows: Rows) -> Rows:
    times_ms, codes = rows
    offsets_ms = times_ms - times_ms.min()
    # Clients often round due times: without their common zero bits more spans fit into 32 bits.
    unit = _lowest_bit(int(np.bitwise_or.reduce(offsets_ms)))
    if int(offsets_ms.max()) >> unit < _DIGITS_END:
        # By time alone, digit by digit: several times as fast, and enough where rows of the same time come in
        # the order of their codes, as they do where parts of different ledgers follow each other.
        order = order_of(offsets_ms >> unit)
        by_time = Rows(times_ms.take(order), codes.take(order))
        if is_sorted(by_time):
            return by_time
    return _sort_words(rows, offsets_ms)


def _lowest_bit(number: int) -> int:
    return (number & -number).bit_length() - 1 if number else 0


def _sort_words(rows: Rows, offsets_ms: Integers) -> Rows:
    """By one plain sort of (time, ledger, entry) in a word where they fit into one."""
    times_ms, codes = rows
    first_ms, low = int(times_ms.min()), int(codes.min())
    time_bits = int(offsets_ms.max()).bit_length()
    code_bits = (int(codes.max()) - low).bit_length()
    if time_bits + code_bits <= 63:
        keys = offsets_ms << code_bits
        keys |= codes - low
        keys.sort()
        return Rows((keys >> code_bits) + first_ms, (keys & ((1 << code_bits) - 1)) + low)
    row_bits = len(codes).bit_length()
    if time_bits + row_bits <= 63:
        by_code = np.argsort(codes, kind="stable")
        keys = (offsets_ms[by_code] << row_bits) | np.arange(len(codes))
        keys.sort()
        order = by_code[keys & ((1 << row_bits) - 1)]
    else:
        # The slow way is left for spans of centuries with random positions.
        order = np.lexsort((codes, times_ms))
    return Rows(times_ms[order], codes[order])


def rows_up_to(rows: Rows, time_ms: int, code: int) -> int:
    """How many of these sorted rows are at or before (time, code)."""
    times_ms, codes = rows
    end = int(times_ms.searchsorted(time_ms, "right"))
    # Many messages may be due in the same millisecond; only then the second search is needed.
    if end and times_ms.item(end - 1) == time_ms and codes.item(end - 1) > code:
        start = int(times_ms[:end].searchsorted(time_ms, "left"))
        return start + int(codes[start:end].searchsorted(code, "right"))
    return end


def split_repeated(rows: Rows) -> tuple[Rows, Rows]:
    """The first row of each code, and the others; each as sorted as they came."""
    # The earliest row of a code counts: a message whose due time was changed may stand in two buckets.
    _, firsts = np.unique(rows.codes, return_index=True)
    is_first = np.zeros(rows.length, bool)
    is_first[firsts] = True
    return rows.where(is_first), rows.where(~is_first)
