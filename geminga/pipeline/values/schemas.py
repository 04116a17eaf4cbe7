"""What the schema registry says of a topic's values, and the columns that they become."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from geminga.errors import ServerError
from geminga.pipeline.client.connection import Connection
from geminga.pipeline.client.topics import full_name
from geminga.pipeline.columns.columns import VALUE
from geminga.pipeline.errors import SET_RAW_VALUE, Access, Option, Refused
from geminga.pipeline.values.avro_shapes import SchemaMismatch, shape_of
from geminga.pipeline.values.primitive_values import PRIMITIVES
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.encoder import frame

_TYPE = pb.Schema.Type
KEY = "key"
KEY_SCHEMA, VALUE_SCHEMA = "key.schema.", "value.schema."
KEY_VALUE_ENCODING = "kv.encoding.type"

_STRUCTURED = (_TYPE.Avro, _TYPE.Json)


@dataclass(frozen=True)
class TopicSchema:
    """A schema as the registry keeps it. `kind` None: the topic has none, values are bytes."""

    kind: int | None = None
    definition: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)
    version: bytes = b""
    """What the registry calls it."""
    latest: Mapping[str, bytes] = field(default_factory=dict)
    """By topic the version that was the latest when a query began: its messages are of this kind."""

    @property
    def is_raw(self) -> bool:
        """Values stay bytes: there is no schema, or none that can be decoded here."""
        return self.kind not in PRIMITIVES and self.kind not in (*_STRUCTURED, _TYPE.KeyValue)

    @property
    def separated(self) -> bool:
        """Of a key-value schema: the key travels as the message's key."""
        return self.properties.get(KEY_VALUE_ENCODING, "INLINE").upper() == "SEPARATED"

    def differs_from(self, other: TopicSchema) -> bool:
        """Whether values are encoded in another way."""
        ours, theirs = (
            (each.kind, each.definition, each.separated and each.kind == _TYPE.KeyValue)
            for each in (self, other)
        )
        if ours == theirs and self.kind == _TYPE.KeyValue:
            pairs = zip(self.parts(), other.parts(), strict=True)
            return any(part.differs_from(its) for part, its in pairs)
        return ours != theirs

    @property
    def kind_name(self) -> str:
        """As Java calls it."""
        return "none" if self.kind is None else _TYPE.Name(self.kind).upper()

    def is_encoded_as(self, other: TopicSchema) -> bool:
        """Whether values are of the same kind, so that a version of the one is read as the other."""
        if self.kind != other.kind:
            return False
        if self.kind != _TYPE.KeyValue:
            return True
        pairs = zip(self.parts(), other.parts(), strict=True)
        return self.separated == other.separated and all(ours.kind == its.kind for ours, its in pairs)

    def parts(self) -> tuple[TopicSchema, TopicSchema]:
        """Of a key-value schema: of the key and of the value. Raises `SchemaMismatch`."""
        data, found = self.definition, []
        for prefix in (KEY_SCHEMA, VALUE_SCHEMA):
            size = int.from_bytes(data[:4], "big", signed=True)
            if len(data) < 4 or size > len(data) - 4:
                raise SchemaMismatch("a key-value schema that ends too early")
            definition, data = data[4 : 4 + max(size, 0)], data[4 + max(size, 0) :]
            name = self.properties.get(prefix + "type", "BYTES")
            properties = _object(self.properties.get(prefix + "properties", ""))
            found.append(TopicSchema(_kind_of(name), definition, properties))
        return found[0], found[1]


def _object(text: str) -> dict[str, str]:
    """Texts by name, as far as it is JSON with any."""
    try:
        given = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(given, dict):
        return {}
    return {name: value for name, value in given.items() if isinstance(value, str)}


def _kind_of(name: str) -> int | None:
    """Java's name of a schema type (INT32, KEY_VALUE, BOOLEAN) as its number."""
    wanted = {"BOOLEAN": "BOOL"}.get(name, name).replace("_", "").lower()
    for number_name, number in _TYPE.items():
        if number_name.lower() == wanted:
            return int(number)
    return None


def fetch_schema(connection: Connection, topic: str, version: bytes | None = None) -> TopicSchema:
    """The latest, or the one of a version. Raises `PipelineError`; a broker's trouble is never taken for no
    schema.
    """
    try:
        return _schema_in(_ask(connection, topic, version))
    except Refused as error:
        if error.code == ServerError.TOPIC_NOT_FOUND and version is None:
            return TopicSchema()
        raise SchemaMismatch(
            f"{topic}: its schema cannot be read: ", error, "; retry, or ", SET_RAW_VALUE, " to get bytes"
        ) from None


def fetch_versions(connection: Connection, topic: str) -> tuple[tuple[bytes, TopicSchema], ...]:
    """Every version that counts and what the registry calls it, the oldest first; those before a deletion
    are left out. Raises `PipelineError`.
    """
    found = []
    try:
        latest = _ask(connection, topic, None)
    except Refused as error:
        if error.code == ServerError.TOPIC_NOT_FOUND:
            return ()
        raise
    if _schema_in(latest).kind is None:
        return ()
    for number in range(int.from_bytes(latest.schema_version, "big") + 1):
        version = number.to_bytes(len(latest.schema_version), "big")
        try:
            found.append((version, _schema_in(_ask(connection, topic, version))))
        except Refused as error:
            if error.code != ServerError.TOPIC_NOT_FOUND:
                raise
    return tuple(found)


def _ask(connection: Connection, topic: str, version: bytes | None) -> pb.CommandGetSchemaResponse:
    name = str(full_name(topic).partitioned_name)

    def build(number: int) -> bytes:
        command = pb.CommandGetSchema(request_id=number, topic=name, schema_version=version)
        return frame(pb.BaseCommand(type=pb.BaseCommand.Type.GET_SCHEMA, getSchema=command))

    answer = connection.request(build)
    assert isinstance(answer, pb.CommandGetSchemaResponse)
    return answer


def _schema_in(answer: pb.CommandGetSchemaResponse) -> TopicSchema:
    schema = answer.schema
    if schema.type == _TYPE.Value("None"):
        return TopicSchema()
    pairs: Iterable[Any] = schema.properties
    properties = {pair.key: pair.value for pair in pairs}
    version = bytes(answer.schema_version)
    return TopicSchema(int(schema.type), bytes(schema.schema_data), properties, version)


def schema_of(access: Access, topics: list[str]) -> TopicSchema:
    """The one that all topics have. Raises `SchemaMismatch` if they differ."""
    with Connection.open(access) as connection:
        first = fetch_schema(connection, topics[0]) if topics else TopicSchema()
    return with_topics(access, replace(first, latest=dict.fromkeys(topics[:1], first.version)), topics[1:])


def with_topics(access: Access, values: TopicSchema, topics: Sequence[str]) -> TopicSchema:
    """The schema of some topics, for these as well. Raises `SchemaMismatch` if one of them has another."""
    if not topics:
        return values
    with Connection.open(access) as connection:
        found = {topic: fetch_schema(connection, topic) for topic in topics}
    for topic, schema in found.items():
        if schema.differs_from(values):
            raise SchemaMismatch(
                f"the schema of {topic} differs from that of {next(iter(values.latest), 'the query')}: read "
                "them apart, or ",
                Option("allowDifferentTopicSchemas", "true", "set"),
                " to get the bytes of the values",
            )
    latest = {topic: schema.version for topic, schema in found.items()}
    return replace(values, latest={**values.latest, **latest})


def value_fields(schema: TopicSchema) -> dict[str, pa.DataType]:
    """The columns of values: `value`, the fields of a record, or `key` and `value` of a pair."""
    if schema.is_raw:
        return {VALUE: pa.binary()}
    if schema.kind == _TYPE.KeyValue:
        key, value = schema.parts()
        return {KEY: whole_type(key), VALUE: whole_type(value)}
    if schema.kind in _STRUCTURED:
        shape = shape_of(definition_of(schema))
        if shape.kind == "record":
            return {each.name: each.type for each in shape.arrow}
        return {VALUE: shape.arrow}
    assert schema.kind is not None
    return {VALUE: PRIMITIVES[schema.kind]}


def whole_type(schema: TopicSchema) -> pa.DataType:
    """The type of a value in a single column."""
    if schema.kind in _STRUCTURED:
        return shape_of(definition_of(schema)).arrow
    return PRIMITIVES.get(schema.kind, pa.binary()) if schema.kind is not None else pa.binary()


def definition_of(schema: TopicSchema) -> Any:
    """The AVRO definition, which JSON schemas have too. Raises `SchemaMismatch`."""
    try:
        return json.loads(schema.definition)
    except (ValueError, RecursionError):
        raise SchemaMismatch(
            "a schema whose definition is not JSON; ", SET_RAW_VALUE, " to get bytes"
        ) from None
