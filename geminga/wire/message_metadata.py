"""The metadata of a stored entry as far as the broker needs it, and the stamp that it puts in front of one.

stored entry := [0x0e02 u16 | size u32 | BrokerEntryMetadata]                        the broker's stamp
                [0x0e01 u16 | CRC-32C u32] | size u32 | MessageMetadata | payload    as the client sent it

The payload stays opaque, whether one message or a batch, compressed or encrypted. Like the hot commands, the
metadata's usual shape is read here without protobuf; docs/formats/wire.md says what falls back.
"""

from __future__ import annotations

import struct
from typing import Any, Literal

import msgspec
from google.protobuf.message import DecodeError

from geminga.errors import ProtocolError
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import signed
from geminga.wire.peek import Peek
from geminga.wire.sticky_hash import sticky_hash, sticky_key, sticky_key_hash, sticky_range_hash
from geminga.wire.stored_entry import (
    STAMP_MAGIC,
    USUAL_STAMP,
    VIRTUAL_MARK,
    VIRTUAL_STAMP_BYTES,
    is_virtual,
    metadata_range,
    parse_metadata,
    raw_text,
    stamp_bytes,
)
from geminga.wire.varint import scan_varint, skip_varint, varint

__all__ = [
    "Peek",
    "broker_timestamp_ms",
    "peek",
    "peek_or_none",
    "stamp",
    "stamp_bytes",
    "sticky_hash",
    "sticky_key",
    "sticky_key_hash",
    "sticky_range_hash",
    "strip",
    "virtual_stamp",
]

_USUAL_HEAD = struct.Struct(">7s6xH4xIBB")
"""Stamp, checksum, metadata size, then the tag and the size of the producer's name."""
_USUAL_HEAD_BYTES = _USUAL_HEAD.size
_unpack_usual = _USUAL_HEAD.unpack_from
_CHECKSUM_MAGIC = 0x0E01
_INT32_MAX = 2**31 - 1
_UINT32_MAX = 2**32 - 1
_INT64_MAX = 2**63 - 1

VIRTUAL_FIRST_MS, VIRTUAL_LAST_MS = 2**35, 2**42 - 1
"""The times that a virtual clock can show, from 1971 to 2109: their varint takes six bytes."""
FAR_AHEAD_MS = 10 * 365 * 86_400_000
"""A virtual clock so far ahead of a client's is not mistaken for it,"""
NEARLY_BROKERS_MS = 365 * 86_400_000
"""and a delivery time no longer before what it shows is a time of that clock."""

# Bounded, since publish times are the client's: one that sends random times must not fill the memory.
_TIMES_MAX = 1024
_times: dict[bytes, int] = {}
"""Maps the upper four of a timestamp's six varint bytes to their value. They change every 16 seconds."""
# A producer's metadata mostly end in the same fields: a compression, a size, a number of messages. Keys and
# due times differ from message to message, and are not kept.
_RESTS_MAX = 256
_REST_BYTES_MAX = 24
_rests: dict[bytes, tuple[int, bool, int, int]] = {}
"""Maps the bytes behind the publish time to what `_scan_rest` finds there: messages in the batch, whether it
is one, compression, uncompressed size.
"""


def stamp(broker_timestamp_ms: int, index: int | None = None) -> bytes:
    """The bytes to prepend to an entry: when the broker received it and, if given, its running number."""
    # BrokerEntryMetadata by hand: two varints for each message published, and protobuf costs ten times as
    # much.
    body = b"\x08" + varint(broker_timestamp_ms)
    if index is not None:
        body += b"\x10" + varint(index)
    return STAMP_MAGIC + len(body).to_bytes(4, "big") + body


def virtual_stamp(broker_timestamp_ms: int) -> bytes:
    """As `stamp`, by a virtual clock. Raises ValueError for a time outside 1971 to 2109."""
    if not VIRTUAL_FIRST_MS <= broker_timestamp_ms <= VIRTUAL_LAST_MS:
        raise ValueError(f"a virtual clock at {broker_timestamp_ms} ms, which is not within 1971 to 2109")
    body = b"\x08" + varint(broker_timestamp_ms) + VIRTUAL_MARK
    return STAMP_MAGIC + len(body).to_bytes(4, "big") + body


def strip(body: bytes) -> bytes:
    """The entry as the client sent it."""
    skip = stamp_bytes(body)
    return body[skip:] if skip else body


def broker_timestamp_ms(body: bytes) -> int | None:
    """When the broker received the entry, by its stamp; None without a stamp."""
    end = stamp_bytes(body)
    if end == 0:
        return None
    metadata = pb.BrokerEntryMetadata()
    try:
        metadata.ParseFromString(body[6:end])
    except DecodeError as error:
        raise ProtocolError(f"not a stamp: {error}") from error
    return metadata.broker_timestamp if metadata.HasField("broker_timestamp") else None


def peek(body: bytes) -> Peek:
    """Read the metadata of a stored entry, or of one as a client sent it. Raises `ProtocolError`."""
    try:
        # The stamp is ours, so its usual form is known to the byte; the client's metadata begins at a fixed
        # place.
        prefix, magic, size, tag, name_bytes = _unpack_usual(body)
        if prefix == USUAL_STAMP and magic == _CHECKSUM_MAGIC:
            end = _USUAL_HEAD_BYTES - 2 + size
            at = _USUAL_HEAD_BYTES + name_bytes
        elif is_virtual(body):
            return _peek_virtual(body)
        else:
            at, end = metadata_range(body)
            tag = body[at]
            name_bytes = body[at + 1]
            at += 2 + name_bytes
        # past the name, at the sequence id's tag; past the sequence id, at the publish time's tag
        # The order in which all official clients write. One that differs is read by protobuf, slower and the
        # same.
        if tag == 0x0A and name_bytes < 0x80 and body[at] == 0x10 and end <= len(body):
            if body[at + 1] < 0x80:
                at += 2
            elif body[at + 2] < 0x80:
                at += 3
            elif body[at + 3] < 0x80:
                at += 4
            else:
                at = skip_varint(body, at + 1)
            if body[at] == 0x18:
                publish_time_ms = _times.get(body[at + 3 : at + 7])
                if publish_time_ms is not None and (byte := body[at + 1]) & (byte2 := body[at + 2]) & 0x80:
                    publish_time_ms |= byte & 0x7F | (byte2 & 0x7F) << 7
                    at += 7
                else:
                    publish_time_ms, at = _scan_time(body, at + 1)
                if publish_time_ms >= 0:
                    if at == end:
                        return Peek(body, publish_time_ms)
                    rest = _rests.get(body[at:end])
                    if rest is not None:
                        return Peek(body, publish_time_ms, None, None, 0, *rest)
                    found = _scan_rest(body, publish_time_ms, at, end)
                    if found is not None:
                        return found
    # A scanner that runs off the end has met something unusual. Protobuf says whether it is also wrong.
    except (IndexError, struct.error):
        pass
    return _parse(body, *metadata_range(body))


def _peek_virtual(body: bytes) -> Peek:
    """Message time counts from the broker's stamp: clients keep their own clock, which no jump moves, so of
    their times only the delay means something. A delivery time may be of the broker's clock, too, which an
    application was told: that shows if the two clocks are far apart.
    """
    time_at = len(USUAL_STAMP)
    # With a usual stamp, which is the form that is read fast. The time's place is known: protobuf took as
    # long for it as half of the client's metadata take.
    client = peek(USUAL_STAMP + body[time_at : time_at + 6] + body[VIRTUAL_STAMP_BYTES:])
    stamped_ms, _ = _scan_time(body, time_at)
    deliver_at_ms = client.deliver_at_ms
    if deliver_at_ms:
        ahead_ms = stamped_ms - client.publish_time_ms
        if ahead_ms < FAR_AHEAD_MS or deliver_at_ms < stamped_ms - NEARLY_BROKERS_MS:
            # At least 1, as 0 says that there is no time.
            deliver_at_ms = max(1, min(deliver_at_ms + ahead_ms, _INT64_MAX))
    return msgspec.structs.replace(client, body=body, publish_time_ms=stamped_ms, deliver_at_ms=deliver_at_ms)


def peek_or_none(body: bytes) -> Peek | None:
    """As `peek`; None for metadata that cannot be read."""
    try:
        return peek(body)
    except ProtocolError:
        return None


def _scan_time(body: bytes, at: int) -> tuple[int, int]:
    """A varint that is probably a time in milliseconds; as `scan_varint`, and faster for recent times."""
    upper = _times.get(body[at + 2 : at + 6])
    if upper is not None and (byte := body[at]) & (byte2 := body[at + 1]) & 0x80:
        return upper | byte & 0x7F | (byte2 & 0x7F) << 7, at + 6
    end = at + 6
    # Filled up where the body ends before: `end` is beyond it then, and no caller takes such a value.
    byte, byte2, byte3, byte4, byte5, byte6 = body[at:end].ljust(6)
    if byte & byte2 & byte3 & byte4 & byte5 & 0x80 and byte6 < 0x80:
        # Written out: each delivery time has upper bytes of its own, where they are spread over months.
        upper = (byte3 & 0x7F) << 14 | (byte4 & 0x7F) << 21 | (byte5 & 0x7F) << 28 | byte6 << 35
        if len(_times) >= _TIMES_MAX:
            _times.clear()
        _times[body[at + 2 : end]] = upper
        return upper | (byte2 & 0x7F) << 7 | byte & 0x7F, end
    return scan_varint(body, at)


def _scan_rest(body: bytes, publish_time_ms: int, at: int, end: int) -> Peek | None:
    """Metadata with optional fields, which begin at `at`, in any order; None for an unusual shape.

    Skipped fields are not checked. May read bytes after `end`, but never accepts a value that depends on
    them.
    """
    begin = at
    # Collected in local names and passed by position, since most entries have only these fields: a dictionary
    # passed by keywords made the peek of a batch a quarter slower.
    partition_key = ordering_key = None
    others: dict[str, Any] | None = None
    deliver_at_ms = compression = uncompressed_bytes = 0
    num_messages, is_batch = 1, False
    # Tags are compared as single bytes: the usual fields have numbers below 16, whose tag takes one.
    while at < end:
        tag = body[at]
        at += 1
        if tag >= 0x80:
            # a number from 16 to 31: the second byte of such a tag is 1
            if body[at] != 1:
                return None
            at += 1
            # First among the long tags, because a topic of delayed messages has it in each of them.
            if tag == _DELIVER_AT_TIME:
                deliver_at_ms, at = _scan_time(body, at)
                if deliver_at_ms < 0:
                    return None
                continue
        value = body[at]
        at += 1
        if value >= 0x80:
            byte = body[at]
            if byte < 0x80:
                value = value & 0x7F | byte << 7
                at += 1
            else:
                # A long number here is mostly the event time, which shares its upper bytes with the times
                # before it.
                value, at = _scan_time(body, at - 1)
                if value < 0:
                    return None
        # Its presence and not its value says that the payload is in the batch format: a batch of one has it,
        # too.
        if tag == _NUM_MESSAGES_IN_BATCH:
            if value > _INT32_MAX:
                return None
            num_messages, is_batch = value, True
        elif tag & 7 == _LENGTH:
            at += value
            if tag == _PARTITION_KEY:
                partition_key = body[at - value : at]
            elif tag == _ORDERING_KEY:
                ordering_key = body[at - value : at]
            elif tag not in _SKIPPED:
                return None
        # Values beyond their type are left to protobuf, which says whether they are an error.
        elif tag == _UNCOMPRESSED_SIZE and value <= _UINT32_MAX:
            uncompressed_bytes = value
        elif tag == _COMPRESSION and value <= _COMPRESSION_MAX:
            compression = value
        elif (number := _NUMBERS.get(tag)) is not None:
            name, value_max = number
            if value > value_max:
                return None
            others = others or {}
            others[name] = value
        elif value <= 1 and (flag := _FLAGS.get(tag)) is not None:
            others = others or {}
            others[flag] = value == 1
        elif tag not in _SKIPPED_NUMBERS:
            return None
    if at != end:
        return None
    found = Peek(
        body,
        publish_time_ms,
        partition_key,
        ordering_key,
        deliver_at_ms,
        num_messages,
        is_batch,
        compression,
        uncompressed_bytes,
    )
    if others is not None:
        return msgspec.structs.replace(found, **others)
    if end - begin <= _REST_BYTES_MAX and not deliver_at_ms and partition_key is None is ordering_key:
        if len(_rests) >= _RESTS_MAX:
            _rests.clear()
        _rests[body[begin:end]] = num_messages, is_batch, compression, uncompressed_bytes
    return found


def _parse(body: bytes, at: int, end: int) -> Peek:
    """Any metadata, by protobuf."""
    metadata = parse_metadata(body, at, end)
    for required in _REQUIRED:
        if not metadata.HasField(required):
            raise ProtocolError(f"metadata without {required}")
    found: dict[str, Any] = {
        name: raw_text(value) if isinstance(value, str | bytes) else value
        for field, value in metadata.ListFields()
        if (name := _NAMES.get(field.number)) is not None
    }
    # The fields are unsigned on the wire, while Java clients read and write longs.
    found["event_time_ms"] = signed(metadata.event_time)
    found["highest_sequence_id"] = signed(metadata.highest_sequence_id)
    found["is_batch"] = metadata.HasField("num_messages_in_batch")
    return Peek(body, signed(metadata.publish_time), **found)


_LENGTH = 2
_FIELD_NUMBERS = {field.name: field.number for field in pb.MessageMetadata.DESCRIPTOR.fields}
_REQUIRED: tuple[Literal["producer_name", "sequence_id", "publish_time"], ...] = (
    "producer_name",
    "sequence_id",
    "publish_time",
)


def _number(name: str) -> int:
    return _FIELD_NUMBERS[name] << 3


def _text(name: str) -> int:
    return _FIELD_NUMBERS[name] << 3 | _LENGTH


_PARTITION_KEY = _text("partition_key")
_ORDERING_KEY = _text("ordering_key")
_COMPRESSION = _number("compression")
_COMPRESSION_MAX = max(pb.CompressionType.values())
_UNCOMPRESSED_SIZE = _number("uncompressed_size")
_NUMBERS = {
    _number("event_time"): ("event_time_ms", _INT64_MAX),
    _number("marker_type"): ("marker_type", _INT32_MAX),
    _number("txnid_least_bits"): ("txnid_least_bits", _INT64_MAX),
    _number("txnid_most_bits"): ("txnid_most_bits", _INT64_MAX),
    _number("highest_sequence_id"): ("highest_sequence_id", _INT64_MAX),
    _number("num_chunks_from_msg"): ("num_chunks", _INT32_MAX),
    _number("chunk_id"): ("chunk_id", _INT32_MAX),
}
_FLAGS = {
    _number("partition_key_b64_encoded"): "partition_key_b64",
    _number("null_value"): "null_value",
}
_NUM_MESSAGES_IN_BATCH = _number("num_messages_in_batch")
_DELIVER_AT_TIME = _number("deliver_at_time")
_SKIPPED = frozenset(
    _text(name)
    for name in (
        "properties",
        "replicated_from",
        "replicate_to",
        "encryption_keys",
        "encryption_algo",
        "encryption_param",
        "schema_version",
        "uuid",
    )
)
_SKIPPED_NUMBERS = frozenset(_number(name) for name in ("total_chunk_msg_size", "null_partition_key"))
_NAMES: dict[int, str] = {
    **{tag >> 3: name for tag, name in _FLAGS.items()},
    **{tag >> 3: name for tag, (name, _) in _NUMBERS.items()},
    _PARTITION_KEY >> 3: "partition_key_utf8",
    _ORDERING_KEY >> 3: "ordering_key",
    _COMPRESSION >> 3: "compression",
    _UNCOMPRESSED_SIZE >> 3: "uncompressed_bytes",
    _DELIVER_AT_TIME >> 3: "deliver_at_ms",
    _NUM_MESSAGES_IN_BATCH >> 3: "num_messages_in_batch",
}
