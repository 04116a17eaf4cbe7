"""Columns into AVRO records, all rows at once: the same bytes as fastavro's, in the schema that
`record_definition` makes of the columns.

Each column becomes parts: tables of a few bytes for each row (branches of unions, numbers, lengths), and
arrays of bytes. Tables beside each other become one; in the end all parts of a row are joined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from geminga.pipeline.columns.protobuf_columns import Bytes, Ints
from geminga.pipeline.columns.varint_columns import varint_table

_VALUE, _NULL = 0, 2
"""The number of a branch of [type, null] in zigzag."""
_BYTES_MAX = 1 << 30
"""Of a batch: the records have to fit an array, whose offsets have 32 bits."""
ROWS_MIN = 32
"""With fewer rows, fastavro is faster."""


class _NotInColumns(Exception):
    pass


@dataclass(frozen=True)
class _Table:
    """The first sizes[i] bytes of each row; `sizes` None: all."""

    bytes: Bytes
    sizes: Ints | None = None


_Part: TypeAlias = Any
"""A `_Table` or an array of bytes."""


def encoded_records(batch: pa.RecordBatch) -> pa.BinaryArray | None:
    """None: there is a type or a value in it that is left to fastavro, which says what is wrong."""
    if batch.nbytes > _BYTES_MAX:
        return None
    try:
        fields = zip(batch.columns, batch.schema, strict=True)
        parts = [part for column, field in fields for part in _parts(column, field.nullable)]
        return _joined(parts, batch.num_rows)
    except _NotInColumns:
        return None


def _parts(column: pa.Array, nullable: bool) -> list[_Part]:
    kind, count = column.type, len(column)
    if pa.types.is_null(kind):
        return []
    if column.null_count and not nullable:
        raise _NotInColumns
    is_null: Any = np.asarray(column.is_null()) if column.null_count else None
    if pa.types.is_nested(kind):
        present = column if is_null is None else column.drop_null()
        body = _joined(_nested_parts(present), len(present))
        if is_null is not None:
            places = pa.array(np.cumsum(~is_null) - 1, mask=is_null)
            body = body.take(places).fill_null(b"")
        return [_branches(is_null, count), body] if nullable else [body]
    found: _Part
    if _is_of_bytes(kind):
        content = column.cast(pa.binary())
        if is_null is not None:
            content = content.fill_null(b"")
        sizes = np.asarray(pc.binary_length(content), np.int64)
        found, after = _varints(sizes), [content]
    else:
        found, after = _scalars(column), []
    return [_with_branch(found, is_null) if nullable else found, *after]


def _is_of_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
    )


def _scalars(column: pa.Array) -> _Table:
    kind = column.type
    if pa.types.is_decimal128(kind):
        return _decimals(column)
    if pa.types.is_boolean(kind):
        whole = column.fill_null(False) if column.null_count else column
        return _Table(np.asarray(whole).astype(np.uint8)[:, None])
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        layout = np.dtype("<f4" if kind.bit_width == 32 else "<f8")
        whole = column.fill_null(0.0) if column.null_count else column
        values = np.ascontiguousarray(np.asarray(whole), layout)
        return _Table(values.view(np.uint8).reshape(len(column), layout.itemsize))
    if pa.types.is_date32(kind):
        column = column.view(pa.int32())
    elif pa.types.is_timestamp(kind) and kind.unit == "us":
        column = column.view(pa.int64())
    elif not pa.types.is_signed_integer(kind):
        raise _NotInColumns
    values = np.asarray(column.fill_null(0) if column.null_count else column)
    return _varints(values.astype(np.int64))


def _varints(values: Ints) -> _Table:
    """In zigzag."""
    return _Table(*varint_table(((values << 1) ^ (values >> 63)).view(np.uint64)))


def _decimals(column: pa.Decimal128Array) -> _Table:
    """As many bytes as the digits need, the highest first."""
    digits, size = column.type.precision, 1
    while 10**digits - 1 >= 1 << (8 * size - 1):
        size += 1
    whole = np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, 16)
    own = whole[column.offset : column.offset + len(column)]
    found: Bytes = np.empty((len(column), size), np.uint8)
    found[:, -min(size, 16) :] = own[:, : min(size, 16)][:, ::-1]
    if size > 16:
        found[:, : size - 16] = np.where(own[:, 15] >= 0x80, 0xFF, 0).astype(np.uint8)[:, None]
    return _Table(found)


def _branches(is_null: Any, count: int) -> _Table:
    if is_null is None:
        return _Table(np.full((count, 1), _VALUE, np.uint8))
    return _Table(np.where(is_null, _NULL, _VALUE).astype(np.uint8)[:, None])


def _with_branch(table: _Table, is_null: Any) -> _Table:
    """Only the branch is left of a null."""
    count, width = table.bytes.shape
    found: Bytes = np.empty((count, 1 + width), np.uint8)
    found[:, :1] = _branches(is_null, count).bytes
    found[:, 1:] = table.bytes
    if is_null is None:
        return _Table(found, None if table.sizes is None else table.sizes + 1)
    sizes = width if table.sizes is None else table.sizes
    return _Table(found, np.where(is_null, 1, 1 + sizes))


def _nested_parts(column: pa.Array) -> list[_Part]:
    """Of an array without nulls."""
    kind = column.type
    if pa.types.is_struct(kind):
        children = zip(column.flatten(), kind, strict=True)
        return [part for child, field in children for part in _parts(child, field.nullable)]
    is_map = pa.types.is_map(kind)
    if not (is_map or pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise _NotInColumns
    bounds = np.asarray(column.offsets).astype(np.int64)
    first, count = int(bounds[0]) if len(bounds) else 0, int(bounds[-1] - bounds[0]) if len(bounds) else 0
    sizes = np.diff(bounds)
    if is_map:
        keys, values = column.keys.slice(first, count), column.items.slice(first, count)
        if has_a_key_twice(keys, sizes):
            raise _NotInColumns
        parts = [*_parts(keys, False), *_parts(values, kind.item_field.nullable)]
    else:
        parts = _parts(column.values.slice(first, count), kind.value_field.nullable)
    items = _joined(parts, count)
    # the items of a row are side by side: its bounds among the items are those among their bytes
    of_items = np.frombuffer(items.buffers()[1], np.int32)[items.offset : items.offset + count + 1]
    own = of_items[bounds - first] if len(column) else np.zeros(1, np.int32)
    body = pa.BinaryArray.from_buffers(
        pa.binary(), len(column), [None, pa.py_buffer(np.ascontiguousarray(own)), items.buffers()[2]]
    )
    head = _varints(sizes)
    heads = np.ones(len(sizes), np.int64) if head.sizes is None else head.sizes
    end = _Table(np.zeros((len(column), 1), np.uint8))
    return [_Table(head.bytes, np.where(sizes == 0, 0, heads)), body, end]


def has_a_key_twice(keys: pa.Array, sizes: Ints) -> bool:
    """Whether any map has one; `sizes`: how many of the keys are of each map."""
    if int(sizes.max(initial=0)) < 2:
        return False
    known = keys.dictionary_encode()
    rows = np.repeat(np.arange(len(sizes)), sizes)
    codes = rows * len(known.dictionary) + np.asarray(known.indices, np.int64)
    return len(np.unique(codes)) < len(codes)


def _joined(parts: list[_Part], count: int) -> pa.BinaryArray:
    """The parts of each row, one behind the other."""
    arrays: list[pa.BinaryArray] = []
    tables: list[_Table] = []
    for part in parts:
        if isinstance(part, _Table):
            tables.append(part)
            continue
        if tables:
            arrays.append(_of_tables(tables, count))
        arrays.append(part)
        tables = []
    if tables or not arrays:
        arrays.append(_of_tables(tables, count))
    if len(arrays) == 1:
        return arrays[0]
    return pc.binary_join_element_wise(*arrays, b"")


def _of_tables(tables: list[_Table], count: int) -> pa.BinaryArray:
    width = sum(each.bytes.shape[1] for each in tables)
    joined: Bytes = np.empty((count, width), np.uint8)
    total = np.zeros(count, np.int64)
    kept: Any = None if all(each.sizes is None for each in tables) else np.ones((count, width), np.bool_)
    at = 0
    for each in tables:
        own = each.bytes.shape[1]
        joined[:, at : at + own] = each.bytes
        if each.sizes is None:
            total += own
        else:
            np.less(np.arange(own), each.sizes[:, None], out=kept[:, at : at + own])
            total += each.sizes
        at += own
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(total, out=offsets[1:])
    data = joined.reshape(-1) if kept is None else joined[kept]
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
