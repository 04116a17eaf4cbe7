"""Values of primitive schemas as columns and back, as the Java client encodes them: numbers are big endian,
text is UTF-8. Pure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from geminga.pipeline.columns.columns import text
from geminga.pipeline.values.avro_shapes import TIME, BadValue
from geminga.pipeline.values.rules import OutOfRange
from geminga.pipeline.values.times import microseconds
from geminga.wire import pulsar_pb2 as pb

_TYPE = pb.Schema.Type
_DAY_MS = 86_400_000
_US_MAX = 2**63 - 1
PRIMITIVES: dict[int, pa.DataType] = {
    _TYPE.String: pa.string(),
    _TYPE.Bool: pa.bool_(),
    _TYPE.Int8: pa.int8(),
    _TYPE.Int16: pa.int16(),
    _TYPE.Int32: pa.int32(),
    _TYPE.Int64: pa.int64(),
    _TYPE.Float: pa.float32(),
    _TYPE.Double: pa.float64(),
    _TYPE.Date: pa.date32(),
    _TYPE.Time: pa.int64(),
    _TYPE.Timestamp: TIME,
    _TYPE.Instant: TIME,
    _TYPE.LocalDate: pa.date32(),
    _TYPE.LocalTime: pa.int64(),
    _TYPE.LocalDateTime: pa.timestamp("us"),
}
"""Of each schema its column type. TIME: milliseconds of the day, LOCAL_TIME: nanoseconds of it."""
_LAYOUTS: dict[int, str] = {
    _TYPE.Bool: "u1",
    _TYPE.Int8: "i1",
    _TYPE.Int16: ">i2",
    _TYPE.Int32: ">i4",
    _TYPE.Int64: ">i8",
    _TYPE.Float: ">f4",
    _TYPE.Double: ">f8",
    _TYPE.Date: ">i8",
    _TYPE.Time: ">i8",
    _TYPE.Timestamp: ">i8",
    _TYPE.LocalDate: ">i8",
    _TYPE.LocalTime: ">i8",
}
_UNITS_US: dict[int, int] = {_TYPE.Instant: 1_000_000, _TYPE.LocalDateTime: _DAY_MS * 1000}


def primitives(kind: int, raw: pa.BinaryArray, out_of_range: OutOfRange = "clamp") -> pa.Array:
    """Raises `BadValue` for values of a wrong size and dates that no column holds."""
    if kind == _TYPE.String:
        return text(raw)
    try:
        return _decoded(kind, raw, out_of_range)
    except pa.ArrowInvalid as error:
        raise BadValue(str(error)) from None


def _decoded(kind: int, raw: pa.BinaryArray, out_of_range: OutOfRange) -> pa.Array:
    mask = np.asarray(raw.is_null()) if raw.null_count else None
    if kind in _UNITS_US:
        # INSTANT: seconds i64, nanoseconds i32. LOCAL_DATE_TIME: day i64, nanoseconds of the day i64
        compound = np.dtype([("whole", ">i8"), ("nanos", ">i4" if kind == _TYPE.Instant else ">i8")])
        both = _numbers(raw, compound)
        us = microseconds(both["whole"].astype(np.int64), _UNITS_US[kind], out_of_range, mask)
        # The last second or day may end beyond 64 bits.
        nanos = both["nanos"].astype(np.int64) // 1000
        rest = np.minimum(nanos, _US_MAX - np.maximum(np.asarray(us.fill_null(0)), 0))
        return pc.add(us, pa.array(rest)).cast(PRIMITIVES[kind])
    layout = np.dtype(_LAYOUTS[kind])
    values = _numbers(raw, layout)
    if kind == _TYPE.Bool:
        return pa.array(values != 0, mask=mask)
    values = values.astype(layout.newbyteorder("="))
    if kind == _TYPE.Date:
        values = values // _DAY_MS
    if kind == _TYPE.Timestamp:
        return microseconds(values, 1000, out_of_range, mask).cast(TIME)
    plain = pa.array(values, mask=mask)
    return plain.cast(pa.int32()).cast(pa.date32()) if PRIMITIVES[kind] == pa.date32() else plain


def _numbers(raw: pa.BinaryArray, layout: np.dtype[Any]) -> Any:
    """All values side by side; zero where one is null."""
    width = layout.itemsize
    filled = raw.fill_null(bytes(width)) if raw.null_count else raw
    sizes = np.asarray(pc.binary_length(filled))
    if len(sizes) and (sizes != width).any():
        raise BadValue(f"a value of {int(sizes[sizes != width][0])} bytes where the schema says {width}")
    return np.frombuffer(b"".join(filled.to_pylist()), layout)


def encoded_primitives(kind: int, column: pa.Array) -> pa.BinaryArray:
    """The inverse, for a column of the type in `PRIMITIVES` and schemas whose values are one number."""
    if kind == _TYPE.String:
        return column.cast(pa.binary())
    layout = np.dtype(_LAYOUTS[kind])
    plain = column
    if kind == _TYPE.Timestamp:
        plain = (
            pc.floor_temporal(column, unit="millisecond").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
        )
    elif kind == _TYPE.Date:
        plain = pc.multiply(column.cast(pa.int32()).cast(pa.int64()), _DAY_MS)
    elif kind == _TYPE.Bool:
        plain = column.cast(pa.uint8())
    values = np.asarray(plain.fill_null(0) if plain.null_count else plain).astype(layout)
    count, width = len(values), layout.itemsize
    bounds = np.arange(0, width * count + 1, width, dtype=np.int32)
    data = pa.py_buffer(values.tobytes())
    found = pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), data])
    return pc.if_else(column.is_valid(), found, None) if column.null_count else found
