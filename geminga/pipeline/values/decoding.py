"""Payloads into typed columns, as a topic's schema says."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from geminga.pipeline.client.connection import Connection
from geminga.pipeline.columns.batches import Messages
from geminga.pipeline.columns.columns import VALUE, decoded_keys, payloads
from geminga.pipeline.errors import SET_RAW_VALUE, Access
from geminga.pipeline.values.avro_shapes import SchemaMismatch, Shape, readable_definition, shape_of
from geminga.pipeline.values.primitive_values import primitives
from geminga.pipeline.values.schemas import (
    KEY,
    TopicSchema,
    definition_of,
    fetch_schema,
    value_fields,
)
from geminga.pipeline.values.structured_values import from_avro, from_json
from geminga.wire import pulsar_pb2 as pb

_TYPE = pb.Schema.Type
_VERSIONS_MAX = 1000
_BAD_AVRO = (
    ValueError,
    TypeError,
    EOFError,
    IndexError,
    KeyError,
    AttributeError,
    StopIteration,
    ArithmeticError,
    RecursionError,
)
_NOT_IN_COLUMNS = ("bytes", "fixed", "map", "null", "members", "logical")
"""What the compiled reader of JSON cannot do, or does in another way than the clients."""


class ValueDecoder:
    """Decodes the values of one topic into the wanted columns; schemas of older versions are fetched on
    sight.
    """

    def __init__(self, access: Access, topic: str, schema: TopicSchema, wanted: pa.Schema) -> None:
        self._access = access
        self._topic = topic
        self._schema = schema
        self._wanted = wanted
        self._versions: dict[tuple[bytes, int | None], Any] = {}
        self._makes = value_fields(schema)

    def __call__(self, messages: Messages) -> dict[str, pa.Array]:
        """Raises `SchemaMismatch`."""
        schema = self._schema
        raw = payloads(messages)
        wanted = {each.name: each.type for each in self._wanted}
        if schema.is_raw or self._wants_bytes(wanted):
            return {VALUE: raw}
        if schema.kind == _TYPE.KeyValue:
            return self._pair(messages, raw, wanted)
        if schema.kind in (_TYPE.Avro, _TYPE.Json) and set(self._makes) != {VALUE}:
            fields = [(name, kind) for name, kind in wanted.items() if name in self._makes]
            values = self._structured(messages, schema, raw, pa.struct(fields))
            return {each.name: values.field(index) for index, each in enumerate(values.type)}
        return {VALUE: self._whole(messages, schema, raw, wanted.get(VALUE, self._makes[VALUE]))}

    def _wants_bytes(self, wanted: dict[str, pa.DataType]) -> bool:
        """The user's own schema asks for the bytes."""
        return bool(wanted.get(VALUE) == pa.binary() and self._makes.get(VALUE) != pa.binary())

    def _pair(self, messages: Messages, raw: pa.Array, wanted: dict[str, pa.DataType]) -> dict[str, pa.Array]:
        key_schema, value_schema = self._schema.parts()
        if self._schema.separated:
            keys = decoded_keys(messages)
        else:
            keys, raw = _split_pairs(raw, self._topic)
        found = {}
        for part, (name, schema, column) in enumerate(
            ((KEY, key_schema, keys), (VALUE, value_schema, raw)),
        ):
            if name in wanted:
                found[name] = self._whole(messages, schema, column, wanted[name], part=part)
        return found

    def _whole(
        self,
        messages: Messages,
        schema: TopicSchema,
        raw: pa.Array,
        kind: pa.DataType,
        *,
        part: int | None = None,
    ) -> pa.Array:
        """`part` of a pair: 0 is its key, 1 its value."""
        if schema.kind in (_TYPE.Avro, _TYPE.Json):
            return self._structured(messages, schema, raw, kind, part=part)
        if schema.kind is None or schema.is_raw or kind == pa.binary():
            return raw
        return primitives(schema.kind, raw, self._topic)

    def _structured(
        self,
        messages: Messages,
        schema: TopicSchema,
        raw: pa.Array,
        kind: pa.DataType,
        *,
        part: int | None = None,
    ) -> pa.Array:
        if schema.kind == _TYPE.Json:
            return json_values(raw, kind, self._topic, shape_of(definition_of(schema)))
        return self._avro(schema, raw, kind, self._version_of(messages), part)

    def _version_of(self, messages: Messages) -> Callable[[int], bytes | None]:
        spans, entry, data = messages.entries.schema_version, messages.entry, messages.entries.data
        remembered: dict[int, bytes | None] = {}

        def find(row: int) -> bytes | None:
            of = int(entry[row])
            if of not in remembered:
                at = int(spans.at[of])
                remembered[of] = data[at : at + int(spans.size[of])].tobytes() if at >= 0 else None
            return remembered[of]

        return find

    def _avro(
        self,
        schema: TopicSchema,
        raw: pa.Array,
        kind: pa.DataType,
        version: Callable[[int], bytes | None],
        part: int | None = None,
    ) -> pa.Array:
        import fastavro

        latest = _readable(schema)
        reader, shape = _narrowed(schema, latest, kind)
        change = from_avro(shape)
        found: list[Any] = []
        for row, payload in enumerate(raw.to_pylist()):
            if payload is None:
                found.append(None)
                continue
            writer = self._writer(version(row), latest, part)
            try:
                value = fastavro.schemaless_reader(
                    io.BytesIO(payload), writer, reader, return_named_type=change is not None
                )
                found.append(value if change is None else change(value))
            except (*_BAD_AVRO, fastavro.read.SchemaResolutionError) as error:
                raise SchemaMismatch(
                    f"{self._topic}: a value is not what its schema says ({type(error).__name__}: {error}); "
                    "the schema may have changed: load the table again, or ",
                    SET_RAW_VALUE,
                    " to get bytes",
                ) from None
        return _array(found, kind, self._topic)

    def _writer(self, version: bytes | None, latest: Any, part: int | None) -> Any:
        """The schema that a message, or this part of its pair, was written with."""
        if version is None:
            return latest
        known = self._versions.get((version, part))
        if known is None:
            with Connection.open(self._access) as connection:
                schema = fetch_schema(connection, self._topic, version)
            known = self._of_version(schema, latest, part)
            if len(self._versions) >= _VERSIONS_MAX:
                self._versions.clear()
            self._versions[version, part] = known
        return known

    def _of_version(self, schema: TopicSchema, latest: Any, part: int | None) -> Any:
        if part is not None:
            schema = schema.parts()[part] if schema.kind == _TYPE.KeyValue else TopicSchema()
        if schema.kind != _TYPE.Avro:
            return latest
        found = _readable(schema)
        records = isinstance(found, dict) and isinstance(latest, dict)
        if records and found["type"] == latest["type"] == "record":
            found["name"] = latest["name"]  # a class that was renamed is still what the values are
        return found


def _readable(schema: TopicSchema) -> Any:
    """Of an AVRO schema what its decoder takes. Raises `SchemaMismatch`."""
    from fastavro.schema import SchemaParseException, UnknownType, parse_schema

    try:
        return parse_schema(readable_definition(definition_of(schema)))
    except (SchemaParseException, UnknownType, *_BAD_AVRO) as error:
        raise SchemaMismatch(
            f"a schema that is not AVRO's ({type(error).__name__}: {error}); ", SET_RAW_VALUE, " to get bytes"
        ) from None


def _narrowed(schema: TopicSchema, latest: Any, kind: pa.DataType) -> tuple[Any, Shape]:
    """What to read of values: the fields that `kind` has, if they are records; others are skipped."""
    definition = definition_of(schema)
    shape = shape_of(definition)
    if shape.kind != "record" or not pa.types.is_struct(kind):
        return latest, shape
    wanted = {each.name for each in kind}
    if wanted.issuperset(shape.fields):
        return latest, shape
    fields = [each for each in definition["fields"] if each["name"] in wanted]
    narrow = TopicSchema(schema.kind, json.dumps({**definition, "fields": fields}).encode())
    try:
        return _readable(narrow), shape_of(definition_of(narrow))
    except SchemaMismatch:
        return latest, shape  # a type is defined in a field that is left out, and used in one that is not


def _array(values: list[Any], kind: pa.DataType, topic: str) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SchemaMismatch(
            f"{topic}: values do not fit the column type {kind}: {error}; if the schema has changed, "
            "load the table again"
        ) from None


def json_values(raw: pa.BinaryArray, kind: pa.DataType, topic: str, shape: Shape | None = None) -> pa.Array:
    """Records by compiled code; whatever that refuses, one by one, as `shape` says."""
    if pa.types.is_struct(kind) and len(raw) and (shape is None or not shape.any(*_NOT_IN_COLUMNS)):
        found = _json_records(raw, kind)
        if found is not None:
            return found
    change, parse_float = (from_json(shape), Decimal) if shape is not None else ((lambda value: value), float)
    values = []
    for payload in raw.to_pylist():
        try:
            parsed = None if payload is None else json.loads(payload, parse_float=parse_float)
            values.append(change(parsed))
        except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
            raise SchemaMismatch(
                f"{topic}: a value is not JSON of its schema ({error}); ", SET_RAW_VALUE, " to get bytes"
            ) from None
    return _array(values, kind, topic)


def _json_records(raw: pa.BinaryArray, kind: pa.StructType) -> pa.Array | None:
    """None: not possible. Each value has to be one object, or lines would not be values."""
    if raw.null_count or not pc.all(pc.and_(pc.starts_with(raw, b"{"), pc.ends_with(raw, b"}"))).as_py():
        return None
    try:
        table = pa.json.read_json(
            io.BytesIO(b"\n".join(raw.to_pylist())),
            parse_options=pa.json.ParseOptions(
                explicit_schema=pa.schema(list(kind)),
                newlines_in_values=True,
                unexpected_field_behavior="ignore",
            ),
            read_options=pa.json.ReadOptions(use_threads=False, block_size=1 << 30),
        )
    except pa.ArrowException:
        return None
    if table.num_rows != len(raw) or not kind.num_fields:
        return None
    arrays = [table.column(each.name).combine_chunks() for each in kind]
    return pa.StructArray.from_arrays(arrays, fields=list(kind))


def _split_pairs(raw: pa.BinaryArray, topic: str) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """An inline pair: size i32 (-1: none), key, size i32, value."""
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    for pair in raw.to_pylist():
        if pair is None:
            keys.append(None)
            values.append(None)
            continue
        rest, parts = pair, []
        for _ in range(2):
            size = int.from_bytes(rest[:4], "big", signed=True)
            if len(rest) < 4 or size > len(rest) - 4:
                raise SchemaMismatch(
                    f"{topic}: a key-value pair that ends too early; ", SET_RAW_VALUE, " to get bytes"
                )
            parts.append(None if size < 0 else rest[4 : 4 + size])
            rest = rest[4 + max(size, 0) :]
        keys.append(parts[0])
        values.append(parts[1])
    return pa.array(keys, pa.binary()), pa.array(values, pa.binary())
