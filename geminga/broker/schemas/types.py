"""A topic's schema in the terms of Pulsar's clients and its REST API. Pure."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from geminga.errors import IncompatibleSchema
from geminga.wire import pulsar_pb2 as pb

_UNLIKE: Final[Mapping[str, str]] = {
    "Bool": "BOOLEAN",
    "KeyValue": "KEY_VALUE",
    "LocalDate": "LOCAL_DATE",
    "LocalTime": "LOCAL_TIME",
    "LocalDateTime": "LOCAL_DATE_TIME",
    "ProtobufNative": "PROTOBUF_NATIVE",
    "AutoConsume": "AUTO_CONSUME",
}
NAMES: Final[Mapping[int, str]] = {
    number: _UNLIKE.get(name, name.upper()) for name, number in pb.Schema.Type.items()
}
"""The REST API's names for the protocol's types."""
NUMBERS: Final[Mapping[str, int]] = {name: number for number, name in NAMES.items()}
CLIENT_SIDE: Final = frozenset({"AUTO", "AUTO_CONSUME", "AUTO_PUBLISH"})
"""Types with which a client requests the topic's schema; they are no schemas."""
BYTES: Final = "BYTES"
KNOWN: Final = frozenset(NUMBERS) | CLIENT_SIDE | {BYTES}
_LENGTH: Final = struct.Struct(">i")


class SchemaInvalid(IncompatibleSchema):
    """The data is no schema of its type."""

    http_status = 422


class TopicSchema(NamedTuple):
    """`type` is one of `KNOWN`. `data` depends on the type: the JSON of an Avro schema, or nothing."""

    type: str
    data: bytes
    properties: Mapping[str, str] = {}

    @property
    def is_avro(self) -> bool:
        """Whether the data is an Avro schema."""
        return self.type in ("AVRO", "JSON", "PROTOBUF")


def from_wire(schema: pb.Schema) -> TopicSchema:
    pairs: Iterable[Any] = schema.properties
    properties = {pair.key: pair.value for pair in pairs}
    return TopicSchema(NAMES[schema.type], schema.schema_data, properties)


def to_wire(schema: TopicSchema, name: str) -> pb.Schema:
    pairs: Any = [pb.KeyValue(key=key, value=value) for key, value in schema.properties.items()]
    kind: Any = NUMBERS.get(schema.type, 0)
    return pb.Schema(name=name, type=kind, schema_data=schema.data, properties=pairs)


def key_and_value(schema: TopicSchema) -> tuple[TopicSchema, TopicSchema]:
    """The two schemas of KEY_VALUE. Raises SchemaInvalid."""
    parts = []
    data, at = schema.data, 0
    for part_name in ("key", "value"):
        try:
            (size,) = _LENGTH.unpack_from(data, at)
        except struct.error:
            raise SchemaInvalid(
                "Invalid schema definition data for KEY_VALUE schema: it is cut short"
            ) from None
        at += _LENGTH.size
        size = max(size, 0)
        if at + size > len(data):
            raise SchemaInvalid("Invalid schema definition data for KEY_VALUE schema: it is cut short")
        kind = schema.properties.get(f"{part_name}.schema.type", BYTES)
        properties = _texts_of(schema.properties.get(f"{part_name}.schema.properties", "{}"))
        parts.append(TopicSchema(kind, data[at : at + size], properties))
        at += size
    return parts[0], parts[1]


def text_of(schema: TopicSchema) -> str:
    """The data as the REST API shows them."""
    if schema.type != "KEY_VALUE":
        return schema.data.decode(errors="replace")
    try:
        parts = key_and_value(schema)
    except SchemaInvalid:
        return schema.data.decode(errors="replace")
    shown = {}
    for part_name, part in zip(("key", "value"), parts, strict=True):
        text = part.data.decode(errors="replace")
        parsed = _json_or_none(text)
        shown[part_name] = parsed if isinstance(parsed, dict | list) else text
    return json.dumps(shown, separators=(",", ":"), ensure_ascii=False)


def data_from_text(kind: str, text: str) -> bytes:
    """The reverse of `text_of`. Raises SchemaInvalid."""
    if kind != "KEY_VALUE":
        return text.encode()
    given = _json_or_none(text)
    if not isinstance(given, dict):
        raise SchemaInvalid('a KEY_VALUE schema is given as {"key": ..., "value": ...}')
    encoded = b""
    for part_name in ("key", "value"):
        part: Any = given.get(part_name, "")
        try:
            data = (part if isinstance(part, str) else json.dumps(part, separators=(",", ":"))).encode()
        except UnicodeEncodeError as error:
            raise SchemaInvalid(f"the {part_name} of a KEY_VALUE schema is no text: {error.reason}") from None
        encoded += _LENGTH.pack(len(data)) + data
    return encoded


def _texts_of(text: str) -> Mapping[str, str]:
    """An object of texts; other values are left out, because a client may have sent anything."""
    given = _json_or_none(text)
    if not isinstance(given, dict):
        return {}
    return {key: value for key, value in given.items() if isinstance(value, str)}


def _json_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
