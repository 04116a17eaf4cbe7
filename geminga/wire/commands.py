"""The decoder's results: hot commands as small structs, any other as its protobuf sub-message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import msgspec
from google.protobuf.message import Message

from geminga.errors import ProtocolError
from geminga.wire import pulsar_pb2 as pb

_SIGN_BIT = 1 << 63
_MODULUS = 1 << 64


class Send(msgspec.Struct, gc=False):
    """SEND: one entry to be stored.

    `headers_and_payload` are the bytes after the command, as received: magic, checksum, metadata, payload.
    `checksum_ok` is False when the CRC-32C does not match, or when the metadata is longer than the message;
    True when it matches, or when the peer sent none. `num_messages` is the client's number.
    """

    producer_id: int
    sequence_id: int
    num_messages: int
    highest_sequence_id: int
    """0: the command has none."""
    headers_and_payload: bytes
    checksum_ok: bool
    is_chunk: bool = False
    marker: bool = False
    txnid: tuple[int, int] | None = None
    """The transaction's (most bits, least bits), of which an absent half is 0; None: it belongs to none."""
    message_id: pb.MessageIdData | None = None
    """The entry's position in the source topic; only a replicator of a shadow topic sets it."""

    def __repr__(self) -> str:
        """Without the client's payload, which does not belong in a log."""
        size = len(self.headers_and_payload)
        return f"Send(producer {self.producer_id}, sequence {self.sequence_id}, {size} bytes)"


class Sends(msgspec.Struct, gc=False):
    """Consecutive SENDs of one producer in the usual shape, at least one: what came together goes to the disk
    together. The lists are parallel, and their values as in `Send`; all checksums match.
    """

    # Lists and no `Send` for each: an entry on its way is then looked at by loops over whole lists. With the
    # prefix, since a copy of each entry only to prepend the broker's stamp was a tenth of a publish.
    producer_id: int
    sequence_ids: list[int]
    num_messages: list[int]
    highest_sequence_ids: list[int]
    entries: list[bytes]
    """`headers_and_payload` of each behind the decoder's prefix."""
    prefix_bytes: int
    """The length of that prefix."""

    def singly(self) -> Iterator[Send]:
        """The same as single commands."""
        each = zip(self.sequence_ids, self.num_messages, self.highest_sequence_ids, self.entries, strict=True)
        for sequence_id, num_messages, highest_sequence_id, entry in each:
            body = entry[self.prefix_bytes :]
            yield Send(self.producer_id, sequence_id, num_messages, highest_sequence_id, body, True)

    def __repr__(self) -> str:
        """Without the client's payloads, as `Send`."""
        return f"Sends(producer {self.producer_id}, sequences {self.sequence_ids})"


class Ack(msgspec.Struct, gc=False):
    """ACK of whole entries, without an ack set, properties, a transaction or a validation error.

    `positions` are (ledger id, entry id), at least one; a cumulative ack has exactly one. Any other ACK
    arrives as `CommandAck`.
    """

    consumer_id: int
    cumulative: bool
    positions: list[tuple[int, int]]
    request_id: int | None = None


class Flow(msgspec.Struct, gc=False):
    """FLOW: the consumer can take `permits` more messages. Not checked here: 0 and 2^32-1 are possible."""

    consumer_id: int
    permits: int


class Delivery(msgspec.Struct, gc=False):
    """MESSAGE, as a client receives it. `headers_and_payload` and `checksum_ok` as for `Send`."""

    message: pb.CommandMessage
    headers_and_payload: bytes
    checksum_ok: bool


class UnknownCommand(msgspec.Struct, gc=False):
    """A command of a later protocol version. `request_id` is None, because its position is unknown here."""

    type: int
    request_id: int | None = None


Command: TypeAlias = Send | Sends | Ack | Flow | Delivery | UnknownCommand | Message


def signed(value: int) -> int:
    """The uint64 `value` as the signed number that the protocol's other implementations see."""
    return value - _MODULUS if value & _SIGN_BIT else value


def unsigned(value: int) -> int:
    """The number to put into a uint64 field: -1, "none", becomes 2^64-1."""
    return value + _MODULUS if value < 0 else value


def position_of(message_id: pb.MessageIdData) -> tuple[int, int]:
    """(ledger id, entry id) with signs: "earliest" is (-1, -1)."""
    return signed(message_id.ledgerId), signed(message_id.entryId)


def request_id_of(command: Any) -> int | None:
    """The id that an answer to `command` must have; None if the command has none (or left it out)."""
    if isinstance(command, Message):
        field = command.DESCRIPTOR.fields_by_name.get("request_id")
        if field is None or (field.has_presence and not command.HasField("request_id")):
            return None
        return int(command.request_id)  # type: ignore[attr-defined]
    found: int | None = getattr(command, "request_id", None)
    return found


def singly(commands: Iterable[Command]) -> Iterator[Command]:
    """The commands as their frames came, each `Send` of a `Sends` alone."""
    for command in commands:
        if isinstance(command, Sends):
            yield from command.singly()
        else:
            yield command


class BadFrame(ProtocolError):
    """The peer's bytes violate the protocol.

    `commands` are the valid ones before the bad frame in the chunk; they may still be served.
    """

    def __init__(self, text: str, commands: list[Command]) -> None:
        super().__init__(text)
        self.commands = commands
