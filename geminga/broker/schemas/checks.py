"""Checks whether a schema is valid, whether two are equal, and whether one may follow another. Pure.

The rules and the texts are Pulsar 4.0's (`SchemaDataValidator`, `SchemaCompatibilityCheck` and its
implementations), recorded case by case: tests/e2e/operators/schema_recording.json.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Sequence
from typing import Final

from geminga.broker.schemas.avro import AvroType, SchemaParseError, are_equal, parse, pretty
from geminga.broker.schemas.resolution import can_read
from geminga.broker.schemas.types import (
    BYTES,
    CLIENT_SIDE,
    SchemaInvalid,
    TopicSchema,
    key_and_value,
)
from geminga.errors import IncompatibleSchema

TRANSITIVE: Final = frozenset({"BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE"})
ALWAYS, NEVER = "ALWAYS_COMPATIBLE", "ALWAYS_INCOMPATIBLE"
SCHEMA_BYTES_MAX: Final = 512 * 1024
"""The limit of a schema, which must fit a metadata record in base64."""


def validate(schema: TopicSchema) -> None:
    """Raises SchemaInvalid."""
    kind = schema.type
    size = len(schema.data)
    if size > SCHEMA_BYTES_MAX:
        raise SchemaInvalid(f"a schema of {size} bytes: at most {SCHEMA_BYTES_MAX} are kept")
    if kind in CLIENT_SIDE:
        raise SchemaInvalid(f"Schema {kind} is a client-side schema type")
    if kind == "KEY_VALUE":
        for part in key_and_value(schema):
            validate(part)
    elif kind == "JSON":
        _validate_json(schema)
    elif schema.is_avro:
        _parsed(schema)
    elif kind == "PROTOBUF_NATIVE":
        _root_message(schema)
    elif kind == "STRING":
        # The Python client sends the word.
        if size and schema.data != b"null":
            text = schema.data.decode(errors="replace")
            raise SchemaInvalid(f"Invalid schema definition data for string schema : '{text}'")
    elif kind not in ("NONE", BYTES) and size:
        raise SchemaInvalid(
            "Invalid schema definition data for primitive schemas :length of schema data should be zero, "
            f"but {size} bytes is found"
        )


def _validate_json(schema: TopicSchema) -> None:
    try:
        parse(schema.data.decode())
    except (SchemaParseError, UnicodeDecodeError):
        # What clients of version 2.0 sent: JSON's own way to describe JSON.
        if not _is_old_json(schema):
            raise SchemaInvalid("Invalid schema definition data for JSON schema") from None


def _is_old_json(schema: TopicSchema) -> bool:
    try:
        return isinstance(json.loads(schema.data), dict)
    except (ValueError, RecursionError):
        return False


def _parsed(schema: TopicSchema) -> AvroType:
    try:
        if not schema.data:
            raise SchemaParseError("Cannot parse <null> schema")
        return parse(schema.data.decode())
    except (SchemaParseError, UnicodeDecodeError) as error:
        raise SchemaInvalid(
            f"Invalid schema definition data for {schema.type} schema caused by "
            f"org.apache.avro.SchemaParseException: {error}"
        ) from None


def _root_message(schema: TopicSchema) -> str:
    """Full name of the message of a PROTOBUF_NATIVE schema, whose file exists and defines a message."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        given = json.loads(schema.data)
        FileDescriptorSet.FromString(binascii.a2b_base64(given["fileDescriptorSet"], strict_mode=True))
        return str(given["rootMessageTypeName"])
    except (ValueError, KeyError, TypeError, RecursionError, DecodeError) as error:
        raise SchemaInvalid(f"deserialize ProtobufNative Schema failed caused by {error!r}") from None


def are_same(one: TopicSchema, other: TopicSchema) -> bool:
    """Whether both are the same version of a schema. Properties do not count."""
    if one.type != other.type:
        return False
    if one.data == other.data:
        return True
    if one.is_avro:
        try:
            return are_equal(parse(one.data.decode()), parse(other.data.decode()))
        except (SchemaParseError, UnicodeDecodeError):
            return False
    return False


def check_follows(earlier: Sequence[TopicSchema], new: TopicSchema, strategy: str) -> None:
    """Raise IncompatibleSchema unless `new` may be the next version. `earlier` are all versions before,
    the oldest first.
    """
    if not earlier:
        return
    if new.type == "JSON":
        # JSON's own way to describe JSON may be a topic's first schema, and nothing can follow it.
        _parsed(new)
    if strategy == ALWAYS:
        return
    others = earlier if strategy in TRANSITIVE else earlier[-1:]
    latest = earlier[-1]
    for other in (latest, *others):
        if other.type != new.type:
            raise IncompatibleSchema(
                f"Incompatible schema: exists schema type {other.type}, new schema type {new.type}"
            )
    _check(list(reversed(others)), new, strategy)


def check_consumer(earlier: Sequence[TopicSchema], reader: TopicSchema, strategy: str) -> None:
    """Raise IncompatibleSchema unless a consumer may read the topic with this schema."""
    if strategy in ("BACKWARD", "FORWARD", "FORWARD_TRANSITIVE", "FULL"):
        check_follows(earlier, reader, "BACKWARD")
    else:
        check_follows(earlier, reader, strategy)


def _check(newest_first: Sequence[TopicSchema], new: TopicSchema, strategy: str) -> None:
    """Check schemas of one type."""
    if strategy == ALWAYS:
        return
    if new.type == "KEY_VALUE":
        _check_key_value(newest_first, new, strategy)
    elif new.is_avro:
        _check_avro(newest_first, new, strategy)
    elif new.type == "PROTOBUF_NATIVE":
        if strategy == NEVER:
            raise IncompatibleSchema(f"Unknown SchemaCompatibilityStrategy: {strategy}")
        for schema in newest_first:
            before, after = _root_message(schema), _root_message(new)
            if before != after:
                raise IncompatibleSchema(
                    f"Protobuf root message change is not allowed under the '{strategy}' strategy. "
                    f"Original message name: '{before}', new message name: '{after}'."
                )
    elif strategy == NEVER:
        raise IncompatibleSchema("Schema compatibility strategy is ALWAYS_INCOMPATIBLE")


def _check_avro(newest_first: Sequence[TopicSchema], new: TopicSchema, strategy: str) -> None:
    added = _parsed(new)
    if strategy == NEVER and newest_first:
        raise _unreadable(added, added, strategy)
    kind = strategy.removesuffix("_TRANSITIVE")
    for schema in newest_first:
        known = _parsed(schema)
        if kind in ("FORWARD", "FULL") and not can_read(added, known):
            raise _unreadable(added, known, strategy)
        if kind in ("BACKWARD", "FULL") and not can_read(known, added):
            raise _unreadable(known, added, strategy)


def _unreadable(writer: AvroType, reader: AvroType, strategy: str) -> IncompatibleSchema:
    return IncompatibleSchema(
        f"Error during schema compatibility check with strategy {strategy}: "
        "org.apache.avro.SchemaValidationException: Unable to read schema: \n"
        f"{pretty(writer)}\nusing schema:\n{pretty(reader)}"
    )


def _check_key_value(newest_first: Sequence[TopicSchema], new: TopicSchema, strategy: str) -> None:
    key, value = key_and_value(new)
    pairs = [key_and_value(schema) for schema in newest_first]
    for old_key, old_value in pairs:
        if (old_key.type, old_value.type) != (key.type, value.type):
            raise IncompatibleSchema(
                "Key schemas or Value schemas are different schema type, "
                f"from key schema type is {old_key.type} and to key schema is {key.type}, "
                f"from value schema is {old_value.type} and to value schema is {value.type}"
            )
    _check([pair[0] for pair in pairs], key, strategy)
    _check([pair[1] for pair in pairs], value, strategy)
