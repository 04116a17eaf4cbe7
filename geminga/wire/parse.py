"""Parses any command with protobuf. The scanners must give equal results."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, Literal

from fastcrc.crc32 import iscsi as crc_32c
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from geminga.errors import ProtocolError
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import Ack, Command, Delivery, Flow, Send, UnknownCommand, position_of

MAGIC_CHECKSUM = 0x0E01
MAGIC_STAMP = 0x0E02

LONG_ACK_BYTES: Final = 16 << 10
"""An ACK beyond this stays protobuf, of which 10,000 ids take 0.5 ms: as positions they take 6 ms."""
ACK_PART_IDS: Final = 500
"""A part takes a millisecond."""

_U32 = struct.Struct(">I")
_TYPE = pb.BaseCommand.Type
_SUB_MESSAGES: dict[int, str] = {
    value.number: pb.BaseCommand.DESCRIPTOR.fields_by_number[value.number].name
    for value in _TYPE.DESCRIPTOR.values
}


def parse_command(data: bytes, view: memoryview, at: int, command_end: int, end: int) -> Command:
    """The command at `at` of `data`, whose frame ends at `end`. Raises `ProtocolError`."""
    envelope = pb.BaseCommand()
    try:
        envelope.ParseFromString(data[at:command_end])
    except DecodeError as error:
        raise ProtocolError(f"not a command: {error}") from error
    # Returned, not raised: newer clients know more commands, and the session decides what one costs its
    # connection.
    if not envelope.HasField("type"):
        return _unknown(envelope)
    name = _SUB_MESSAGES[envelope.type]
    if not envelope.HasField(name):
        raise ProtocolError(f"a command of type {_TYPE.Name(envelope.type)} without its {name}")
    message: Message = getattr(envelope, name)
    if not message.IsInitialized():
        # Checked by us, since ParseFromString accepts a message whose required fields are missing.
        missing = ", ".join(message.FindInitializationErrors())  # type: ignore[attr-defined]
        raise ProtocolError(f"{type(message).__name__} lacks {missing}")
    if type(message).DESCRIPTOR.full_name in _WITH_TEXT:
        _check_text(message)
    convert = _CONVERSIONS.get(type(message))
    if command_end - at > LONG_ACK_BYTES and type(message) is pb.CommandAck:
        return message
    return message if convert is None else convert(message, data, view, command_end, end)


def _check_text(message: Message) -> None:
    """Raise ProtocolError for invalid UTF-8, which protobuf returns as bytes; handlers expect str."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            texts = value if field.is_repeated else (value,)
            if not all(isinstance(text, str) for text in texts):
                raise ProtocolError(f"{field.full_name} is not UTF-8")
        elif field.message_type is not None and field.message_type.full_name in _WITH_TEXT:
            for inner in value if field.is_repeated else (value,):
                _check_text(inner)


def _with_text() -> frozenset[str]:
    """The messages that have text fields, directly or nested."""
    messages = pb.DESCRIPTOR.message_types_by_name.values()
    found: set[str] = set()
    while True:
        more = {
            message.full_name
            for message in messages
            for field in message.fields
            if field.type == field.TYPE_STRING
            or (field.message_type is not None and field.message_type.full_name in found)
        }
        if more == found:
            return frozenset(found)
        found = more


_WITH_TEXT = _with_text()


def _unknown(envelope: pb.BaseCommand) -> UnknownCommand:
    """A command of a later version: protobuf keeps a type that its enum lacks among the unknown fields."""
    fields = UnknownFieldSet(envelope)
    numbers = [
        field.data
        for field in fields  # type: ignore[attr-defined]
        if field.field_number == 1 and field.wire_type == 0
    ]
    if not numbers:
        raise ProtocolError("a command without a type")
    return UnknownCommand(numbers[-1])


def _payload(data: bytes, view: memoryview, at: int, end: int) -> tuple[bytes, bool]:
    """The bytes after a command, and whether its checksum (if any) matches and its metadata ends inside
    them.

    Raises `ProtocolError`.
    """
    checksum_ok = True
    metadata_at = at
    if end - at >= 2:
        magic = int.from_bytes(data[at : at + 2], "big")
        # Stored as it came, the client's stamp would be taken for the broker's receipt time and index.
        if magic == MAGIC_STAMP:
            raise ProtocolError("a message that begins with the broker's own stamp")
        if magic == MAGIC_CHECKSUM:
            metadata_at = at + 6
            if end < metadata_at:
                raise ProtocolError("a message that ends inside its checksum")
            (checksum,) = _U32.unpack_from(data, at + 2)
            checksum_ok = crc_32c(view[metadata_at:end]) == checksum
    if end - metadata_at < 4:
        raise ProtocolError("a message without metadata")
    return data[at:end], checksum_ok and _metadata_size(data, metadata_at, end) <= end - metadata_at - 4


def _metadata_size(data: bytes, at: int, end: int) -> int:
    return int.from_bytes(data[at : at + 4], "big") if end - at >= 4 else -1


def _convert_send(message: pb.CommandSend, data: bytes, view: memoryview, command_end: int, end: int) -> Send:
    body, checksum_ok = _payload(data, view, command_end, end)
    return Send(
        message.producer_id,
        message.sequence_id,
        message.num_messages,
        message.highest_sequence_id,
        body,
        checksum_ok,
        message.is_chunk,
        message.marker,
        _txnid(message),
        message.message_id if message.HasField("message_id") else None,
    )


def _txnid(message: pb.CommandSend) -> tuple[int, int] | None:
    # Half an id is an id as well: 0 is the default of both halves, so that a client may leave one out.
    if message.HasField("txnid_least_bits") or message.HasField("txnid_most_bits"):
        return message.txnid_most_bits, message.txnid_least_bits
    return None


def _convert_message(
    message: pb.CommandMessage, data: bytes, view: memoryview, command_end: int, end: int
) -> Delivery:
    if data[command_end : command_end + 2] == b"\x0e\x02":
        # a client that asked for it gets the broker's stamp too, in front of the checksum
        size = _metadata_size(data, command_end + 2, end)
        if not 0 <= size <= end - command_end - 6:
            raise ProtocolError("a message whose stamp is longer than its frame")
        body, checksum_ok = _payload(data, view, command_end + 6 + size, end)
        return Delivery(message, data[command_end : command_end + 6 + size] + body, checksum_ok)
    return Delivery(message, *_payload(data, view, command_end, end))


def _convert_ack(message: pb.CommandAck, *_: object) -> Ack | pb.CommandAck:
    cumulative = message.ack_type == pb.CommandAck.Cumulative
    ids = message.message_id
    # Anything with a batch's ack set, a transaction or an error goes on as protobuf: the fast form has no
    # place for it.
    plain = (
        (len(ids) == 1 or (len(ids) > 1 and not cumulative))
        and not message.properties
        and not any(message.HasField(name) for name in _ACK_EXTRAS)
        and not any(message_id.ack_set for message_id in ids)
    )
    if not plain:
        return message
    request_id = message.request_id if message.HasField("request_id") else None
    return Ack(message.consumer_id, cumulative, [position_of(message_id) for message_id in ids], request_id)


def ack_parts(command: pb.CommandAck) -> Iterator[Ack | pb.CommandAck]:
    """The same acknowledgement as several that name `ACK_PART_IDS` entries at most. The last one alone has
    the request id, so that there is one answer, after all of them. Properties are left out, as nothing reads
    them.
    """
    ids = command.message_id
    # A cumulative one with many ids is ignored; a part with one id would count.
    if command.ack_type == pb.CommandAck.Cumulative or len(ids) <= ACK_PART_IDS:
        yield command
        return
    for start in range(0, len(ids), ACK_PART_IDS):
        part = pb.CommandAck(consumer_id=command.consumer_id, ack_type=command.ack_type)
        for name in _ACK_EXTRAS:
            if command.HasField(name):
                setattr(part, name, getattr(command, name))
        part.message_id.extend(ids[start : start + ACK_PART_IDS])
        if start + ACK_PART_IDS >= len(ids) and command.HasField("request_id"):
            part.request_id = command.request_id
        yield _convert_ack(part)


def _convert_flow(message: pb.CommandFlow, *_: object) -> Flow:
    return Flow(message.consumer_id, message.messagePermits)


_ACK_EXTRAS: tuple[Literal["validation_error", "txnid_least_bits", "txnid_most_bits"], ...] = (
    "validation_error",
    "txnid_least_bits",
    "txnid_most_bits",
)
_CONVERSIONS: dict[type, Callable[..., Command]] = {
    pb.CommandSend: _convert_send,
    pb.CommandMessage: _convert_message,
    pb.CommandAck: _convert_ack,
    pb.CommandFlow: _convert_flow,
}
