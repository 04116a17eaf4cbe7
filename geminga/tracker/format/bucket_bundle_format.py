"""Buckets on their way from their builder to a broker, or back: the entries of some, one by one.

    bundle := magic "GEMBUND\\0" | version u32 | buckets u32 | bucket * buckets | crc u32
    bucket := entries u32 | (length u32 | entry) * entries

All integers are little-endian; `crc` is CRC-32C over what comes before it. The entries are those of
`bucket_format.py`, whole or, where a damaged bucket is looked at, as far as they can be read: an entry that
cannot is empty.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from fastcrc.crc32 import iscsi

from geminga.errors import CorruptData
from geminga.limits import MIB

MAGIC: Final = b"GEMBUND\0"
VERSION: Final = 1
# It is the body of an HTTP request, and is in memory as a whole while its checksum is taken.
BUNDLE_BYTES_MAX: Final = 16 * MIB
"""What a broker takes at once: some sixty buckets of 100,000 messages with random delays."""
# Each bucket becomes a ledger with a metadata record: the bound keeps one request from filling the disk with
# them.
BUCKETS_MAX: Final = 1000
# Little-endian as buckets themselves: numpy reads their columns without turning bytes round.
_HEAD: Final = struct.Struct("<8sII")
_NUMBER: Final = struct.Struct("<I")
BUNDLE_MORE_BYTES: Final = _HEAD.size + _NUMBER.size


def bucket_bytes(entries: Sequence[bytes]) -> int:
    """What a bucket takes in a bundle; the bundle itself takes `BUNDLE_MORE_BYTES`."""
    return _NUMBER.size * (1 + len(entries)) + sum(map(len, entries))


def encode_bundle(buckets: Sequence[Sequence[bytes]]) -> bytes:
    parts = [_HEAD.pack(MAGIC, VERSION, len(buckets))]
    for entries in buckets:
        parts.append(_NUMBER.pack(len(entries)))
        for entry in entries:
            parts += (_NUMBER.pack(len(entry)), entry)
    whole = b"".join(parts)
    # A checksum of its own, although each entry has one: lengths and counts are outside the entries.
    return whole + _NUMBER.pack(iscsi(whole))


def decode_bundle(data: bytes) -> list[list[bytes]]:
    """The entries of each bucket; what is in them is not looked at. CorruptData."""
    try:
        magic, version, count = _HEAD.unpack_from(data)
        if magic != MAGIC or version != VERSION:
            raise CorruptData(f"not a bundle of buckets of version {VERSION}")
        end = len(data) - _NUMBER.size
        # Before any length is believed: a flipped bit in a count would otherwise make thousands of empty
        # buckets.
        if _NUMBER.unpack_from(data, end)[0] != iscsi(memoryview(data)[:end]):
            raise CorruptData("a bundle of buckets that does not match its checksum")
        at, buckets = _HEAD.size, []
        for _ in range(count):
            entries = []
            (number,) = _NUMBER.unpack_from(data, at)
            at += _NUMBER.size
            for _ in range(number):
                (length,) = _NUMBER.unpack_from(data, at)
                at += _NUMBER.size
                # A slice past the end would be cut without a word, and the entry fail its checksum much
                # later.
                if at + length > end:
                    raise CorruptData("an entry that is longer than the bundle of buckets")
                entries.append(data[at : at + length])
                at += length
            buckets.append(entries)
    # The bytes come from an HTTP request: whatever they are, the sender gets an error and the broker goes on.
    except struct.error:
        raise CorruptData("a bundle of buckets that was cut short") from None
    # Rest that no count covers means that writer and reader disagree about the format.
    if at != end:
        raise CorruptData(f"{end - at} bytes behind the last bucket of a bundle")
    return buckets
