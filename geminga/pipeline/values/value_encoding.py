"""Which columns of a DataFrame are a message's value, under which schema, and how they are encoded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from geminga.pipeline.columns.columns import VALUE
from geminga.pipeline.values.avro_shapes import TIME
from geminga.pipeline.values.avro_writing import BadColumns, avro_rows, record_definition
from geminga.pipeline.values.json_writing import json_rows
from geminga.pipeline.values.primitive_values import encoded_primitives
from geminga.pipeline.values.row_columns import READ_ONLY_COLUMNS, WRITTEN_COLUMNS
from geminga.wire import pulsar_pb2 as pb

_TYPE = pb.Schema.Type
_ALONE: dict[pa.DataType, tuple[int, str]] = {
    pa.string(): (_TYPE.String, "String"),
    pa.bool_(): (_TYPE.Bool, "Boolean"),
    pa.int8(): (_TYPE.Int8, "INT8"),
    pa.int16(): (_TYPE.Int16, "INT16"),
    pa.int32(): (_TYPE.Int32, "INT32"),
    pa.int64(): (_TYPE.Int64, "INT64"),
    pa.float32(): (_TYPE.Float, "Float"),
    pa.float64(): (_TYPE.Double, "Double"),
    pa.date32(): (_TYPE.Date, "Date"),
    TIME: (_TYPE.Timestamp, "Timestamp"),
}
"""The schema of a column that is the value by itself, with the name that the Java client gives it."""


@dataclass(frozen=True)
class ValueEncoder:
    columns: tuple[str, ...]
    kind: int | None = None
    """Of the schema; None: bytes, and no schema."""
    name: str = ""
    definition: Any = None

    @property
    def schema(self) -> pb.Schema | None:
        """What a producer registers."""
        if self.kind is None:
            return None
        data = b"" if self.definition is None else json.dumps(self.definition, separators=(",", ":")).encode()
        return pb.Schema(name=self.name, type=pb.Schema.Type.Name(self.kind), schema_data=data)

    def __call__(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """The value of each row; null for one that has none. Raises `BadColumns`."""
        if self.kind == _TYPE.Avro:
            return avro_rows(batch.select(self.columns), self.definition)
        if self.kind == _TYPE.Json:
            return json_rows(batch.select(self.columns))
        column = batch.column(self.columns[0])
        if self.kind is None:
            return column if column.type == pa.binary() else column.cast(pa.binary())
        return encoded_primitives(self.kind, column.cast(_alone(column.type)))


def value_encoder(columns: pa.Schema, value_schema: str) -> ValueEncoder:
    """As the JVM connector does it unless `value_schema` says otherwise: one column is a value of its type,
    more of them and structs are a record. Raises `BadColumns`.
    """
    names = tuple(name for name in columns.names if name not in _BESIDE)
    for name in names:
        if name.startswith("__"):
            raise BadColumns(
                f"column {name!r} cannot be part of a message; allowed beside the value are "
                f"{', '.join(WRITTEN_COLUMNS[1:])}"
            )
    if not names:
        raise BadColumns(f"a DataFrame without a value: it has {', '.join(columns.names)}")
    fields = pa.schema([columns.field(name) for name in names])
    if value_schema in ("avro", "json"):
        return _record(names, fields, value_schema)
    kind = fields.field(0).type
    if value_schema == "none":
        if names != (VALUE,) or not (_is_bytes(kind) or _alone(kind) == pa.string()):
            raise BadColumns("valueSchema=none needs a column 'value' (binary or string), and no others")
        return ValueEncoder(names)
    if len(names) > 1 or pa.types.is_struct(kind):
        return _record(names, fields, "avro")
    if _is_bytes(kind):
        return ValueEncoder(names)
    if _alone(kind) not in _ALONE:
        raise BadColumns(
            f"column {names[0]!r} is {kind}, for which there is no schema; set valueSchema=avro (or json) to "
            "write a record of it"
        )
    return ValueEncoder(names, *_ALONE[_alone(kind)])


_BESIDE = READ_ONLY_COLUMNS | {name for name in WRITTEN_COLUMNS if name != VALUE}


def _record(names: tuple[str, ...], fields: pa.Schema, value_schema: str) -> ValueEncoder:
    kind, name = (_TYPE.Avro, "Avro") if value_schema == "avro" else (_TYPE.Json, "Json")
    return ValueEncoder(names, kind, name, record_definition(fields))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _alone(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    return TIME if pa.types.is_timestamp(kind) and kind.tz else kind
