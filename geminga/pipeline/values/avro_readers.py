"""Parts of AVRO values into Arrow arrays: of every type what reads its column, and what skips it.

A reader takes a cursor over all rows, moves it behind the part, and gives an array with an item for each
row. `present` says which rows have the part (None: all); the others are parked in the cursor, and null in the
array.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from geminga.pipeline.columns.protobuf_columns import Ints
from geminga.pipeline.values.avro_cursor import (
    NO_BRANCH,
    NO_SYMBOL,
    NO_TEXT,
    TOO_LARGE,
    ArrayWalk,
    Cursor,
    Flags,
    items,
)
from geminga.pipeline.values.rules import OutOfRange

Skip = Callable[[Cursor], None]
_INT64_MAX = (1 << 63) - 1
_DECIMAL_BYTES = 16


class Reader(Protocol):
    def __call__(self, cursor: Cursor, present: Flags | None) -> pa.Array: ...


def _bits(present: Flags | None) -> pa.Buffer | None:
    return None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))


def _plain(kind: pa.DataType, values: Any, present: Flags | None) -> pa.Array:
    """Of numbers that are laid out as the column has them."""
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [_bits(present), data])


def _expanded(found: pa.Array, present: Flags) -> pa.Array:
    """An item for each row, from an array of those of the present ones."""
    places = np.cumsum(present) - 1
    return found.take(pa.array(places, mask=~present))


@dataclass(frozen=True)
class Nulls:
    kind: pa.DataType

    def __call__(self, cursor: Cursor, present: Flags | None) -> pa.Array:
        return pa.nulls(len(cursor), self.kind)


@dataclass(frozen=True)
class Default:
    """A field that the writer did not have: one value for all, as an array of one."""

    value: pa.Array

    def __call__(self, cursor: Cursor, present: Flags | None) -> pa.Array:
        if self.value.null_count:
            return pa.nulls(len(cursor), self.value.type)
        places = np.zeros(len(cursor), np.int64)
        return self.value.take(pa.array(places, mask=None if present is None else ~present))


@dataclass(frozen=True)
class Booleans:
    def __call__(self, cursor: Cursor, present: Flags | None) -> pa.Array:
        found = cursor.bytes() != 0
        return pa.array(found, mask=None if present is None else ~present)


@dataclass(frozen=True)
class Integers:
    """Of int and long. `as_float`: the reader has them so."""

    kind: pa.DataType
    as_float: bool = False

    def __call__(self, cursor: Cursor, present: Flags | None) -> pa.Array:
        values = cursor.longs()
        layout = self.kind.to_pandas_dtype()
        if self.as_float:  # by way of double, as the row by row decoder does
            return _plain(self.kind, values.astype(np.float64).astype(layout), present)
        if self.kind.bit_width == 64:
            return _plain(self.kind, values, present)
        narrow = values.astype(np.int32)
        wrong = narrow != values
        if wrong.any():
            cursor.refuse(wrong, TOO_LARGE)
        return _plain(self.kind, narrow, present)


@dataclass(frozen=True)
class Dates:
    kind: pa.DataType

    def __call__(self, cursor: Cursor, present: Flags | None) -> pa.Array:
        days = Integers(pa.int32())(cursor, present)
        return days.view(self.kind)


@dataclass(frozen=True)
class Times:
    """Of millis (`unit_us` 1000) and micros, in microseconds."""

    kind: pa.DataType
    unit_us: int
    out_of_range: OutOfRange

    def __call__(self, cursor: Cursor, present: Flags | None) -> pa.Array:
        values = cursor.longs()
        if self.unit_us == 1:
            return _plain(self.kind, values, present)
        greatest = _INT64_MAX // self.unit_us
        beyond = (values > greatest) | (values < -greatest)
        if beyond.any():
            if self.out_of_range == "error":
                cursor.refuse(beyond, TOO_LARGE)
            elif self.out_of_range == "null":
                present = ~beyond if present is None else present & ~beyond
            values = np.clip(values, -greatest, greatest)
        return _plain(self.kind, values * self.unit_us, present)


@dataclass(frozen=True)
class Floats:
    kind: pa.DataType
    from_float: bool
    """The writer has four bytes of each."""

    def __call__(self, cursor: Cursor, present: Flags | None) -> pa.Array:
        if not self.from_float:
            return _plain(self.kind, cursor.words(8), present)
        found = cursor.words(4).astype(np.uint32)
        if self.kind.bit_width == 32:
            return _plain(self.kind, found, present)
        with np.errstate(invalid="ignore"):  # a signalling NaN is one
            return _plain(self.kind, found.view(np.float32).astype(np.float64), present)


def _gathered(kind: pa.DataType, cursor: Cursor, at: Ints, size: Ints) -> pa.Array:
    """The bytes of each span, which are in order but for those of no bytes."""
    count = len(at)
    if count == 0:
        return pa.array([], kind)
    if cursor.parked.size:
        at = np.maximum.accumulate(np.where(size == 0, 0, at))
    bounds = np.empty(2 * count, np.int32)
    bounds[::2] = at
    np.add(at, size, out=bounds[1::2], casting="unsafe")
    # an array of span, gap, span...; the spans are then taken from it by compiled code
    source = pa.Array.from_buffers(
        kind, 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(cursor.values.data)]
    )
    return source.take(pa.array(np.arange(0, 2 * count, 2)))


def _with_nulls(found: pa.Array, kind: pa.DataType, present: Flags | None) -> pa.Array:
    _, offsets, data = found.buffers()
    return pa.Array.from_buffers(kind, len(found), [_bits(present), offsets, data], offset=found.offset)


@dataclass(frozen=True)
class Bytes:
    kind: pa.DataType
    width: int | None = None
    """None: a length is before them."""
    is_text: bool = False
    """For the writer or the reader."""
    replaces: bool = False
    """Where it is none: the writer wrote bytes, and only the reader has them as text. Java does so too."""

    def __call__(self, cursor: Cursor, present: Flags | None) -> pa.Array:
        at, size = cursor.spans() if self.width is None else cursor.fixed_spans(self.width)
        found = _gathered(pa.binary(), cursor, at, size)
        if self.is_text and self.replaces and not _is_text(found):
            texts = [value.decode(errors=_AS_JAVA) for value in found.to_pylist()]
            return pa.array(texts, self.kind, mask=None if present is None else ~present)
        if self.is_text and not _is_text(found):
            wrong = np.array([not _is_text(one) for one in (found.slice(i, 1) for i in range(len(found)))])
            cursor.refuse(wrong, NO_TEXT)
            found = _gathered(pa.binary(), cursor, at, np.where(wrong, 0, size))
        return _with_nulls(found, self.kind, present)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """Where Java puts one U+FFFD, and where it goes on. Half of a surrogate pair is one piece to it, and two
    or three to Python.
    """
    assert isinstance(error, UnicodeDecodeError)
    data, at = error.object, error.start
    if data[at] == 0xED and data[at + 1 : at + 2] >= b"\xa0" and data[at + 1] < 0xC0:
        return "\ufffd", at + (3 if 0x80 <= int.from_bytes(data[at + 2 : at + 3]) < 0xC0 else 2)
    return "\ufffd", error.end


_AS_JAVA = "geminga.java"
codecs.register_error(_AS_JAVA, _replaced)


def _is_text(found: pa.BinaryArray) -> bool:
    try:
        found.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


@dataclass(frozen=True)
class Decimals:
    """Big endian, two's complement, in as many bytes as the writer liked."""

    kind: pa.Decimal128Type
    width: int | None

    def __call__(self, cursor: Cursor, present: Flags | None) -> pa.Array:
        at, size = cursor.spans() if self.width is None else cursor.fixed_spans(self.width)
        data, count = cursor.values.data, len(at)
        table = np.zeros((count, _DECIMAL_BYTES), np.uint8)
        sign = np.where((size > 0) & (data[at] >= 0x80), 0xFF, 0).astype(np.uint8)
        last = at + size - 1
        for byte in range(min(_DECIMAL_BYTES, int(size.max(initial=0)))):
            table[:, byte] = np.where(byte < size, data[np.maximum(last - byte, 0)], sign)
        table[:, min(_DECIMAL_BYTES, int(size.max(initial=0))) :] = sign[:, None]
        wrong = self._beyond(table)
        for row in np.flatnonzero(size > _DECIMAL_BYTES).tolist():
            more = data[at[row] : last[row] - _DECIMAL_BYTES + 1]
            top = table[row, -1] & 0x80
            wrong[row] |= bool((more != sign[row]).any()) or (top != 0) != (sign[row] != 0)
        if wrong.any():
            cursor.refuse(wrong, TOO_LARGE)
            table[wrong] = 0
        return pa.Array.from_buffers(self.kind, count, [_bits(present), pa.py_buffer(table)])

    def _beyond(self, table: Any) -> Flags:
        """More digits than the column has."""
        low, high = table.view("<u8").T
        negative = high >= 1 << 63
        # the absolute value: all bits turned over, plus one
        some_low, some_high = np.where(negative, ~low, low), np.where(negative, ~high, high)
        some_low = some_low + negative
        some_high = some_high + (negative & (some_low == 0))
        most = 10**self.kind.precision - 1
        most_high, most_low = most >> 64, most & ((1 << 64) - 1)
        found: Flags = (some_high > most_high) | ((some_high == most_high) & (some_low > most_low))
        return found


@dataclass(frozen=True)
class Enums:
    kind: pa.DataType
    symbols: tuple[str | None, ...]
    """In the writer's order, as the reader calls them; None: it has no such."""

    def __call__(self, cursor: Cursor, present: Flags | None) -> pa.Array:
        found = cursor.longs()
        wrong = (found < 0) | (found >= len(self.symbols))
        if None in self.symbols:
            known = np.array([each is not None for each in self.symbols], np.bool_)
            wrong[~wrong] = ~known[found[~wrong]]
            if present is not None:
                wrong &= present
        if wrong.any():
            cursor.refuse(wrong, NO_SYMBOL)
        absent = wrong if present is None else wrong | ~present
        names = pa.array(self.symbols, self.kind)
        return names.take(pa.array(found, mask=absent if absent.any() else None))


_SPARSE = 4
"""If fewer than one row in so many has it, a part is read of those alone."""


@dataclass(frozen=True)
class Optional:
    """A union of null and one type, or of one type."""

    reader: Reader
    branches: int
    of_value: int
    kind: pa.DataType
    null_is_wrong: bool = False
    """For the reader."""

    def __call__(self, cursor: Cursor, present: Flags | None) -> pa.Array:
        branch = cursor.longs()
        found = branch == self.of_value
        wrong = (branch < 0) | (branch >= self.branches)
        if self.null_is_wrong:
            wrong |= ~found
            if present is not None:
                wrong &= present
        if wrong.any():
            cursor.refuse(wrong, NO_BRANCH)
        if present is not None:
            found &= present
        count = int(np.count_nonzero(found))
        if count == len(found):
            return self.reader(cursor, present)
        if count == 0:
            return pa.nulls(len(found), self.kind)
        if count * _SPARSE < len(found):
            rows = np.flatnonzero(found)
            inner = cursor.take(rows)
            column = self.reader(inner, None)
            cursor.follow(inner, rows)
            return _expanded(column, found)
        inner = cursor.where(found)
        column = self.reader(inner, found)
        cursor.follow_where(inner, found)
        return column


@dataclass(frozen=True)
class Branch:
    """One type of a writer's union."""

    reader: Reader
    field: int | None = None
    """Which member of the column its values are, -1: none; None: the reader has one type."""


@dataclass(frozen=True)
class Union:
    """A union of several types, as a struct of members of which one is set, or as the one type that the
    reader has.
    """

    kind: pa.DataType
    branches: tuple[Branch | Nulls | None, ...]
    """In the writer's order; None: the reader has no type for it."""

    def __call__(self, cursor: Cursor, present: Flags | None) -> pa.Array:
        branch = cursor.longs()
        wrong = (branch < 0) | (branch >= len(self.branches))
        for number, each in enumerate(self.branches):
            if each is None:
                wrong |= branch == number
        there = ~wrong if present is None else present & ~wrong
        if present is not None:
            wrong &= present
        if wrong.any():
            cursor.refuse(wrong, NO_BRANCH)
        found: dict[int | None, list[tuple[Ints, pa.Array]]] = {}
        is_null = ~there
        for number, each in enumerate(self.branches):
            chosen = there & (branch == number)
            if isinstance(each, Nulls):
                is_null |= chosen
            elif each is not None and chosen.any():
                rows = np.flatnonzero(chosen)
                inner = cursor.take(rows)
                found.setdefault(each.field, []).append((rows, each.reader(inner, None)))
                cursor.follow(inner, rows)
        if not pa.types.is_struct(self.kind) or None in found:
            return _merged(self.kind, len(cursor), found.get(None, []))
        return _members(self.kind, is_null, found)


@dataclass(frozen=True)
class Member:
    """One type of the writer's, which is one member of the reader's union."""

    kind: pa.StructType
    branch: Branch

    def __call__(self, cursor: Cursor, present: Flags | None) -> pa.Array:
        column = self.branch.reader(cursor, present)
        is_null = np.zeros(len(cursor), np.bool_) if present is None else ~present
        return _members(self.kind, is_null, {self.branch.field: [(np.arange(len(cursor)), column)]})


@dataclass(frozen=True)
class Passed:
    """A member that is not asked for."""

    skip: Skip

    def __call__(self, cursor: Cursor, present: Flags | None) -> pa.Array:
        self.skip(cursor)
        return pa.nulls(len(cursor))


@dataclass(frozen=True)
class Cast:
    """A type of a union that became a wider one: int with long, float with double."""

    reader: Reader
    kind: pa.DataType

    def __call__(self, cursor: Cursor, present: Flags | None) -> pa.Array:
        return self.reader(cursor, present).cast(self.kind)


def _members(
    kind: pa.StructType, is_null: Flags, found: dict[int | None, list[tuple[Ints, pa.Array]]]
) -> pa.Array:
    children = [
        _merged(kind.field(index).type, len(is_null), found.get(index, []))
        for index in range(kind.num_fields)
    ]
    return pa.Array.from_buffers(kind, len(is_null), [_bits(~is_null)], children=children)


def _merged(kind: pa.DataType, count: int, parts: list[tuple[Ints, pa.Array]]) -> pa.Array:
    """An item for each of `count` rows, from columns of some of them each; null where none has one."""
    if not parts:
        return pa.nulls(count, kind)
    places = np.full(count, -1, np.int64)
    before = 0
    for rows, _ in parts:
        places[rows] = before + np.arange(len(rows))
        before += len(rows)
    whole = pa.concat_arrays([column for _, column in parts])
    return whole.take(pa.array(places, mask=places < 0))


@dataclass(frozen=True)
class Record:
    kind: pa.StructType
    steps: tuple[tuple[Reader, int] | Skip, ...]
    """Of each field of the writer: what reads it and which field of `kind` it is, or what skips it."""
    defaults: tuple[tuple[Reader, int], ...] = ()

    def __call__(self, cursor: Cursor, present: Flags | None) -> pa.Array:
        found: list[pa.Array | None] = [None] * self.kind.num_fields
        for step in (*self.steps, *self.defaults):
            if isinstance(step, tuple):
                reader, index = step
                found[index] = reader(cursor, present)
            else:
                step(cursor)
        return pa.Array.from_buffers(self.kind, len(cursor), [_bits(present)], children=found)


@dataclass(frozen=True)
class Items:
    """How the items of an array are found."""

    skip: Skip
    width: int | None
    smallest: int
    walk: ArrayWalk | None

    def __call__(self, cursor: Cursor) -> tuple[Ints, Ints]:
        return items(cursor, self.skip, self.width, self.smallest, self.walk)


def _offsets(counts: Ints) -> pa.Buffer:
    found = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=found[1:])
    return pa.py_buffer(found)


@dataclass(frozen=True)
class Lists:
    kind: pa.ListType
    items: Items
    reader: Reader

    def __call__(self, cursor: Cursor, present: Flags | None) -> pa.Array:
        counts, at = self.items(cursor)
        inner = cursor.items(at, np.repeat(np.arange(len(counts)), counts))
        column = self.reader(inner, None)
        return pa.Array.from_buffers(
            self.kind, len(counts), [_bits(present), _offsets(counts)], children=[column]
        )


@dataclass(frozen=True)
class Maps:
    kind: pa.MapType
    items: Items
    reader: Reader

    def __call__(self, cursor: Cursor, present: Flags | None) -> pa.Array:
        counts, at = self.items(cursor)
        of = np.repeat(np.arange(len(counts)), counts)
        inner = cursor.items(at, of)
        keys, values = Bytes(self.kind.key_type, is_text=True)(inner, None), self.reader(inner, None)
        if len(of) and int(counts.max()) > 1:
            counts, keys, values = _last_of_each_key(counts, of, keys, values)
        pairs = pa.StructArray.from_arrays([keys, values], fields=[self.kind.key_field, self.kind.item_field])
        return pa.Array.from_buffers(
            self.kind, len(counts), [_bits(present), _offsets(counts)], children=[pairs]
        )


def _last_of_each_key(
    counts: Ints, of: Ints, keys: pa.Array, values: pa.Array
) -> tuple[Ints, pa.Array, pa.Array]:
    """A key that a map has twice is where it was first, with its last value."""
    known = keys.dictionary_encode()
    codes = of * len(known.dictionary) + np.asarray(known.indices, np.int64)
    unique, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    if len(unique) == len(codes):
        return counts, keys, values
    last = np.zeros(len(unique), np.int64)
    last[inverse] = np.arange(len(codes))
    kept = np.sort(first)
    return (
        np.bincount(of[kept], minlength=len(counts)).astype(np.int64),
        keys.take(pa.array(kept)),
        values.take(pa.array(last[inverse[kept]])),
    )


def skip_nothing(cursor: Cursor) -> None:
    """Of null."""


def skip_number(cursor: Cursor) -> None:
    cursor.longs()


def skip_span(cursor: Cursor) -> None:
    cursor.spans()


def skip_enum(symbols: int) -> Skip:
    def skip(cursor: Cursor) -> None:
        found = cursor.longs()
        wrong = (found < 0) | (found >= symbols)
        if wrong.any():
            cursor.refuse(wrong, NO_SYMBOL)

    return skip


def skip_width(width: int) -> Skip:
    return lambda cursor: cursor.skip(width)


def skip_all(parts: Sequence[Skip]) -> Skip:
    def skip(cursor: Cursor) -> None:
        for part in parts:
            part(cursor)

    return skip


def skip_union(branches: Sequence[Skip]) -> Skip:
    def skip(cursor: Cursor) -> None:
        branch = cursor.longs()
        wrong = (branch < 0) | (branch >= len(branches))
        if wrong.any():
            cursor.refuse(wrong, NO_BRANCH)
        for number, part in enumerate(branches):
            if part is skip_nothing:
                continue
            rows = np.flatnonzero(branch == number)
            if rows.size == len(branch):
                part(cursor)
            elif rows.size:
                inner = cursor.take(rows)
                part(inner)
                cursor.follow(inner, rows)

    return skip


def skip_items(found: Items) -> Skip:
    def skip(cursor: Cursor) -> None:
        found(cursor)

    return skip
