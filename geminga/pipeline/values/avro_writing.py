"""Columns as AVRO records: the definition that the JVM connector makes of them, and their rows. Pure."""

from __future__ import annotations

import io
import re
from typing import Any

import pyarrow as pa

from geminga.pipeline.errors import PipelineError
from geminga.pipeline.values.avro_encoding import ROWS_MIN, encoded_records

RECORD_NAME = "topLevelRecord"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
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


def record_definition(columns: pa.Schema) -> Any:
    """Of a record with these fields. Raises `BadColumns`."""
    return _record(list(columns), RECORD_NAME, "")


def _record(fields: list[pa.Field], name: str, namespace: str) -> Any:
    inside = f"{namespace}.{name}" if namespace else name
    for field in fields:
        if _NAME.fullmatch(field.name) is None:
            raise BadColumns(
                f"column {field.name!r}: AVRO has names of letters, digits and _ only; rename it, for "
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
        for row in batch.to_pylist(maps_as_pydicts="strict"):
            buffer = io.BytesIO()
            fastavro.schemaless_writer(buffer, parsed, row)
            found.append(buffer.getvalue())
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise BadColumns(f"a row is no record of the schema: {error}") from None
    return pa.array(found, pa.binary())
