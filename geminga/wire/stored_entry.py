"""Offsets in a stored entry; message_metadata.py describes its layout."""

from __future__ import annotations

import struct

from google.protobuf.message import DecodeError

from geminga.errors import ProtocolError
from geminga.wire import pulsar_pb2 as pb

STAMP_MAGIC = b"\x0e\x02"
# Compared as bytes on the path of every message: parsing the stamp's length would cost more than the rest.
USUAL_STAMP = b"\x0e\x02\x00\x00\x00\x07\x08"
"""A stamp with only the time, which takes six bytes from 2004 to 2109."""
_USUAL_STAMP_BYTES = 13
VIRTUAL_MARK = b"\xa0\x06\x01"
"""Field 100 of BrokerEntryMetadata, which Pulsar does not have: 1 if the stamp is of a virtual clock. Clients
skip a field that they do not know.
"""
VIRTUAL_STAMP_BYTES = _USUAL_STAMP_BYTES + len(VIRTUAL_MARK)
_VIRTUAL_HEAD = b"\x0e\x02\x00\x00\x00\x0a\x08"
CHECKSUM_MAGIC = b"\x0e\x01"
_USUAL_HEAD = struct.Struct(">7s6x2s4xI")
"""Stamp, checksum, metadata size."""
_USUAL_HEAD_BYTES = _USUAL_HEAD.size
_unpack_usual = _USUAL_HEAD.unpack_from
_DELIVER_AT_TAG = b"\x98\x01"
"""Field 19 of MessageMetadata, a varint."""


def stamp_bytes(body: bytes) -> int:
    """The length of the stamp before a stored entry; 0 if there is none. Raises `ProtocolError` if the stamp
    exceeds the entry.
    """
    if body.startswith(USUAL_STAMP):
        return _USUAL_STAMP_BYTES
    if not body.startswith(STAMP_MAGIC):
        return 0
    end = 6 + int.from_bytes(body[2:6], "big")
    if end > len(body):
        raise ProtocolError(f"a stamp of {end} bytes before an entry of {len(body)}")
    return end


def is_virtual(body: bytes) -> bool:
    """Whether the entry's stamp is of a virtual clock, so that its times count from the stamp."""
    # The time of such a stamp always takes six bytes: `virtual_stamp` makes no other.
    return body.startswith(_VIRTUAL_HEAD) and body.startswith(VIRTUAL_MARK, _USUAL_STAMP_BYTES)


def metadata_range(body: bytes) -> tuple[int, int]:
    """Where the metadata begins and ends. Raises `ProtocolError` if it is incomplete."""
    at = stamp_bytes(body)
    if body.startswith(CHECKSUM_MAGIC, at):
        at += 6
    if len(body) < at + 4:
        raise ProtocolError(f"no metadata in an entry of {len(body)} bytes")
    end = at + 4 + int.from_bytes(body[at : at + 4], "big")
    if end > len(body):
        raise ProtocolError(f"metadata up to byte {end} in an entry of {len(body)}")
    return at + 4, end


def may_be_delayed(body: bytes) -> bool:
    """False if the entry surely has no delivery time. Costs a fraction of `peek`; called for each message of
    a topic whose delayed index is fed while publishing.
    """
    try:
        prefix, magic, size = _unpack_usual(body)
        if prefix == USUAL_STAMP and magic == CHECKSUM_MAGIC:
            end = _USUAL_HEAD_BYTES + size
            return end <= len(body) and body.find(_DELIVER_AT_TAG, _USUAL_HEAD_BYTES, end) >= 0
    except struct.error:
        pass  # too short for that
    try:
        at, end = metadata_range(body)
    except ProtocolError:
        return False
    # The two bytes may occur by chance in a key or a property: then `peek` is asked, and only time is lost.
    return body.find(_DELIVER_AT_TAG, at, end) >= 0


def parse_metadata(body: bytes, at: int, end: int) -> pb.MessageMetadata:
    """All of the metadata, by protobuf; required fields may be missing. Raises `ProtocolError`."""
    metadata = pb.MessageMetadata()
    try:
        metadata.ParseFromString(body[at:end])
    except DecodeError as error:
        raise ProtocolError(f"not metadata: {error}") from error
    return metadata


def raw_text(text: str | bytes) -> bytes:
    """A text of protobuf, which returns invalid UTF-8 as bytes."""
    return text.encode() if isinstance(text, str) else text
