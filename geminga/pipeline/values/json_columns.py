"""JSON objects into columns by compiled code, as far as it reads them as the rest of the clients do. Pure.

Arrow reads lines of JSON into columns of given types. A field with a time or a date is read as numbers or as
text, whichever the first rows have; if a later row has the other, Arrow refuses all, and the rows are read
one by one.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from geminga.pipeline.values.avro_shapes import UNITS_US, Shape

_NOT_IN_COLUMNS = ("bytes", "fixed", "map", "null", "members")
"""What the compiled reader of JSON cannot do, or does in another way than the clients."""
_EXAMPLES = 8
_EXACT: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=Decimal)
_PLAIN: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def parsed(payload: bytes, *, exact: bool) -> Any:
    """`exact`: numbers that are no integers as Decimal. Raises `msgspec.DecodeError` also for what is JSON to
    others: NaN, halves of surrogate pairs, a byte order mark.
    """
    return (_EXACT if exact else _PLAIN).decode(payload)


def json_records(raw: pa.BinaryArray, kind: pa.StructType, shape: Shape | None) -> pa.Array | None:
    """None: not possible. Each value has to be one object, or lines would not be values."""
    if not len(raw) or raw.null_count or not kind.num_fields:
        return None
    if shape is not None and shape.any(*_NOT_IN_COLUMNS):
        return None
    try:
        texts = raw.cast(pa.string())
    except pa.ArrowInvalid:  # Arrow's reader of JSON takes what is not UTF-8, and puts it into columns
        return None
    if not pc.all(pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))).as_py():
        return None
    read: list[pa.Field] = list(kind)
    if shape is not None and shape.any("logical"):
        found = _read_as(raw, kind, shape)
        if found is None:
            return None
        read = found
    try:
        lines = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(raw)], pa.int32()), texts), "\n")
        table = pa.json.read_json(
            pa.BufferReader(lines[0].as_buffer()),
            parse_options=pa.json.ParseOptions(
                explicit_schema=pa.schema(read),
                newlines_in_values=True,
                unexpected_field_behavior="ignore",
            ),
            read_options=pa.json.ReadOptions(use_threads=False, block_size=1 << 30),
        )
        if table.num_rows != len(raw):
            return None
        arrays = [_converted(table.column(each.name).combine_chunks(), each, shape) for each in kind]
    except pa.ArrowException:
        return None
    return pa.StructArray.from_arrays(arrays, fields=list(kind))


def has_other_symbols(values: pa.Array, shape: Shape) -> bool:
    """Whether an enum has a symbol that its schema has not: the compiled reader takes any text."""
    if shape.kind == "enum":
        return not shape.symbols.issuperset(pc.unique(values.drop_null()).to_pylist())
    if shape.kind == "union":
        return any(has_other_symbols(values, part) for part in shape.parts[:1])
    if shape.kind == "array":
        return has_other_symbols(values.flatten(), shape.parts[0])
    if shape.kind != "record" or not shape.any("enum"):
        return False
    parts = dict(zip(shape.fields, shape.parts, strict=True))
    return any(
        has_other_symbols(column, parts[each.name])
        for each, column in zip(values.type, values.flatten(), strict=True)
        if each.name in parts
    )


def _logical_parts(shape: Shape) -> dict[str, Shape]:
    """The fields that are times or dates, optional ones too."""
    found: dict[str, Shape] = {}
    for name, part in zip(shape.fields, shape.parts, strict=True):
        inner = part.parts[0] if part.kind == "union" and len(part.parts) == 1 else part
        if inner.logical is not None:
            found[name] = inner
    return found


def _read_as(raw: pa.BinaryArray, kind: pa.StructType, shape: Shape) -> list[pa.Field] | None:
    """The types to read the fields as. None: some are times deeper in a value, or decimals."""
    if shape.kind != "record":
        return None
    logical = _logical_parts(shape)
    for name, part in zip(shape.fields, shape.parts, strict=True):
        if name in logical:
            if logical[name].logical == "decimal":
                return None
        elif part.any("logical"):
            return None
    try:
        examples = [parsed(each, exact=False) for each in raw.slice(0, _EXAMPLES).to_pylist()]
    except (msgspec.DecodeError, RecursionError):
        return None
    fields = []
    for field in kind:
        of = logical.get(field.name)
        if of is None:
            fields.append(field)
            continue
        if field.type != of.arrow:
            return None
        some = next((each[field.name] for each in examples if each.get(field.name) is not None), 0)
        if isinstance(some, str):
            fields.append(pa.field(field.name, pa.string() if of.logical == "date" else field.type))
        else:
            fields.append(pa.field(field.name, pa.int64()))
    return fields


def _converted(column: pa.Array, field: pa.Field, shape: Shape | None) -> pa.Array:
    """Raises Arrow's error for text that is no date, and what the column does not hold."""
    of = None if shape is None else _logical_parts(shape).get(field.name)
    if of is None:
        return column
    if pa.types.is_integer(column.type):
        if of.logical == "date":
            return column.cast(pa.int32()).cast(field.type)
        return pc.multiply_checked(column, UNITS_US[str(of.logical)]).cast(field.type)
    found = column.cast(field.type)
    # Of text that is read row by row Python's own times decide, which begin with the year 1.
    if pc.any(pc.less(pc.year(found), 1)).as_py():
        raise pa.ArrowInvalid("a year that Python does not have")
    return found
