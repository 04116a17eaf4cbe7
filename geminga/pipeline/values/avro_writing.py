"""Columns as AVRO records: the definition that the JVM connector makes of them, and their rows. Pure."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa

from geminga.pipeline.errors import PipelineError
from geminga.pipeline.values.avro_encoding import ROWS_MIN, encoded_records
from geminga.pipeline.values.avro_shapes import Shape

RECORD_NAME = "topLevelRecord"
_PLAIN: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
    pa.null(): "null",
}


class BadColumns(PipelineError):
    """A DataFrame that cannot be written as it is."""


def check_names(names: Iterable[str]) -> None:
    """Raises `BadColumns` if two are the same: none of the two can be told by its name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BadColumns(f"two columns have the name {name!r}; drop or rename one, for example with toDF")
        seen.add(name)


def record_definition(columns: pa.Schema) -> Any:
    """Of a record with these fields. Raises `BadColumns`."""
    return _record(list(columns), RECORD_NAME, "")


def _record(fields: list[pa.Field], name: str, namespace: str) -> Any:
    inside = f"{namespace}.{name}" if namespace else name
    check_names(field.name for field in fields)
    for field in fields:
        if not _is_name(field.name):
            raise BadColumns(
                f"column {field.name!r}: AVRO has names of letters, digits and _ only, and none that begins "
                "with a digit; rename it, for "
                "example with withColumnRenamed"
            )
    made: dict[str, Any] = {"type": "record", "name": name}
    if namespace:
        made["namespace"] = namespace
    made["fields"] = [
        {"name": field.name, "type": _definition(field.type, field.nullable, field.name, inside)}
        for field in fields
    ]
    return made


def _is_name(text: str) -> bool:
    """As Java's AVRO has it, and so the broker: letters and digits of any script."""
    return (
        text != ""
        and all(one.isalpha() or one.isdecimal() or one == "_" for one in text)
        and not text[0].isdecimal()
    )


def with_nulls_of(columns: pa.Schema, shape: Shape) -> pa.Schema:
    """The columns, which of them may be null as in a record of `shape`, at every depth where names and types
    are the same ones. A literal of SQL cannot be null, and what was read from a topic always can; taken from
    the columns, either would be a schema that the registry refuses (compatibility FULL).
    """
    return pa.schema(_fields_with_nulls(list(columns), shape))


def _fields_with_nulls(fields: list[pa.Field], shape: Shape) -> list[pa.Field]:
    parts = dict(zip(shape.fields, shape.parts, strict=True))
    return [_with_nulls(field, parts[field.name]) if field.name in parts else field for field in fields]


def _with_nulls(field: pa.Field, shape: Shape) -> pa.Field:
    if shape.kind == "union" and len(shape.parts) > 1:
        return field  # of several types; whether null is one of them is not known here
    nullable = shape.kind in ("union", "null")
    if shape.kind == "union":
        shape = shape.parts[0]
    kind = field.type
    if pa.types.is_struct(kind) and shape.kind == "record":
        kind = pa.struct(_fields_with_nulls(list(kind), shape))
    elif pa.types.is_list(kind) and shape.kind == "array":
        kind = pa.list_(_with_nulls(kind.value_field, shape.parts[0]))
    elif pa.types.is_map(kind) and shape.kind == "map":
        kind = pa.map_(kind.key_field, _with_nulls(kind.item_field, shape.parts[0]))
    return field.with_type(kind).with_nullable(nullable)


def _definition(kind: pa.DataType, nullable: bool, name: str, namespace: str) -> Any:
    found = _not_null(kind, name, namespace)
    return [found, "null"] if nullable and found != "null" else found


def _not_null(kind: pa.DataType, name: str, namespace: str) -> Any:
    plain = _PLAIN.get(kind)
    if plain is not None:
        return plain
    if pa.types.is_date32(kind):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": ("" if kind.tz else "local-") + "timestamp-micros"}
    if pa.types.is_decimal128(kind):
        digits, scale = kind.precision, kind.scale
        return {
            "type": "fixed", "name": "fixed", "namespace": f"{namespace}.{name}",
            "size": _decimal_bytes(digits), "logicalType": "decimal", "precision": digits, "scale": scale,
        }  # fmt: skip
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        of = kind.value_field
        return {"type": "array", "items": _definition(of.type, of.nullable, name, namespace)}
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return {
            "type": "map",
            "values": _definition(kind.item_type, kind.item_field.nullable, name, namespace),
        }
    if pa.types.is_struct(kind):
        return _record(list(kind), name, namespace)
    raise BadColumns(f"column {name!r} is {kind}, for which AVRO has no type; cast it")


def _decimal_bytes(digits: int) -> int:
    size = 1
    while 10**digits - 1 >= 1 << (8 * size - 1):
        size += 1
    return size


def avro_rows(batch: pa.RecordBatch, definition: Any) -> pa.BinaryArray:
    """Each row as a record of the definition, which is that of the columns. Raises `BadColumns` for a row
    that it does not allow.
    """
    found = encoded_records(batch) if batch.num_rows >= ROWS_MIN else None
    return _avro_row_by_row(batch, definition) if found is None else found


def _avro_row_by_row(batch: pa.RecordBatch, definition: Any) -> pa.BinaryArray:
    import fastavro

    parsed = fastavro.parse_schema(definition)
    found = []
    try:
        for row in python_rows(batch):
            buffer = io.BytesIO()
            fastavro.schemaless_writer(buffer, parsed, row)
            found.append(buffer.getvalue())
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise BadColumns(f"a row is no record of the schema: {error}") from None
    return pa.array(found, pa.binary())


def python_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """As `to_pylist`, but times are microseconds and dates days, as definitions have them: those of Python
    end with the year 9999. Raises `KeyError` for a map that has a key twice.
    """
    names = batch.schema.names
    columns = [_values(column) for column in batch.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pa.Array) -> list[Any]:
    kind = column.type
    if not _has_times(kind):
        found: list[Any] = column.to_pylist(maps_as_pydicts="strict")
        return found
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz)).view(pa.int64()).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_date32(kind):
        return column.view(pa.int32()).to_pylist()  # type: ignore[no-any-return]
    # Arrow's own cast and view of such columns fail at some slices
    if pa.types.is_struct(kind):
        parts = zip(*map(_values, column.flatten()), strict=True)
        names = [field.name for field in kind]
        items: Iterator[Any] = (dict(zip(names, row, strict=True)) for row in parts)
    else:
        bounds = column.offsets.to_pylist()
        first, last = bounds[0], bounds[-1]
        if pa.types.is_map(kind):
            keys = column.keys.slice(first, last - first).to_pylist()
            pairs = list(zip(keys, _values(column.items.slice(first, last - first)), strict=True))
            items = (_dict(pairs[at - first : to - first]) for at, to in pairwise(bounds))
        else:
            values = _values(column.values.slice(first, last - first))
            items = (values[at - first : to - first] for at, to in pairwise(bounds))
    return [item if valid else None for item, valid in zip(items, column.is_valid().to_pylist(), strict=True)]


def _has_times(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_times(kind.field(index).type) for index in range(kind.num_fields))
    return bool(pa.types.is_date32(kind) or pa.types.is_timestamp(kind))


def _dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise KeyError("a map has a key twice")
    return made
