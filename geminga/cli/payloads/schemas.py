"""A topic's schema on the command line: payloads to values, texts to payloads. Pure."""

from __future__ import annotations

import datetime
import json
import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from geminga.cli.payloads.avro import AvroSchema
from geminga.cli.payloads.errors import CannotDecode, CannotEncode
from geminga.wire import pulsar_pb2 as pb

_TYPE = pb.Schema.Type
_SIZE = struct.Struct(">i")
_NUMBERS: dict[int, struct.Struct] = {
    _TYPE.Int8: struct.Struct(">b"),
    _TYPE.Int16: struct.Struct(">h"),
    _TYPE.Int32: struct.Struct(">i"),
    _TYPE.Int64: struct.Struct(">q"),
    _TYPE.Float: struct.Struct(">f"),
    _TYPE.Double: struct.Struct(">d"),
    _TYPE.Date: struct.Struct(">q"),
    _TYPE.Time: struct.Struct(">q"),
    _TYPE.Timestamp: struct.Struct(">q"),
    _TYPE.LocalDate: struct.Struct(">q"),
    _TYPE.LocalTime: struct.Struct(">q"),
    _TYPE.Instant: struct.Struct(">qi"),
    _TYPE.LocalDateTime: struct.Struct(">qq"),
}
NAMED: dict[str, int] = {
    "string": _TYPE.String,
    "boolean": _TYPE.Bool,
    "int8": _TYPE.Int8,
    "int16": _TYPE.Int16,
    "int32": _TYPE.Int32,
    "int64": _TYPE.Int64,
    "float": _TYPE.Float,
    "double": _TYPE.Double,
}
"""Schemas that `--value-schema` takes by name alone."""
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Schema(NamedTuple):
    """`kind` is the protocol's number of the type."""

    kind: int
    data: bytes = b""
    properties: Mapping[str, str] = {}

    @property
    def name(self) -> str:
        """As the protocol calls the type: `Avro`, `KeyValue`."""
        return _name_of(self.kind)


def _name_of(kind: int) -> str:
    return next((name for name, number in _TYPE.items() if number == kind), str(kind))


class KeyValue(NamedTuple):
    """The value of a KEY_VALUE schema."""

    key: Any
    value: Any
    key_kind: int
    value_kind: int


def from_wire(schema: pb.Schema) -> Schema:
    pairs: Iterable[Any] = schema.properties
    return Schema(schema.type, schema.schema_data, {pair.key: pair.value for pair in pairs})


def to_wire(schema: Schema) -> pb.Schema:
    pairs: Any = [pb.KeyValue(key=key, value=value) for key, value in schema.properties.items()]
    return pb.Schema(name="client", type=schema.kind, schema_data=schema.data, properties=pairs)  # type: ignore[arg-type]


# -- decoding ------------------------------------------------------------------------------------------------


def decoded(schema: Schema, payload: bytes, key: bytes = b"") -> Any:
    """The value: text, numbers, dicts and lists, bytes, dates as text, or a `KeyValue`. `key`: the message's
    key, where a KEY_VALUE schema keeps the key apart. Raises `CannotDecode`.
    """
    if schema.kind == _TYPE.KeyValue:
        return _key_value(schema, payload, key)
    return _value(schema.kind, schema.data, payload)


def _value(kind: int, data: bytes, payload: bytes) -> Any:
    try:
        if kind == _TYPE.String:
            return payload.decode()
        if kind == _TYPE.Json:
            return json.loads(payload)
        if kind == _TYPE.Avro:
            return _avro(data).decode(payload)
        if kind == _TYPE.Bool:
            return payload != b"\0"
        if kind in _NUMBERS:
            return _number(kind, _NUMBERS[kind].unpack(payload))
    except (ValueError, struct.error, OverflowError, RecursionError) as error:
        raise CannotDecode(f"not a value of the topic's {_name_of(kind)} schema: {error}") from None
    return payload


@lru_cache(maxsize=64)
def _avro(data: bytes) -> AvroSchema:
    return AvroSchema.parse(data)


def _number(kind: int, parts: tuple[Any, ...]) -> Any:
    first = parts[0]
    match kind:
        case _TYPE.Date:
            return (_EPOCH + datetime.timedelta(milliseconds=first)).date().isoformat()
        case _TYPE.Timestamp:
            return _instant(first * 1_000_000)
        case _TYPE.Instant:
            return _instant(first * 1_000_000_000 + parts[1])
        case _TYPE.LocalDate:
            return (_EPOCH + datetime.timedelta(days=first)).date().isoformat()
        case _TYPE.Time:
            return _instant(first * 1_000_000)[11:-1]
        case _TYPE.LocalTime:
            return _instant(first)[11:-1]
        case _TYPE.LocalDateTime:
            return _instant(first * 86_400_000_000_000 + parts[1])[:-1]
        case _:
            return first


def _instant(nanoseconds: int) -> str:
    whole, rest = divmod(nanoseconds, 1_000_000_000)
    shown = (_EPOCH + datetime.timedelta(seconds=whole)).isoformat().removesuffix("+00:00")
    return f"{shown}.{rest:09d}".rstrip("0").rstrip(".") + "Z"


def _key_value(schema: Schema, payload: bytes, key: bytes) -> KeyValue:
    key_data, value_data = _two(schema.data)
    key_kind, value_kind = (
        _kind_named(schema.properties.get(f"{part}.schema.type")) for part in ("key", "value")
    )
    raw_key: bytes | None
    raw_value: bytes | None
    if schema.properties.get("kv.encoding.type", "INLINE").upper() == "SEPARATED":
        raw_key, raw_value = key, payload
    else:
        raw_key, raw_value = _two(payload)
    return KeyValue(
        None if raw_key is None else _value(key_kind, key_data or b"", raw_key),
        None if raw_value is None else _value(value_kind, value_data or b"", raw_value),
        key_kind,
        value_kind,
    )


def _two(data: bytes) -> tuple[bytes | None, bytes | None]:
    """Two byte strings, each after its size; a negative size stands for null."""
    parts: list[bytes | None] = []
    at = 0
    for _ in range(2):
        try:
            [size] = _SIZE.unpack_from(data, at)
        except struct.error:
            raise CannotDecode("not a key and a value") from None
        at += _SIZE.size
        if size > len(data) - at:
            raise CannotDecode("not a key and a value: it ends too early")
        parts.append(None if size < 0 else data[at : at + size])
        at += max(size, 0)
    return parts[0], parts[1]


def _kind_named(name: str | None) -> int:
    """`STRING`, `KEY_VALUE`: the number; of BYTES and unknown ones `_TYPE.None`."""
    wanted = (name or "").replace("_", "").lower().replace("boolean", "bool")
    return next((number for known, number in _TYPE.items() if known.lower() == wanted), 0)


# -- encoding ------------------------------------------------------------------------------------------------


def parsed(text: str) -> Schema | None:
    """`string`, `int32`, `avro:DEFINITION`, `json:DEFINITION`; None for `bytes`. Raises `CannotEncode`."""
    name, colon, definition = text.partition(":")
    if text == "bytes":
        return None
    if text in NAMED:
        return Schema(NAMED[text])
    kind = {"avro": _TYPE.Avro, "json": _TYPE.Json}.get(name)
    if kind is None or not colon:
        raise CannotEncode(
            f"unknown schema {text[:40]!r}; known are bytes, {', '.join(NAMED)}, "
            "avro:DEFINITION and json:DEFINITION"
        )
    try:
        AvroSchema.parse(definition)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CannotEncode(f"not an AVRO definition: {error}") from None
    return Schema(kind, definition.encode())


def encoded(schema: Schema | None, text: str) -> bytes:
    """A text of the command line as a payload: JSON for AVRO and JSON, digits for numbers. Raises
    `CannotEncode`.
    """
    if schema is None or schema.kind == _TYPE.String:
        return text.encode()
    try:
        if schema.kind == _TYPE.Bool:
            if text.lower() not in ("true", "false"):
                raise ValueError(f"{text!r}: expected true or false")
            return b"\1" if text.lower() == "true" else b"\0"
        if schema.kind in (_TYPE.Float, _TYPE.Double):
            return _NUMBERS[schema.kind].pack(float(text))
        if schema.kind in _NUMBERS:
            return _NUMBERS[schema.kind].pack(int(text))
        value = json.loads(text)
    except (ValueError, struct.error, OverflowError) as error:
        raise CannotEncode(f"{text[:60]!r} is no {schema.name} value: {error}") from None
    if schema.kind == _TYPE.Avro:
        return AvroSchema.parse(schema.data).encode(value)
    AvroSchema.parse(schema.data).encode(value)  # only to see that it fits
    return text.encode()


def checked(schema: Schema | None, payload: bytes) -> bytes:
    """Bytes of a file, if they are a value of the schema. Raises `CannotEncode`."""
    if schema is not None:
        try:
            decoded(schema, payload)
        except CannotDecode as error:
            raise CannotEncode(str(error)) from None
    return payload


def key_value_schema(key: Schema | None, value: Schema | None, *, separated: bool) -> Schema:
    """The schema of a key and a value."""
    properties = {"kv.encoding.type": "SEPARATED" if separated else "INLINE"}
    data = b""
    for part, schema in (("key", key), ("value", value)):
        name = "BYTES" if schema is None else schema.name.upper().replace("BOOL", "BOOLEAN")
        properties |= {
            f"{part}.schema.name": "client" if schema is not None and schema.data else name.capitalize(),
            f"{part}.schema.type": name,
            f"{part}.schema.properties": "{}",
        }
        definition = b"" if schema is None else schema.data
        data += _SIZE.pack(len(definition)) + definition
    return Schema(_TYPE.KeyValue, data, properties)


def inline(key: bytes | None, value: bytes) -> bytes:
    """A key and a value in one payload."""
    head = _SIZE.pack(-1) if key is None else _SIZE.pack(len(key)) + key
    return head + _SIZE.pack(len(value)) + value
