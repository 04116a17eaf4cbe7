"""Many protobuf messages of one kind in one buffer, read at once: a column for each field.

All messages take a step together, one field each, so that the price of a numpy call is shared by all. Fields
may come in any order and unknown ones are skipped, as protobuf demands.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from geminga.errors import ProtocolError

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

PADDING_BYTES = 32
"""How many bytes must follow the last message in the buffer: a number may be read past its end before that
is noticed."""
_VARINT_BYTES_MAX = 10


@dataclass
class Spans:
    """Parts of the buffer. `at` -1: the message lacks the field."""

    at: Ints
    size: Ints

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        return self.at >= 0


@dataclass
class Repeated:
    """Every occurrence of a repeated field: the message it is in, in no particular order, and its offset.

    Occurrences within a message are in order.
    """

    message: Ints
    at: Ints
    size: Ints


@dataclass
class Columns:
    """What `scan` found, by field number."""

    numbers: dict[int, Ints] = field(default_factory=dict)
    spans: dict[int, Spans] = field(default_factory=dict)
    repeated: dict[int, Repeated] = field(default_factory=dict)


def read_varints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The varint at each offset, and the offset after it. Raises `ProtocolError` for an endless one."""
    byte = data[at]
    value = (byte & 0x7F).astype(np.int64)
    after = at + 1
    more = np.flatnonzero(byte >= 0x80)
    shift = 7
    while more.size:
        if shift >= 7 * _VARINT_BYTES_MAX:
            raise ProtocolError("a number of more than ten bytes")
        byte = data[after[more]]
        value[more] |= (byte & 0x7F).astype(np.int64) << min(shift, 63)
        after[more] += 1
        more = more[byte >= 0x80]
        shift += 7
    return value, after


def scan(
    data: Bytes,
    at: Ints,
    end: Ints,
    *,
    numbers: Mapping[int, int],
    spans: Collection[int] = (),
    repeated: Collection[int] = (),
) -> Columns:
    """Read the messages data[at[i]:end[i]]; `data` needs `PADDING_BYTES` behind the last of them.

    `numbers` has the default of each wanted varint field. The last occurrence counts, as in protobuf.
    Raises `ProtocolError` for what is not protobuf.
    """
    count = len(at)
    found = Columns(
        {number: np.full(count, default, np.int64) for number, default in numbers.items()},
        {number: Spans(np.full(count, -1, np.int64), np.zeros(count, np.int64)) for number in spans},
    )
    parts: dict[int, list[tuple[Ints, Ints, Ints]]] = {number: [] for number in repeated}
    rows = np.flatnonzero(at < end)
    offset, stop = at[rows], end[rows]
    while rows.size:
        tags, offset = read_varints(data, offset)
        if (tags == tags[0]).all():
            _step(data, found, parts, int(tags[0]), rows, offset, slice(None))
        else:
            for tag in np.unique(tags):
                _step(data, found, parts, int(tag), rows, offset, np.flatnonzero(tags == tag))
        if (offset > stop).any():
            raise ProtocolError("a field that ends after its message")
        going = offset < stop
        if not going.all():
            rows, offset, stop = rows[going], offset[going], stop[going]
    for number, pieces in parts.items():
        columns = zip(*pieces, strict=True) if pieces else ([np.zeros(0, np.int64)],) * 3
        found.repeated[number] = Repeated(*(np.concatenate(list(column)) for column in columns))
    return found


def _step(
    data: Bytes,
    found: Columns,
    parts: dict[int, list[tuple[Ints, Ints, Ints]]],
    tag: int,
    rows: Ints,
    offset: Ints,
    chosen: slice | Ints,
) -> None:
    """Read the field `tag` of the chosen messages and move their `offset` behind it."""
    number, kind = tag >> 3, tag & 7
    if kind == 0:
        value, after = read_varints(data, offset[chosen])
        offset[chosen] = after
        if number in found.numbers:
            found.numbers[number][rows[chosen]] = value
    elif kind == 2:
        size, start = read_varints(data, offset[chosen])
        if ((size < 0) | (size > len(data))).any():
            raise ProtocolError("a field longer than all messages")
        offset[chosen] = start + size
        if number in found.spans:
            spans = found.spans[number]
            spans.at[rows[chosen]] = start
            spans.size[rows[chosen]] = size
        elif number in parts:
            parts[number].append((rows[chosen], start, size))
    elif kind in (1, 5):
        offset[chosen] += 8 if kind == 1 else 4
    else:
        raise ProtocolError(f"field {number} of an unknown kind ({kind})")
