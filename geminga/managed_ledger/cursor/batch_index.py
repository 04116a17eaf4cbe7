"""The wire's `ack_set` as one number: bit i is set while message i of a batch is not acknowledged."""

from __future__ import annotations

from collections.abc import Sequence
from struct import error, pack, unpack
from typing import Final

WORD_BITS: Final = 64
_WORD_BYTES: Final = 8
_WORD_MASK: Final = 2**WORD_BITS - 1

BATCH_MESSAGES_MAX: Final = 65_536
"""Messages of a batch that have a bit of their own. A batch that claims more counts as this many towards
permits, and is acknowledged as a whole only.
"""
ACK_SET_WORDS_MAX: Final = BATCH_MESSAGES_MAX // WORD_BITS


def bits_of(words: Sequence[int]) -> int:
    """One number from the wire's 64-bit words, the lowest first; they come signed or unsigned. O(words)."""
    if len(words) == 1:
        return words[0] & _WORD_MASK
    try:
        packed = pack(f"<{len(words)}q", *words)  # signed: as protobuf gives them
    except error:
        packed = pack(f"<{len(words)}Q", *[word & _WORD_MASK for word in words])
    return int.from_bytes(packed, "little")


def words_of(bits: int) -> list[int]:
    """The wire's signed 64-bit words, without empty ones at the end. O(words)."""
    count = -(-bits.bit_length() // WORD_BITS)
    return list(unpack(f"<{count}q", bits.to_bytes(count * _WORD_BYTES, "little")))
