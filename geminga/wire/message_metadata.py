"""What the broker wants to know about a stored entry, and the stamp that it puts in front of one.

stored entry := [0x0e02 u16 | size u32 | BrokerEntryMetadata]                        the broker's stamp
                [0x0e01 u16 | CRC-32C u32] | size u32 | MessageMetadata | payload    as the client sent it

The payload stays opaque, whether one message or a batch, compressed or encrypted. Like the hot commands, the
metadata's usual shape is read here without protobuf; docs/formats/wire.md says what falls back.
"""

from __future__ import annotations

import struct
from typing import Literal

from google.protobuf.message import DecodeError

from geminga.errors import ProtocolError
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import signed
from geminga.wire.peek import Peek
from geminga.wire.sticky_hash import sticky_hash, sticky_key, sticky_key_hash, sticky_range_hash
from geminga.wire.varint import scan_varint, varint

__all__ = [
    "Peek",
    "broker_timestamp_ms",
    "peek",
    "stamp",
    "stamp_bytes",
    "sticky_hash",
    "sticky_key",
    "sticky_key_hash",
    "sticky_range_hash",
    "strip",
]

_STAMP_MAGIC = b"\x0e\x02"
_USUAL_STAMP = b"\x0e\x02\x00\x00\x00\x07\x08"
"""A stamp of nothing but the time, which takes six bytes from 2004 to 2109."""
_USUAL_STAMP_BYTES = 13
_HEAD = struct.Struct(">HII")
_CHECKSUM_MAGIC = 0x0E01
_INT32_MAX = 2**31 - 1
_UINT32_MAX = 2**32 - 1
_INT64_MAX = 2**63 - 1

_TIMES_MAX = 1024
_times: dict[bytes, int] = {}
"""The upper four of a timestamp's six varint bytes -> their share of it. They change every 16 seconds."""


def stamp(broker_timestamp_ms: int, index: int | None = None) -> bytes:
    """What to put in front of an entry: when the broker got it and, if given, its running number."""
    body = b"\x08" + varint(broker_timestamp_ms)
    if index is not None:
        body += b"\x10" + varint(index)
    return _STAMP_MAGIC + len(body).to_bytes(4, "big") + body


def stamp_bytes(body: bytes) -> int:
    """How long the stamp in front of a stored entry is; 0: there is none. `ProtocolError`: longer than it."""
    if body.startswith(_USUAL_STAMP):
        return _USUAL_STAMP_BYTES
    if not body.startswith(_STAMP_MAGIC):
        return 0
    end = 6 + int.from_bytes(body[2:6], "big")
    if end > len(body):
        raise ProtocolError(f"a stamp of {end} bytes before an entry of {len(body)}")
    return end


def strip(body: bytes) -> bytes:
    """The entry as the client sent it."""
    skip = stamp_bytes(body)
    return body[skip:] if skip else body


def broker_timestamp_ms(body: bytes) -> int | None:
    """When the broker got the entry, by its stamp; None without one."""
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
    at = stamp_bytes(body)
    try:
        magic, _, size = _HEAD.unpack_from(body, at)
        at += 10
        if magic != _CHECKSUM_MAGIC:
            at -= 6
            size = int.from_bytes(body[at - 4 : at], "big")
    except struct.error:
        size = int.from_bytes(body[at : at + 4], "big") if len(body) - at >= 4 else -1
        at += 4
    end = at + size
    if not at <= end <= len(body):
        raise ProtocolError(f"metadata of {size} bytes in an entry of {len(body)}")
    try:
        found = _scan(body, at, end)
    except IndexError:
        found = None
    return _parse(body, at, end) if found is None else found


def _scan(body: bytes, at: int, end: int) -> Peek | None:
    """The usual metadata: the three required fields first, then others in any order; else None.

    May look at bytes after `end`, but never accepts what they would change.
    """
    name_end = at + 2 + body[at + 1]
    if body[at] != 0x0A or body[at + 1] >= 0x80 or body[name_end] != 0x10:
        return None
    name = body[at + 2 : name_end]
    at = name_end + 1
    sequence_id = body[at]
    at += 1
    if sequence_id >= 0x80:
        byte = body[at]
        byte2 = body[at + 1]
        if byte < 0x80:
            sequence_id = sequence_id & 0x7F | byte << 7
            at += 1
        elif byte2 < 0x80:
            sequence_id = sequence_id & 0x7F | (byte & 0x7F) << 7 | byte2 << 14
            at += 2
        else:
            sequence_id, at = scan_varint(body, at - 1)
    if body[at] != 0x18 or sequence_id < 0:
        return None
    byte = body[at + 1]
    byte2 = body[at + 2]
    upper = _times.get(body[at + 3 : at + 7])
    if upper is not None and byte & byte2 & 0x80:
        publish_time_ms = upper | byte & 0x7F | (byte2 & 0x7F) << 7
        at += 7
    else:
        begin = at + 1
        publish_time_ms, at = scan_varint(body, begin)
        if publish_time_ms < 0:
            return None
        if at == begin + 6:
            _remember_time(body[begin + 2 : at], publish_time_ms)
    found = Peek(name, sequence_id, publish_time_ms, len(body))
    if at == end or (at < end and _scan_rest(found, body, at, end)):
        return found
    return None


def _remember_time(upper: bytes, time_ms: int) -> None:
    if len(_times) >= _TIMES_MAX:
        _times.clear()
    _times[upper] = time_ms & ~0x3FFF


def _scan_rest(found: Peek, body: bytes, at: int, end: int) -> bool:
    """The optional fields, in any order. What is skipped is not checked. False: something unusual."""
    while at < end:
        tag = body[at]
        at += 1
        if tag >= 0x80:
            # a number from 16 to 31: the second byte of such a tag is 1
            if body[at] != 1:
                return False
            at += 1
        value = body[at]
        at += 1
        if value >= 0x80:
            value, at = scan_varint(body, at - 1)
            if value < 0:
                return False
        if tag & 7 == _LENGTH:
            at += value
            name = _TEXTS.get(tag)
            if name is not None:
                setattr(found, name, body[at - value : at])
            elif tag == _ENCRYPTION_KEYS:
                found.is_encrypted = True
            elif tag not in _SKIPPED:
                return False
        elif tag == _NUM_MESSAGES_IN_BATCH:
            if value > _INT32_MAX:
                return False
            found.num_messages_in_batch = value
            found.is_batch = True
        elif (number := _NUMBERS.get(tag)) is not None:
            name, value_max = number
            if value > value_max:
                return False
            setattr(found, name, value)
        elif value <= 1 and (name := _FLAGS.get(tag)) is not None:
            setattr(found, name, value == 1)
        else:
            return False
    return at == end


def _parse(body: bytes, at: int, end: int) -> Peek:
    """Any metadata, by protobuf."""
    metadata = pb.MessageMetadata()
    try:
        metadata.ParseFromString(body[at:end])
    except DecodeError as error:
        raise ProtocolError(f"not metadata: {error}") from error
    for required in _REQUIRED:
        if not metadata.HasField(required):
            raise ProtocolError(f"metadata without {required}")
    found = Peek(
        _raw(metadata.producer_name), signed(metadata.sequence_id), signed(metadata.publish_time), len(body)
    )
    for field, value in metadata.ListFields():
        name = _NAMES.get(field.number)
        if name is not None:
            setattr(found, name, _raw(value) if isinstance(value, str | bytes) else value)
    found.event_time_ms = signed(found.event_time_ms)
    found.highest_sequence_id = signed(found.highest_sequence_id)
    found.is_batch = metadata.HasField("num_messages_in_batch")
    found.is_encrypted = len(metadata.encryption_keys) > 0
    return found


def _raw(text: str | bytes) -> bytes:
    """protobuf hands out text that is not UTF-8 as it came."""
    return text.encode() if isinstance(text, str) else text


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


_TEXTS = {
    _text("partition_key"): "partition_key_utf8",
    _text("ordering_key"): "ordering_key",
    _text("replicated_from"): "replicated_from",
}
_NUMBERS = {
    _number("compression"): ("compression", max(pb.CompressionType.values())),
    _number("uncompressed_size"): ("uncompressed_bytes", _UINT32_MAX),
    _number("event_time"): ("event_time_ms", _INT64_MAX),
    _number("deliver_at_time"): ("deliver_at_ms", _INT64_MAX),
    _number("marker_type"): ("marker_type", _INT32_MAX),
    _number("txnid_least_bits"): ("txnid_least_bits", _INT64_MAX),
    _number("txnid_most_bits"): ("txnid_most_bits", _INT64_MAX),
    _number("highest_sequence_id"): ("highest_sequence_id", _INT64_MAX),
    _number("num_chunks_from_msg"): ("num_chunks", _INT32_MAX),
    _number("total_chunk_msg_size"): ("total_chunk_bytes", _INT32_MAX),
    _number("chunk_id"): ("chunk_id", _INT32_MAX),
}
_FLAGS = {
    _number("partition_key_b64_encoded"): "partition_key_b64",
    _number("null_value"): "null_value",
    _number("null_partition_key"): "null_partition_key",
}
_NUM_MESSAGES_IN_BATCH = _number("num_messages_in_batch")
_ENCRYPTION_KEYS = _text("encryption_keys")
_SKIPPED = frozenset(
    _text(name)
    for name in (
        "properties",
        "replicate_to",
        "encryption_algo",
        "encryption_param",
        "schema_version",
        "uuid",
    )
)
_NAMES: dict[int, str] = {
    **{tag >> 3: name for tag, name in (_TEXTS | _FLAGS).items()},
    **{tag >> 3: name for tag, (name, _) in _NUMBERS.items()},
    _NUM_MESSAGES_IN_BATCH >> 3: "num_messages_in_batch",
}
