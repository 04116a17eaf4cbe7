"""The protocol definition: the numbers are the protocol's, and the generated code is current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from geminga.errors import ServerError
from geminga.limits import PROTOCOL_VERSION
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.compile_proto import ROOM, compile_proto
from tests.oracle.tables import rows

TABLE = rows("protocol_numbers")
VARINT, FIXED64, LENGTH = "0", "1", "2"
WIRE_TYPES = {
    FieldDescriptor.TYPE_DOUBLE: FIXED64,
    FieldDescriptor.TYPE_STRING: LENGTH,
    FieldDescriptor.TYPE_BYTES: LENGTH,
    FieldDescriptor.TYPE_MESSAGE: LENGTH,
}


def underscored(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def label(field: FieldDescriptor) -> str:
    return "repeated" if field.is_repeated else "required" if field.is_required else "optional"


def our_messages() -> dict[str, Descriptor]:
    return dict(pb.DESCRIPTOR.message_types_by_name)


def our_enums() -> dict[str, EnumDescriptor]:
    found = dict(pb.DESCRIPTOR.enum_types_by_name)
    for message in our_messages().values():
        found.update({f"{message.name}.{enum.name}": enum for enum in message.enum_types})
    return found


def test_every_field_has_the_protocols_number_wire_type_and_label() -> None:
    ours = {
        (
            message.name,
            underscored(field.name),
            str(field.number),
            WIRE_TYPES.get(field.type, VARINT),
            label(field),
        )
        for message in our_messages().values()
        for field in message.fields
    }
    theirs = {tuple(row) for row in TABLE if len(row) == 5}
    assert len(theirs) > 300
    assert ours == theirs


def test_every_enum_value_has_the_protocols_number() -> None:
    ours = {
        (name, value.name, str(value.number)) for name, enum in our_enums().items() for value in enum.values
    }
    theirs = {tuple(row) for row in TABLE if len(row) == 3}
    assert ours == theirs


def test_every_command_type_names_the_envelope_field_of_the_same_number() -> None:
    fields = pb.BaseCommand.DESCRIPTOR.fields_by_number
    for value in pb.BaseCommand.Type.DESCRIPTOR.values:
        assert fields[value.number].message_type.name.startswith("Command"), value.name
    assert len(fields) == len(pb.BaseCommand.Type.DESCRIPTOR.values) + 1


def test_no_packed_fields() -> None:
    """Pulsar's own codec writes ack sets one by one; packed ones would be unreadable to it."""
    repeated = [f for m in our_messages().values() for f in m.fields if f.is_repeated]
    assert repeated
    assert not any(field.is_packed for field in repeated)


@pytest.mark.parametrize("error", list(ServerError))
def test_error_numbers_of_the_taxonomy_are_the_protocols(error: ServerError) -> None:
    name = underscored(pb.ServerError.Name(error.value))
    words = set(error.name.lower().split("_")) - {"error"}
    assert words <= set(name.split("_")), (error, name)


def test_protocol_version_is_known() -> None:
    assert f"v{PROTOCOL_VERSION}" in pb.ProtocolVersion.DESCRIPTOR.values_by_name


def test_generated_code_is_current(tmp_path: Path) -> None:
    for written in compile_proto(tmp_path):
        assert written.read_bytes() == (ROOM / written.name).read_bytes(), (
            "run python -m geminga.wire.compile_proto"
        )
