"""Tables and columns of a segment of the delivery log, as bytes; `log_format.py` has the rest.

table   := strings u32 | (size u16 | UTF-8) * strings
column  := form u8 | width u8 | least i64 | code (width bytes, unsigned) * events
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

NAME_BYTES_MAX: Final = 0xFFFF
_COLUMN: Final = struct.Struct("<BBq")
_COUNT: Final = struct.Struct("<I")
_SIZE: Final = struct.Struct("<H")
_PLAIN, _WITH_ABSENT = range(2)

COLUMNS: Final = (
    "kind",
    "time_ms",
    "topic",
    "subscription",
    "client",
    "ledger_id",
    "entry_id",
    "batch_index",
    "batch_size",
    "redelivery_count",
    "deliver_at_ms",
    "publish_time_ms",
    "sequence_id",
    "early_ms",
    "step_ms",
)
COLUMNS_OF_VERSION_1: Final = COLUMNS[:13]
COLUMNS_OF_VERSION_2: Final = COLUMNS[:14]
TABLES: Final = ("topic", "subscription", "client")
ABSENT: Final[Mapping[str, int]] = {
    "topic": -1,
    "subscription": -1,
    "client": -1,
    "batch_index": -1,
    "deliver_at_ms": 0,
    "publish_time_ms": 0,
    "sequence_id": -1,
}
"""The value of a column for an event without such a field."""
DTYPES: Final[Mapping[str, str]] = dict.fromkeys(COLUMNS, "<i8") | {
    "kind": "|u1",
    "topic": "<i4",
    "subscription": "<i4",
    "client": "<i4",
    "batch_index": "<i4",
    "batch_size": "<i4",
    "redelivery_count": "<i4",
}

Column = NDArray[Any]


def constant_column(value: int) -> bytes:
    return _COLUMN.pack(_PLAIN, 0, value)


def pack_table(names: Sequence[str]) -> bytes:
    parts = [_COUNT.pack(len(names))]
    for name in names:
        data = name.encode()
        if len(data) > NAME_BYTES_MAX:
            raise ValueError(f"a name of {len(data)} bytes")
        parts += (_SIZE.pack(len(data)), data)
    return b"".join(parts)


def pack_column(values: NDArray[np.int64], events: int, absent: int | None) -> bytes:
    """A column as differences to its least value, each in as many bytes as the largest one needs. In a
    column with absent values, their code is 0 and all other codes are one higher.
    """
    if len(values) != events:
        raise ValueError(f"a column of {len(values)} values for {events} events")
    present = values
    missing = None
    if absent is not None:
        missing = values == absent
        present = values[~missing]
        if len(present) == len(values):
            missing = None
        elif not len(present):
            return _COLUMN.pack(_PLAIN, 0, absent)
    least, greatest = int(present.min()), int(present.max())
    greatest_code = greatest - least + (missing is not None)
    if greatest_code >= 1 << 63:
        raise ValueError("a column whose values are too far apart")
    width = 0 if greatest_code == 0 else next(w for w in (1, 2, 4, 8) if greatest_code < 1 << 8 * w)
    codes = values - least
    if missing is not None:
        codes += 1
        codes[missing] = 0
    data = codes.astype(f"<u{width}").tobytes() if width else b""
    return _COLUMN.pack(_WITH_ABSENT if missing is not None else _PLAIN, width, least) + data


def unpack_table(view: memoryview, position: int) -> tuple[list[str], int]:
    (count,) = _COUNT.unpack_from(view, position)
    position += _COUNT.size
    names = []
    for _ in range(count):
        (size,) = _SIZE.unpack_from(view, position)
        position += _SIZE.size
        names.append(str(view[position : position + size], "utf-8"))
        position += size
    return names, position


def unpack_column(
    view: memoryview, position: int, events: int, name: str | None
) -> tuple[Column | None, int]:
    """The column at `position`, and the position of the next one. Without a `name` the column is skipped, and
    None is returned for it.
    """
    form, width, least = _COLUMN.unpack_from(view, position)
    position += _COLUMN.size
    end = position + width * events
    if name is None:
        return None, end
    dtype = np.dtype(DTYPES[name])
    if width == 0:
        return np.full(events, least, dtype), end
    codes = np.frombuffer(view, f"<u{width}", events, position)
    if form == _PLAIN:
        return (codes.astype(np.int64) + least).astype(dtype, copy=False), end
    if form != _WITH_ABSENT:
        raise ValueError(f"a column of form {form}")
    values = codes.astype(np.int64) + (least - 1)
    values[codes == 0] = ABSENT[name]
    return values.astype(dtype, copy=False), end
