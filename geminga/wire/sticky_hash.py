"""The key by which a Key_Shared subscription chooses a consumer, and its hash.

The hash is Murmur3, 32 bits, seed 0, without its sign bit; clients also use it to choose partitions. If the
broker divides the ranges (AUTO_SPLIT, consistent hashing), the slots are 1 to 65,535. If consumers name
their ranges (STICKY), the slots are 0 to 65,535, but 0 is not used: such keys share slot 1.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from geminga.wire.commands import signed
from geminga.wire.peek import Peek
from geminga.wire.stored_entry import raw_text

_CACHED_KEY_BYTES_MAX = 128
# Bounded: keys are chosen by clients and may all differ.
_CACHED_KEYS_MAX = 16_384
_NO_KEY = b"NONE_KEY"
_RANGE = 65_536
_C1 = 0xCC9E2D51
_C2 = 0x1B873593


def sticky_hash(key: bytes) -> int:
    """In [0, 2^31). Short keys come from a bounded cache; a new one costs about 0.3 us per four bytes."""
    return _cached(key) if len(key) <= _CACHED_KEY_BYTES_MAX else _murmur3(key)


def _murmur3(key: bytes) -> int:
    length = len(key)
    whole = length & ~3
    h = 0
    for (k,) in struct.iter_unpack("<I", memoryview(key)[:whole]):
        k = k * _C1 & 0xFFFFFFFF
        h ^= (k << 15 | k >> 17) * _C2 & 0xFFFFFFFF
        h = (h << 13 | h >> 19) * 5 + 0xE6546B64 & 0xFFFFFFFF
    if whole != length:
        k = int.from_bytes(key[whole:], "little") * _C1 & 0xFFFFFFFF
        h ^= (k << 15 | k >> 17) * _C2 & 0xFFFFFFFF
    h ^= length
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    # Without its sign bit, as Pulsar's Murmur3_32Hash: the same key has to meet the same consumer after a
    # move from there.
    return (h ^ h >> 16) & 0x7FFFFFFF


_cached = lru_cache(maxsize=_CACHED_KEYS_MAX)(_murmur3)


def sticky_key(peek: Peek) -> bytes:
    """The ordering key, else the partition key, else producer name and sequence id: a key of its own."""
    if peek.ordering_key is not None:
        return peek.ordering_key
    if peek.partition_key_utf8 is None:
        # As in Pulsar: without a key each message has one of its own, so that they spread over the consumers.
        metadata = peek.metadata
        return b"%b-%d" % (raw_text(metadata.producer_name), signed(metadata.sequence_id))
    key = peek.partition_key
    return _NO_KEY if key is None else key


def sticky_key_hash(peek: Peek) -> int:
    """The entry's slot in [1, 65535] if the broker divides the ranges (AUTO_SPLIT)."""
    return sticky_hash(sticky_key(peek)) % (_RANGE - 1) + 1


def sticky_range_hash(peek: Peek) -> int:
    """The entry's slot in [1, 65535] if consumers name their ranges (STICKY)."""
    return sticky_hash(sticky_key(peek)) % _RANGE or 1
