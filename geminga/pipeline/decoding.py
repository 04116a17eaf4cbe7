"""Payloads into typed columns, as a topic's schema says."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json

from geminga.pipeline.batches import Messages
from geminga.pipeline.columns import VALUE, decoded_keys, payloads, text
from geminga.pipeline.connection import Access, Connection
from geminga.pipeline.schemas import (
    KEY,
    SchemaMismatch,
    TopicSchema,
    definition_of,
    fetch_schema,
    value_fields,
)
from geminga.wire import pulsar_pb2 as pb

_TYPE = pb.Schema.Type
_NUMBERS: dict[int, str] = {
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
_MS_TIMES = (_TYPE.Date, _TYPE.Timestamp)
_SECONDS_AND_NANOS = (_TYPE.Instant,)
_DAY_AND_NANOS = (_TYPE.LocalDateTime,)
_LOGICAL_KEPT = ("decimal", "date", "timestamp-millis", "timestamp-micros", "uuid")
_VERSIONS_MAX = 1000
_BAD_AVRO = (ValueError, TypeError, EOFError, IndexError, KeyError, StopIteration)


class ValueDecoder:
    """Decodes the values of one topic into the wanted columns; schemas of older versions are fetched on
    sight.
    """

    def __init__(self, access: Access, topic: str, schema: TopicSchema, wanted: pa.Schema) -> None:
        self._access = access
        self._topic = topic
        self._schema = schema
        self._wanted = wanted
        self._versions: dict[bytes, Any] = {}
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
        for name, schema, column in ((KEY, key_schema, keys), (VALUE, value_schema, raw)):
            if name in wanted:
                found[name] = self._whole(messages, schema, column, wanted[name], of_topic=False)
        return found

    def _whole(
        self,
        messages: Messages,
        schema: TopicSchema,
        raw: pa.Array,
        kind: pa.DataType,
        *,
        of_topic: bool = True,
    ) -> pa.Array:
        if schema.kind in (_TYPE.Avro, _TYPE.Json):
            return self._structured(messages, schema, raw, kind, of_topic=of_topic)
        if schema.kind is None or kind == pa.binary():
            return raw
        return primitives(schema.kind, raw, self._topic)

    def _structured(
        self,
        messages: Messages,
        schema: TopicSchema,
        raw: pa.Array,
        kind: pa.DataType,
        *,
        of_topic: bool = True,
    ) -> pa.Array:
        if schema.kind == _TYPE.Json:
            return json_values(raw, kind, self._topic)
        version = self._version_of(messages) if of_topic else (lambda row: None)
        return self._avro(schema, raw, kind, version)

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
        self, schema: TopicSchema, raw: pa.Array, kind: pa.DataType, version: Callable[[int], bytes | None]
    ) -> pa.Array:
        import fastavro

        reader = fastavro.parse_schema(_plain(definition_of(schema)))
        found: list[Any] = []
        for row, payload in enumerate(raw.to_pylist()):
            if payload is None:
                found.append(None)
                continue
            writer = self._writer(version(row), reader)
            try:
                found.append(fastavro.schemaless_reader(io.BytesIO(payload), writer, reader))
            except (*_BAD_AVRO, fastavro.read.SchemaResolutionError) as error:
                raise SchemaMismatch(
                    f"{self._topic}: a value is not what its schema says ({type(error).__name__}: {error}); "
                    "the schema may have changed: load anew, or set rawValue=true to get bytes"
                ) from None
        return _array(found, kind, self._topic)

    def _writer(self, version: bytes | None, latest: Any) -> Any:
        """The schema that a message was written with."""
        import fastavro

        if version is None:
            return latest
        known = self._versions.get(version)
        if known is None:
            with Connection.open(self._access) as connection:
                schema = fetch_schema(connection, self._topic, version)
            is_avro = schema.kind == _TYPE.Avro
            known = fastavro.parse_schema(_plain(definition_of(schema))) if is_avro else latest
            if len(self._versions) >= _VERSIONS_MAX:
                self._versions.clear()
            self._versions[version] = known
        return known


def _plain(definition: Any) -> Any:
    """Without logical types that have no column type: their plain values are kept."""
    if isinstance(definition, list):
        return [_plain(each) for each in definition]
    if not isinstance(definition, dict):
        return definition
    kept = {name: _plain(each) for name, each in definition.items()}
    if kept.get("logicalType") not in (None, *_LOGICAL_KEPT):
        del kept["logicalType"]
    return kept


def _array(values: list[Any], kind: pa.DataType, topic: str) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SchemaMismatch(
            f"{topic}: values do not fit the column type {kind}: {error}; load anew if the schema has changed"
        ) from None


def primitives(kind: int, raw: pa.BinaryArray, topic: str) -> pa.Array:
    """Numbers are big endian; text is UTF-8. Raises `SchemaMismatch` for values of a wrong size."""
    if kind == _TYPE.String:
        return text(raw)
    if kind in _SECONDS_AND_NANOS or kind in _DAY_AND_NANOS:
        return _compound_times(kind, raw, topic)
    layout = np.dtype(_NUMBERS[kind])
    values = _numbers(raw, layout, topic).reshape(-1)
    mask = np.asarray(raw.is_null()) if raw.null_count else None
    if kind == _TYPE.Bool:
        return pa.array(values != 0, mask=mask)
    plain = pa.array(values.astype(layout.newbyteorder("=")), mask=mask)
    if kind in _MS_TIMES:
        return plain.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))
    if kind == _TYPE.LocalDate:
        return plain.cast(pa.int32()).cast(pa.date32())
    return plain


def _compound_times(kind: int, raw: pa.BinaryArray, topic: str) -> pa.Array:
    """INSTANT: seconds i64, nanoseconds i32. LOCAL_DATE_TIME: day i64, nanoseconds of the day i64."""
    layout = np.dtype([("whole", ">i8"), ("nanos", ">i4" if kind in _SECONDS_AND_NANOS else ">i8")])
    values = _numbers(raw, layout, topic).reshape(-1)
    unit_us = 1_000_000 if kind in _SECONDS_AND_NANOS else 86_400_000_000
    us = values["whole"].astype(np.int64) * unit_us + values["nanos"].astype(np.int64) // 1000
    mask = np.asarray(raw.is_null()) if raw.null_count else None
    return pa.array(us, mask=mask).cast(pa.timestamp("us", tz="UTC"))


def _numbers(raw: pa.BinaryArray, layout: np.dtype[Any], topic: str) -> Any:
    """All values side by side; zero where one is null."""
    width = layout.itemsize
    filled = raw.fill_null(bytes(width)) if raw.null_count else raw
    sizes = np.asarray(pa.compute.binary_length(filled))
    if len(sizes) and (sizes != width).any():
        raise SchemaMismatch(
            f"{topic}: a value of {int(sizes[sizes != width][0])} bytes where the schema says {width}; set "
            "rawValue=true to get bytes"
        )
    return np.frombuffer(b"".join(filled.to_pylist()), layout)


def json_values(raw: pa.BinaryArray, kind: pa.DataType, topic: str) -> pa.Array:
    """Records by compiled code; whatever that refuses, one by one."""
    if pa.types.is_struct(kind) and len(raw) and not raw.null_count:
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
            table = None
        if table is not None and table.num_rows == len(raw):
            arrays = [table.column(each.name).combine_chunks() for each in kind]
            return (
                pa.StructArray.from_arrays(arrays, fields=list(kind))
                if arrays
                else _array([{}] * len(raw), kind, topic)
            )
    found = []
    for payload in raw.to_pylist():
        try:
            found.append(None if payload is None else json.loads(payload))
        except ValueError as error:
            raise SchemaMismatch(
                f"{topic}: a value is not JSON ({error}), though its schema says so; set rawValue=true "
                "to get bytes"
            ) from None
    return _array(found, kind, topic)


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
                    f"{topic}: a key-value pair that ends too early; set rawValue=true to get bytes"
                )
            parts.append(None if size < 0 else rest[4 : 4 + size])
            rest = rest[4 + max(size, 0) :]
        keys.append(parts[0])
        values.append(parts[1])
    return pa.array(keys, pa.binary()), pa.array(values, pa.binary())
