"""Positions in many AVRO values at once, and what is read there: numbers, spans, whether a value may go on.

Every value is a row. All rows take a step together, so that the price of a numpy call is shared by all. A
row that breaks a rule is refused: its position moves to bytes of zero behind all values, where every number
is 0, every text empty and every array at its end. So the other rows go on, no step looks for refused rows,
and none of them loops. Rows that lack an optional value are parked there too, while the others read it. A few
long arrays among others are walked through one value after the other instead.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geminga.pipeline.columns.protobuf_columns import Bytes, Ints

Flags = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]

TOO_SHORT, NEGATIVE, LONG_NUMBER, NO_BRANCH, NO_SYMBOL, NO_TEXT, LEFT_OVER, TOO_LARGE, TOO_MANY = range(1, 10)
REASONS = {
    TOO_SHORT: "it ends too early",
    NEGATIVE: "a negative length",
    LONG_NUMBER: "a number of more than ten bytes",
    NO_BRANCH: "a union has no such type",
    NO_SYMBOL: "an enum has no such symbol",
    NO_TEXT: "text that is not UTF-8",
    LEFT_OVER: "bytes are left over behind it",
    TOO_LARGE: "a number that the column cannot hold",
    TOO_MANY: "an array of too many items that take no bytes",
}
_PADDING_BYTES = 64
_PARK_BYTES = 48
"""Between the park and the end; what one step reads there is less."""
_NO_END = 1 << 62
"""Of a parked row."""
EMPTY_ITEMS_MAX = 1024
"""Of one value, if they take no bytes: their number is otherwise bounded by nothing."""
_ALL_EMPTY_ITEMS_MAX = 1 << 22
"""Of all values in a batch."""
_NO_ROWS: Ints = np.zeros(0, np.int64)


class Refused(Exception):
    """One value is; `reason` as in `REASONS`."""

    def __init__(self, reason: int) -> None:
        super().__init__(reason)
        self.reason = reason


class Values:
    """Bytes of all values, and of each why it was refused."""

    def __init__(self, raw: pa.BinaryArray) -> None:
        """`raw` has no nulls."""
        count = len(raw)
        bounds = np.frombuffer(raw.buffers()[1], np.int32)[raw.offset : raw.offset + count + 1]
        self.bounds = bounds.astype(np.int64) - int(bounds[0])
        size = int(self.bounds[-1])
        self.data: Bytes = np.zeros(size + _PADDING_BYTES, np.uint8)
        if size:
            self.data[:size] = np.frombuffer(raw.buffers()[2], np.uint8)[int(bounds[0]) : int(bounds[-1])]
        # eight bytes at each place, without a copy of any
        self.words: Words = np.ndarray((size + _PADDING_BYTES - 7,), "<u8", self.data, strides=(1,))
        self.park = size + _PADDING_BYTES - _PARK_BYTES
        self.codes: Bytes = np.zeros(count, np.uint8)
        self.changes = 0
        self.empty_items: Ints = np.zeros(count, np.int64)

    @cached_property
    def raw(self) -> bytes:
        """Of which one byte is had much sooner."""
        return self.data.tobytes()

    def cursor(self) -> Cursor:
        return Cursor(self, self.bounds[:-1].copy(), self.bounds[1:].copy())


@dataclass(eq=False)
class Cursor:
    """A place in each of some rows, or in several items of a row. `row`: of which value each is; None: there
    is one for each.
    """

    values: Values
    at: Ints
    end: Ints
    row: Ints | None = None
    parked: Ints = field(default_factory=lambda: _NO_ROWS)
    checked: bool = False
    """Arrays in it were walked through before, to find what is behind them."""
    _seen: int = 0

    def __len__(self) -> int:
        return len(self.at)

    def take(self, which: Ints) -> Cursor:
        """At the same places as some of these."""
        self._settle()
        row = which if self.row is None else self.row[which]
        return self._child(self.at[which], self.end[which], row, bool(self.parked.size))

    def items(self, at: Ints, of: Ints) -> Cursor:
        """At places `at` within the rows `of`."""
        self._settle()
        row = of if self.row is None else self.row[of]
        return self._child(at, self.end[of], row, bool(self.parked.size), checked=True)

    def where(self, present: Flags) -> Cursor:
        """Like this one, the others parked."""
        self._settle()
        at, end = np.where(present, self.at, self.values.park), np.where(present, self.end, _NO_END)
        return self._child(at, end, self.row, True)

    def follow(self, inner: Cursor, which: Ints) -> None:
        """To where one that was taken of some has come."""
        self.at[which] = inner.at

    def follow_where(self, inner: Cursor, present: Flags) -> None:
        self.at = np.where(present, inner.at, self.at)

    def _child(
        self, at: Ints, end: Ints, row: Ints | None, some_parked: bool, *, checked: bool = False
    ) -> Cursor:
        parked = np.flatnonzero(end == _NO_END) if some_parked else _NO_ROWS
        return Cursor(self.values, at, end, row, parked, checked or self.checked, self._seen)

    def refuse(self, which: Flags, reason: int) -> None:
        places = np.flatnonzero(which)
        rows = places if self.row is None else self.row[places]
        codes = self.values.codes
        codes[rows[codes[rows] == 0]] = reason
        self.values.changes += 1
        self._settle()

    def _settle(self) -> None:
        """Rows that were refused since, here or in another cursor, are parked; parked ones stay there."""
        values = self.values
        if self._seen != values.changes:
            codes = values.codes if self.row is None else values.codes[self.row]
            self.end[codes != 0] = _NO_END
            self.parked = np.flatnonzero(self.end == _NO_END)
            self._seen = values.changes
        if self.parked.size:
            self.at[self.parked] = values.park

    def _move(self, after: Ints) -> None:
        self.at = after
        beyond = after > self.end
        if beyond.any():
            self.refuse(beyond, TOO_SHORT)

    def longs(self) -> Ints:
        """A number of one to ten bytes, zigzag, in each row."""
        self._settle()
        first = self.values.data[self.at]
        more = first >= 0x80
        value: Any
        if not more.any():
            self._move(self.at + 1)
            value = first.astype(np.int64)
            short: Ints = (value >> 1) ^ -(value & 1)
            return short
        longer = np.flatnonzero(more)
        if 2 * longer.size > len(more):
            value, size, endless = self._long_numbers(self.at)
            too_long = endless
        else:
            value, size = first.astype(np.uint64), np.ones(len(first), np.int64)
            value[longer], size[longer], endless = self._long_numbers(self.at[longer])
            too_long = np.zeros(len(first), np.bool_)
            too_long[longer] = endless
        self._move(self.at + size)
        if endless.any():
            self.refuse(too_long, LONG_NUMBER)
        found: Ints = (value >> 1).view(np.int64) ^ -(value & 1).view(np.int64)
        return found

    def _long_numbers(self, at: Ints) -> tuple[Words, Ints, Flags]:
        """The number at each place, its bytes, and whether it does not end in time.

        Eight bytes are one word. Its lowest clear top bit of a byte is where the number ends; what is behind
        is masked out, and the groups of 7 bits are moved together in three steps: pairs, fours, all eight.
        """
        word: Any = self.values.words[at]
        stop = ~word & 0x8080808080808080
        stop &= -stop
        size = (((stop >> 7) * 0x0102030405060708) >> 56).view(np.int64)
        word &= (stop << 1) - 1
        word &= 0x7F7F7F7F7F7F7F7F
        word = (word & 0x007F007F007F007F) | ((word & 0x7F007F007F007F00) >> 1)
        word = (word & 0x00003FFF00003FFF) | ((word & 0x3FFF00003FFF0000) >> 2)
        word = (word & 0x000000000FFFFFFF) | ((word & 0x0FFFFFFF00000000) >> 4)
        endless = size == 0
        if endless.any():
            rest = np.flatnonzero(endless)
            ninth, tenth = (self.values.data[at[rest] + byte].astype(np.uint64) for byte in (8, 9))
            of_ten = ninth >= 0x80
            word[rest] |= (ninth & 0x7F) << 56 | np.where(of_ten, tenth << 63, 0)
            size[rest] = 9 + of_ten
            endless[rest] = of_ten & (tenth >= 0x80)
        return word, size, endless

    def words(self, width: int) -> Words:
        """`width` (at most 8) bytes, and what is behind them."""
        self._settle()
        found = self.values.words[self.at]
        self._move(self.at + width)
        return found

    def bytes(self) -> Bytes:
        self._settle()
        found = self.values.data[self.at]
        self._move(self.at + 1)
        return found

    def spans(self) -> tuple[Ints, Ints]:
        """Where the bytes are that have their length before them, and how many."""
        return self._span(self.longs())

    def fixed_spans(self, width: int) -> tuple[Ints, Ints]:
        self._settle()
        return self._span(np.full(len(self), width, np.int64))

    def _span(self, size: Ints) -> tuple[Ints, Ints]:
        if self.parked.size:
            size[self.parked] = 0
        wrong = (size < 0) | (size > self.end - self.at)
        if wrong.any():
            self.refuse(size < 0, NEGATIVE)
            self.refuse(wrong, TOO_SHORT)
            size[wrong] = 0
        at = self.at
        self.at = at + size
        return at, size

    def skip(self, width: int) -> None:
        self._settle()
        self._move(self.at + width)

    def count_empty_items(self, count: Ints) -> None:
        """Items that take no bytes: they are counted for each value, and refused if they are too many."""
        if self.checked:
            return
        values = self.values
        many = count > EMPTY_ITEMS_MAX
        counted = np.where(many, 0, count)
        np.add.at(values.empty_items, np.arange(len(self)) if self.row is None else self.row, counted)
        so_far = values.empty_items if self.row is None else values.empty_items[self.row]
        many |= so_far > EMPTY_ITEMS_MAX
        before = int(values.empty_items.sum()) - int(counted.sum())
        many |= (counted > 0) & (before + np.cumsum(counted) > _ALL_EMPTY_ITEMS_MAX)
        if many.any():
            self.refuse(many, TOO_MANY)
            count[many] = 0


# -- one value alone ---------------------------------------------------------------------------------------
# For a few long arrays among others: each would take as many steps over all rows as it has items.

Walk = Callable[[bytes, int, int], int]
"""Of one value in these bytes, from a place on: the place behind it, which is at most the end that is given.
There are zeros behind the end. Raises `Refused`.
"""
_NUMBER_BYTES = 10
_64_BITS = (1 << 64) - 1


def _number(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The number, zigzag, and the place behind it."""
    first = data[at]
    if first < 0x80 and at < end:
        return (first >> 1) ^ -(first & 1), at + 1
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


def block_of(data: bytes, at: int, end: int) -> tuple[int, int]:
    """How many items the block of an array has that begins here, 0: the array ends; and the place of the
    first one.
    """
    count, at = _number(data, at, end)
    if count < 0:  # then its size in bytes follows
        return -count, _number(data, at, end)[1]
    return count, at


def walk_nothing(data: bytes, at: int, end: int) -> int:
    return at


def walk_number(data: bytes, at: int, end: int) -> int:
    if at < end and data[at] < 0x80:
        return at + 1
    for after in range(at + 1, at + _NUMBER_BYTES + 1):
        if data[after - 1] < 0x80:
            if after > end:
                raise Refused(TOO_SHORT)
            return after
    raise Refused(LONG_NUMBER)


def walk_span(data: bytes, at: int, end: int) -> int:
    size = data[at]
    if size < 0x80 and not size & 1:
        at += 1 + (size >> 1)
        if at > end:
            raise Refused(TOO_SHORT)
        return at
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


_MANY_NUMBERS = 32


def _number_begins(count: int, data: bytes, at: int, end: int) -> tuple[Ints, int]:
    """Of so many numbers, and where the last one ends; none if one of them is wrong."""
    part = np.frombuffer(data, np.uint8, min(end - at, count * _NUMBER_BYTES), at)
    ends = np.flatnonzero(part < 0x80)[:count]
    if len(ends) < count:
        return _NO_ROWS, at
    begins = np.zeros(count, np.int64)
    begins[1:] = ends[:-1] + 1
    if (ends - begins >= _NUMBER_BYTES).any():
        return _NO_ROWS, at
    return begins + at, at + int(ends[-1]) + 1


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
            count, at = block_of(data, at, end)
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
        if part is walk_number and count >= _MANY_NUMBERS:
            begins, after = _number_begins(count, data, at, end)
            if len(begins):
                found.frombytes(begins.tobytes())
                return after
        for _ in range(count):
            add(at)
            at = part(data, at, end)
        return at

    def __call__(self, data: bytes, at: int, end: int) -> int:
        """Behind an array within another."""
        return self.rest(data, at, end, array("q"))


# -- arrays in many values ---------------------------------------------------------------------------------


def items(
    cursor: Cursor,
    skip: Callable[[Cursor], None],
    width: int | None,
    smallest: int,
    walk: ArrayWalk | None,
) -> tuple[Ints, Ints]:
    """Of the array in each row: how many items it has, and where every item begins, row by row.

    `width`: what each item takes; None: it varies, and `skip` tells. `smallest`: what it takes at least.
    `walk`: few rows with many items more than the others are walked through one by one.
    """
    rows: Ints = np.arange(len(cursor))
    counts = np.zeros(len(cursor), np.int64)
    open_rows, at, number = [_NO_ROWS], [_NO_ROWS], [_NO_ROWS]
    block, blocks = cursor.take(rows), 0
    while rows.size:
        blocks += 1
        is_few = blocks > _MANY_STEPS and rows.size <= _FEW_ROWS
        if walk is not None and (is_few or (width is None and rows.size <= _WALKED_ROWS)):
            for place, positions in _walked(block, walk):
                row = rows[place]
                open_rows.append(np.full(len(positions), row))
                at.append(positions)
                number.append(counts[row] + np.arange(len(positions)))
                counts[row] += len(positions)
            cursor.at[rows] = block.at
            break
        count = _block_count(block, smallest)
        ended = count == 0
        cursor.at[rows[ended]] = block.at[ended]
        going = np.flatnonzero(count)
        rows, count, block = rows[going], count[going], block.take(going)
        if width is not None:
            of = np.repeat(np.arange(len(rows)), count)
            within = np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count)
            open_rows.append(rows[of])
            at.append(block.at[of] + width * within)
            number.append(counts[rows][of] + within)
            block.at = block.at + width * count
        else:
            for places, positions, step in _steps(block, count, skip, walk):
                open_rows.append(rows[places])
                at.append(positions)
                number.append(counts[rows[places]] + step)
        counts[rows] += count
    return _in_order(counts, open_rows, at, number)


def _in_order(counts: Ints, rows: list[Ints], at: list[Ints], number: list[Ints]) -> tuple[Ints, Ints]:
    row = np.concatenate(rows)
    found = np.bincount(row, minlength=len(counts)).astype(np.int64)  # fewer than `counts` of refused rows
    places = np.empty(len(row), np.int64)
    places[(np.cumsum(found) - found)[row] + np.concatenate(number)] = np.concatenate(at)
    return found, places


def _block_count(block: Cursor, smallest: int) -> Ints:
    """Items of the block that begins here; 0: there is none."""
    count = block.longs()
    negative = count < 0
    if negative.any():  # then its size in bytes follows
        which = np.flatnonzero(negative)
        sized = block.take(which)
        sized.longs()
        block.at[which] = sized.at
        count[which] = -count[which]
        block.refuse(count < 0, NEGATIVE)
    if block.parked.size:
        count[block.parked] = 0
    if smallest == 0:
        block.count_empty_items(count)
        return count
    many = count > (block.end - block.at) // smallest
    if many.any():
        block.refuse(many, TOO_SHORT)
        count[many] = 0
    return count


_FEW_ROWS, _MANY_STEPS = 256, 48
"""A step costs as much as decoding so many items one by one."""
_WALKED_ROWS = 16
"""So few are not worth a step."""


def _walked(block: Cursor, walk: ArrayWalk, left: Ints | None = None) -> Iterator[tuple[int, Ints]]:
    """Row by row: its place in `block`, and where each item begins: of so many that are `left`, or to the end
    of its array. Moves `block` behind them.
    """
    block._settle()
    data = block.values.raw
    for place, (at, end) in enumerate(zip(block.at.tolist(), block.end.tolist(), strict=True)):
        if end == _NO_END:
            continue
        found = array("q")
        try:
            if left is None:
                block.at[place] = walk.rest(data, at, end, found)
            else:
                block.at[place] = walk.some(int(left[place]), data, at, end, found)
        except Refused as error:
            block.refuse(np.arange(len(block)) == place, error.reason)
            continue
        yield place, np.frombuffer(found, np.int64) if found else _NO_ROWS


def _steps(
    block: Cursor, count: Ints, skip: Callable[[Cursor], None], walk: ArrayWalk | None
) -> list[tuple[Ints, Ints, int | Ints]]:
    """Item by item: the places in `block` that have one, where it begins, and its number."""
    found: list[tuple[Ints, Ints, int | Ints]] = []
    places, left, moving, step = np.arange(len(block)), count.copy(), block.take(np.arange(len(block))), 0
    while places.size:
        found.append((places, moving.at.copy(), step))
        skip(moving)
        moving._settle()
        left -= 1
        step += 1
        is_few = step >= _MANY_STEPS and places.size <= _FEW_ROWS and int(left.max()) > _MANY_STEPS
        if walk is not None and is_few:
            for place, positions in _walked(moving, walk, left):
                of = np.full(len(positions), places[place])
                found.append((of, positions, step + np.arange(len(positions))))
            block.at[places] = moving.at
            break
        if moving.parked.size:
            left[moving.parked] = 0
        ended = left <= 0
        if ended.any():
            block.at[places[ended]] = moving.at[ended]
            going = np.flatnonzero(~ended)
            places, left, moving = places[going], left[going], moving.take(going)
    return found
