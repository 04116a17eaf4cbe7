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
from geminga.pipeline.values.avro_writing import BadColumns
from geminga.pipeline.values.rules import OutOfRange
from geminga.pipeline.values.times import microseconds
from geminga.pipeline.values.written_schemas import java_type
from geminga.wire import pulsar_pb2 as pb

_TYPE = pb.Schema.Type
_DAY_MS = 86_400_000
_DAY_NS = _DAY_MS * 1_000_000
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
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
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
        both = _numbers(raw, _compound_layout(kind))
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


def _compound_layout(kind: int) -> np.dtype[Any]:
    """INSTANT: seconds i64, nanoseconds i32. LOCAL_DATE_TIME: day i64, nanoseconds of the day i64."""
    return np.dtype([("whole", ">i8"), ("nanos", ">i4" if kind == _TYPE.Instant else ">i8")])


def _numbers(raw: pa.BinaryArray, layout: np.dtype[Any]) -> Any:
    """All values side by side; zero where one is null."""
    width = layout.itemsize
    filled = raw.fill_null(bytes(width)) if raw.null_count else raw
    sizes = np.asarray(pc.binary_length(filled))
    if len(sizes) and (sizes != width).any():
        raise BadValue(f"a value of {int(sizes[sizes != width][0])} bytes where the schema says {width}")
    return np.frombuffer(b"".join(filled.to_pylist()), layout)


def encoded_primitives(kind: int, column: pa.Array, name: str) -> pa.BinaryArray:
    """The inverse, for a column of a type that `takes`; `name` is for errors. Raises `BadColumns`."""
    if kind == _TYPE.String:
        return column.cast(pa.binary())
    numbers = _whole_numbers(kind, column, name)
    found = _fixed_width(_compound(kind, numbers) if kind in _UNITS_US else numbers.astype(_LAYOUTS[kind]))
    return pc.if_else(column.is_valid(), found, None) if column.null_count else found


def takes(kind: int, column: pa.DataType) -> bool:
    """Whether a schema's values may be written from a column of this type."""
    wanted = PRIMITIVES[kind]
    if wanted in _INTEGERS:
        return bool(pa.types.is_signed_integer(column))
    if wanted == pa.float64():
        return column in (pa.float32(), pa.float64())
    if pa.types.is_timestamp(wanted):
        return bool(pa.types.is_timestamp(column)) and (column.tz is None) == (wanted.tz is None)
    return bool(column == wanted or (wanted == pa.string() and pa.types.is_large_string(column)))


def _whole_numbers(kind: int, column: pa.Array, name: str) -> Any:
    """As numpy has them, in the unit of the schema but for those in `_UNITS_US`; 0 where one is null."""
    wanted = PRIMITIVES[kind]
    if wanted in _INTEGERS:
        filled = np.asarray(column.fill_null(0) if column.null_count else column).astype(np.int64)
        limits = np.iinfo(wanted.to_pandas_dtype())
        least, most = (0, _DAY_NS - 1) if kind == _TYPE.LocalTime else (limits.min, limits.max)
        beyond = (filled < least) | (filled > most)
        if beyond.any():
            one = int(filled[beyond][0])
            raise BadColumns(f"column {name!r} has {one}, and {java_type(kind)} is from {least} to {most}")
        return filled
    if wanted == pa.bool_():
        return np.asarray(column.fill_null(False)).astype(np.uint8)
    if pa.types.is_floating(wanted):
        return np.asarray(column.fill_null(0.0) if column.null_count else column)
    if wanted == pa.date32():
        days = np.asarray(column.view(pa.int32()).fill_null(0)).astype(np.int64)
        return days * _DAY_MS if kind == _TYPE.Date else days
    micros = np.asarray(column.cast(wanted).view(pa.int64()).fill_null(0))
    return micros // 1000 if kind == _TYPE.Timestamp else micros


def _compound(kind: int, micros: Any) -> Any:
    layout = _compound_layout(kind)
    found = np.empty(len(micros), layout)
    found["whole"], rest = np.divmod(micros, _UNITS_US[kind])
    found["nanos"] = rest * 1000
    return found


def _fixed_width(values: Any) -> pa.BinaryArray:
    count, width = len(values), values.dtype.itemsize
    bounds = np.arange(0, width * count + 1, width, dtype=np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(values.tobytes())]
    )
