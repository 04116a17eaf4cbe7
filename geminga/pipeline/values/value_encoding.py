"""Which columns of a DataFrame are a message's value, under which schema, and how they are encoded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from geminga.pipeline.columns.columns import VALUE
from geminga.pipeline.values.avro_shapes import TIME
from geminga.pipeline.values.avro_writing import BadColumns, avro_rows, record_definition
from geminga.pipeline.values.json_writing import json_rows
from geminga.pipeline.values.primitive_values import encoded_primitives, takes
from geminga.pipeline.values.row_columns import READ_ONLY_COLUMNS, WRITTEN_COLUMNS
from geminga.pipeline.values.schemas import KEY, KEY_SCHEMA, KEY_VALUE_ENCODING, VALUE_SCHEMA
from geminga.pipeline.values.written_schemas import PRIMITIVE_SCHEMAS, Primitive, java_type
from geminga.wire import pulsar_pb2 as pb

_TYPE = pb.Schema.Type
_ALONE: dict[pa.DataType, str] = {
    pa.string(): "string",
    pa.bool_(): "boolean",
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    TIME: "timestamp",
    pa.timestamp("us"): "local_date_time",
}
"""The schema of a column that is the value by itself."""


class Encoded(NamedTuple):
    """What the rows of a batch are sent as."""

    value: pa.BinaryArray
    """Null for a row that has none."""
    key: pa.BinaryArray | None = None
    """The keys of separated pairs; None: the column `__key` has the keys."""


@dataclass(frozen=True)
class ValueEncoder:
    columns: tuple[str, ...]
    kind: int | None = None
    """Of the schema; None: bytes, and no schema."""
    name: str = ""
    definition: Any = None
    is_struct: bool = False
    """The record is the one column, and not a field of it."""

    @property
    def schema(self) -> pb.Schema | None:
        """What a producer registers."""
        if self.kind is None:
            return None
        return pb.Schema(
            name=self.name, type=pb.Schema.Type.Name(self.kind), schema_data=self.definition_bytes
        )

    @property
    def definition_bytes(self) -> bytes:
        return b"" if self.definition is None else json.dumps(self.definition, separators=(",", ":")).encode()

    def __call__(self, batch: pa.RecordBatch) -> Encoded:
        """Raises `BadColumns`."""
        return Encoded(self.values(batch))

    def values(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """The value of each row; null for one that has none. Raises `BadColumns`."""
        if self.is_struct:
            return self._structs(batch.column(self.columns[0]))
        if self.kind in (_TYPE.Avro, _TYPE.Json):
            return self._of_columns(batch.select(self.columns))
        column = batch.column(self.columns[0])
        if self.kind is None:
            return column if column.type == pa.binary() else column.cast(pa.binary())
        return encoded_primitives(self.kind, column, self.columns[0])

    def _of_columns(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """Null for a row that is null in every column, as a null message is read."""
        if not all(column.null_count for column in batch.columns):
            _check_nulls(batch)
            return self._records(batch)
        is_null = np.logical_and.reduce([np.asarray(column.is_null()) for column in batch.columns])
        present = batch.filter(pa.array(~is_null))
        _check_nulls(present)
        return _among_nulls(is_null, self._records(present))

    def _records(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        return avro_rows(batch, self.definition) if self.kind == _TYPE.Avro else json_rows(batch)

    def _structs(self, column: pa.StructArray) -> pa.BinaryArray:
        """Those that are null have no record: their fields may be of types that cannot be null."""
        present = pa.RecordBatch.from_struct_array(column.drop_null() if column.null_count else column)
        if not column.null_count:
            return self._records(present)
        return _among_nulls(np.asarray(column.is_null()), self._records(present))


def _check_nulls(batch: pa.RecordBatch) -> None:
    """Raises `BadColumns` for a null in a column that has none by its field."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if column.null_count and not field.nullable:
            raise BadColumns(
                f"column {field.name!r} has a null, for which the topic's schema has no place; fill it, for "
                "example with coalesce"
            )


def _among_nulls(is_null: npt.NDArray[np.bool_], present: pa.BinaryArray) -> pa.BinaryArray:
    """The values of the rows that have one, each in its row's place."""
    return present.take(pa.array(np.cumsum(~is_null) - 1, mask=is_null))


@dataclass(frozen=True)
class PairEncoder:
    """Of the columns `key` and `value`, as the Java client's key-value schema."""

    key: ValueEncoder
    value: ValueEncoder
    encoding: str
    """One of `PAIR_ENCODINGS`."""

    @property
    def schema(self) -> pb.Schema:
        """What a producer registers."""
        data, properties = b"", {KEY_VALUE_ENCODING: self.encoding.upper()}
        for prefix, part in ((KEY_SCHEMA, self.key), (VALUE_SCHEMA, self.value)):
            data += len(part.definition_bytes).to_bytes(4, "big") + part.definition_bytes
            properties |= {
                f"{prefix}name": part.name or "Bytes",
                f"{prefix}type": java_type(part.kind),
                f"{prefix}properties": "{}",
            }
        found = pb.Schema(name="KeyValue", type=pb.Schema.Type.Name(_TYPE.KeyValue), schema_data=data)
        for name, text in properties.items():
            found.properties.add(key=name, value=text)
        return found

    def __call__(self, batch: pa.RecordBatch) -> Encoded:
        """A row with neither a key nor a value is a null message. Raises `BadColumns`."""
        keys, values = self.key.values(batch), self.value.values(batch)
        if self.encoding == "separated":
            return Encoded(values, keys)
        empty = pa.scalar(b"")
        joined = pc.binary_join_element_wise(
            _sizes(keys), keys.fill_null(empty), _sizes(values), values.fill_null(empty), empty
        )
        if keys.null_count and values.null_count:
            joined = pc.if_else(pc.or_(keys.is_valid(), values.is_valid()), joined, None)
        return Encoded(joined)


Encoder: TypeAlias = ValueEncoder | PairEncoder


def _sizes(parts: pa.BinaryArray) -> pa.BinaryArray:
    """Before each part of a pair; -1 says that there is none."""
    found = np.asarray(pc.binary_length(parts).fill_null(-1)).astype(">i4")
    bounds = np.arange(0, 4 * len(found) + 1, 4, dtype=np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(found), [None, pa.py_buffer(bounds), pa.py_buffer(found.tobytes())]
    )


def value_encoder(columns: pa.Schema, value_schema: str) -> ValueEncoder:
    """As the JVM connector does it unless `value_schema` says otherwise: one column is a value of its type,
    more of them and structs are a record. Raises `BadColumns`.
    """
    names = _value_columns(columns)
    fields = pa.schema([columns.field(name) for name in names])
    if value_schema in ("avro", "json"):
        return _record(names, fields, value_schema)
    kind = fields.field(0).type
    if value_schema == "none":
        if names != (VALUE,) or not (_is_bytes(kind) or _alone(kind) == pa.string()):
            raise BadColumns("valueSchema=none needs a column 'value' (binary or string), and no others")
        return ValueEncoder(names)
    if value_schema in PRIMITIVE_SCHEMAS:
        if len(names) > 1:
            raise BadColumns(
                f"valueSchema={value_schema} needs one column beside the metadata, and there are "
                f"{', '.join(names)}"
            )
        return _primitive(fields.field(0), value_schema, f"valueSchema={value_schema}")
    if len(names) > 1 or pa.types.is_struct(kind):
        return _record(names, fields, "avro")
    return _of_its_type(fields.field(0), "set valueSchema=avro (or json) to write a record of it")


def pair_encoder(columns: pa.Schema, key_schema: str, value_schema: str, encoding: str) -> PairEncoder:
    """Of columns `key` and `value`. Raises `BadColumns`."""
    names = _value_columns(columns)
    if set(names) != {KEY, VALUE}:
        raise BadColumns(
            f"keyValueEncoding needs the columns {KEY!r} and {VALUE!r}, and no others beside the metadata; "
            f"there are {', '.join(names)}"
        )
    return PairEncoder(
        _part(columns.field(KEY), key_schema, "keySchema"),
        _part(columns.field(VALUE), value_schema, "valueSchema"),
        encoding,
    )


def _part(field: pa.Field, schema: str, option: str) -> ValueEncoder:
    """Of one column of a pair: of a struct the struct itself is the record."""
    if pa.types.is_struct(field.type) and schema in ("auto", "avro", "json"):
        return _record((field.name,), pa.schema(list(field.type)), schema, is_struct=True)
    if schema in ("avro", "json"):
        raise BadColumns(f"column {field.name!r} is {field.type}; {option}={schema} needs a struct")
    if schema == "none":
        if not (_is_bytes(field.type) or _alone(field.type) == pa.string()):
            raise BadColumns(f"column {field.name!r} is {field.type}; {option}=none needs binary or string")
        return ValueEncoder((field.name,))
    if schema in PRIMITIVE_SCHEMAS:
        return _primitive(field, schema, f"{option}={schema}")
    return _of_its_type(field, "make it a struct to write a record of it")


def _value_columns(columns: pa.Schema) -> tuple[str, ...]:
    names = tuple(name for name in columns.names if name not in _BESIDE)
    for name in names:
        if name.startswith("__"):
            raise BadColumns(
                f"column {name!r} cannot be part of a message; allowed beside the value are "
                f"{', '.join(WRITTEN_COLUMNS[1:])}"
            )
    if not names:
        raise BadColumns(f"a DataFrame without a value: it has {', '.join(columns.names)}")
    return names


def _primitive(field: pa.Field, schema: str, option: str) -> ValueEncoder:
    found: Primitive = PRIMITIVE_SCHEMAS[schema]
    if not takes(found.kind, field.type):
        raise BadColumns(f"column {field.name!r} is {field.type}; {option} needs {found.takes}: cast it")
    return ValueEncoder((field.name,), found.kind, found.name)


def _of_its_type(field: pa.Field, instead: str) -> ValueEncoder:
    """Raises `BadColumns` if there is no schema for it; `instead`: what to set or make then."""
    if _is_bytes(field.type):
        return ValueEncoder((field.name,))
    schema = _ALONE.get(_alone(field.type))
    if schema is None:
        raise BadColumns(f"column {field.name!r} is {field.type}, for which there is no schema; {instead}")
    return _primitive(field, schema, schema)


_BESIDE = READ_ONLY_COLUMNS | {name for name in WRITTEN_COLUMNS if name != VALUE}


def _record(
    names: tuple[str, ...], fields: pa.Schema, value_schema: str, *, is_struct: bool = False
) -> ValueEncoder:
    kind, name = (_TYPE.Json, "Json") if value_schema == "json" else (_TYPE.Avro, "Avro")
    return ValueEncoder(names, kind, name, record_definition(fields), is_struct)


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _alone(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_timestamp(kind):
        return TIME if kind.tz else pa.timestamp("us")
    return kind
