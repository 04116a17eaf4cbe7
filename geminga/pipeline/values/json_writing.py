"""Columns as JSON objects, a column at a time: each becomes texts, and Arrow joins those of a row. Pure.

The bytes are those that Python's encoder makes of the rows. What Arrow writes in another way (numbers that
are very large or small, text with characters to escape, bytes) goes through that encoder, alone.

Times are the numbers that the definition names, as a client reads that takes a `long` for one. They were ISO
8601, as the JVM connector writes them: Java's clients then fail at a field `long`, or take it for 0.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from geminga.pipeline.columns.protobuf_columns import Ints
from geminga.pipeline.values.avro_encoding import has_a_key_twice
from geminga.pipeline.values.avro_writing import python_rows

_ESCAPED = r'["\\\x00-\x1f]'
_SAME_FLOATS = (1e-4, 1e9)
"""Between them, and for 0, Arrow writes what Python writes, but for the point behind a whole number."""
_ROWS_MIN = 32
"""With fewer rows, Python's encoder is faster."""
_BYTES_MAX = 1 << 27
"""Of one step: a text may take six times its bytes, and offsets have 32 bits."""


def json_rows(batch: pa.RecordBatch) -> pa.BinaryArray:
    """Each row as a JSON object: bytes in base64, times as microseconds, dates as days, fields that are null
    with null.
    """
    if batch.nbytes > _BYTES_MAX and batch.num_rows > 1:
        half = batch.num_rows // 2
        return pa.concat_arrays([json_rows(batch.slice(0, half)), json_rows(batch.slice(half))])
    if batch.num_rows < _ROWS_MIN:
        text = _json_struct(list(batch.schema))
        return pa.array([text(row).encode() for row in python_rows(batch)], pa.binary())
    return _object(batch.columns, list(batch.schema)).cast(pa.binary())


def _object(columns: list[pa.Array], fields: list[pa.Field]) -> pa.StringArray:
    parts: list[Any] = []
    for index, (column, field) in enumerate(zip(columns, fields, strict=True)):
        parts += [f"{',' if index else '{'}{json.dumps(field.name)}:", _texts(column)]
    return pc.binary_join_element_wise(*parts, "}", "")


def _texts(column: pa.Array) -> pa.StringArray:
    """Of each item its JSON."""
    found = _in_columns(column)
    if found is None:
        text = _json_not_null(column.type)
        values = column.to_pylist(maps_as_pydicts="strict")
        found = pa.array([None if value is None else text(value) for value in values], pa.string())
    return found.fill_null("null") if found.null_count else found


def _in_columns(column: pa.Array) -> pa.StringArray | None:
    """Null where an item is. None: Python's encoder has to do it."""
    kind = column.type
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.string())
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return column.cast(pa.string())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _quoted(column.cast(pa.string()))
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return _floats(column.cast(pa.float64()))
    if pa.types.is_decimal(kind):
        text = column.cast(pa.string())
        return _replaced(text, column, pc.match_substring(text, "E"))
    if pa.types.is_date32(kind):
        return column.view(pa.int32()).cast(pa.string())
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz)).view(pa.int64()).cast(pa.string())
    if pa.types.is_struct(kind) and kind.num_fields:
        text = _object(column.flatten(), list(kind))
        return pc.if_else(column.is_valid(), text, None) if column.null_count else text
    if pa.types.is_map(kind):
        return _pairs(column)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        bounds = _bounds(column)
        return _enclosed(column, bounds, column.values, _texts, "[", "]")
    return None


def _in_quotes(texts: pa.StringArray) -> pa.StringArray:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _quoted(texts: pa.StringArray) -> pa.StringArray:
    return _replaced(_in_quotes(texts), texts, pc.match_substring_regex(texts, _ESCAPED))


def _replaced(found: pa.StringArray, column: pa.Array, wrong: pa.BooleanArray) -> pa.StringArray:
    """With what Python's encoder makes of some items."""
    wrong = wrong.fill_null(False)
    if not pc.any(wrong).as_py():
        return found
    text = _json_not_null(column.type)
    others = pa.array([text(value) for value in column.filter(wrong).to_pylist()], pa.string())
    return pc.replace_with_mask(found, wrong, others)


def _floats(column: pa.DoubleArray) -> pa.StringArray:
    values = np.asarray(column.fill_null(0.0))
    size = np.abs(values)
    same = (values == 0) | ((size >= _SAME_FLOATS[0]) & (size < _SAME_FLOATS[1]))
    with np.errstate(invalid="ignore"):
        whole = pa.array(values == np.trunc(values))
    text = column.cast(pa.string())
    text = pc.if_else(whole, pc.binary_join_element_wise(text, ".0", ""), text)
    return _replaced(text, column, pa.array(~same))


def _bounds(column: pa.Array) -> Ints:
    found: Ints = np.asarray(column.offsets).astype(np.int64)
    return found


def _enclosed(
    column: pa.Array,
    bounds: Ints,
    items: pa.Array,
    texts: Callable[[pa.Array], pa.StringArray],
    begin: str,
    end: str,
) -> pa.StringArray:
    """The texts of the items of each list, with commas."""
    first, last = int(bounds[0]), int(bounds[-1])
    own = texts(items.slice(first, last - first))
    lists = pa.LargeListArray.from_arrays(pa.array(bounds - first), own)
    found = pc.binary_join_element_wise(begin, pc.binary_join(lists, ","), end, "")
    return pc.if_else(column.is_valid(), found, None) if column.null_count else found


def _pairs(column: pa.MapArray) -> pa.StringArray | None:
    bounds = _bounds(column)
    first, last = int(bounds[0]), int(bounds[-1])
    keys = column.keys.slice(first, last - first)
    if not pa.types.is_string(keys.type) or has_a_key_twice(keys, np.diff(bounds)):
        return None
    values = _texts(column.items.slice(first, last - first))
    pairs = pc.binary_join_element_wise(_quoted(keys), values, ":")
    return _enclosed(column, bounds - first, pairs, lambda texts: texts, "{", "}")


def _json_struct(fields: list[pa.Field]) -> Callable[[Any], str]:
    parts = [(field.name, json.dumps(field.name), _json(field.type)) for field in fields]
    return lambda row: "{" + ",".join(f"{key}:{part(row[name])}" for name, key, part in parts) + "}"


def _json(kind: pa.DataType) -> Callable[[Any], str]:
    plain = _json_not_null(kind)
    return lambda value: "null" if value is None else plain(value)


def _json_not_null(kind: pa.DataType) -> Callable[[Any], str]:
    if pa.types.is_struct(kind):
        return _json_struct(list(kind))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = _json(kind.value_type)
        return lambda value: "[" + ",".join(map(item, value)) + "]"
    if pa.types.is_map(kind):
        each = _json(kind.item_type)
        return lambda value: (
            "{" + ",".join(f"{json.dumps(key)}:{each(one)}" for key, one in value.items()) + "}"
        )
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda value: json.dumps(base64.b64encode(value).decode())
    if pa.types.is_decimal(kind):
        return lambda value: format(value, "f")
    if pa.types.is_floating(kind):
        return _json_float
    return lambda value: json.dumps(value, ensure_ascii=False)


def _json_float(value: float) -> str:
    """What JSON has no number for as text, as Jackson does."""
    if value != value:
        return '"NaN"'
    return json.dumps(value) if abs(value) != float("inf") else f'"{"-" if value < 0 else ""}Infinity"'
