"""The wire's `ack_set` as one number: bit i is set while message i of a batch is not acknowledged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

WORD_BITS: Final = 64
_WORD_MASK: Final = 2**WORD_BITS - 1


def bits_of(words: Sequence[int]) -> int:
    """One number from the wire's 64-bit words, the lowest first; they come signed or unsigned."""
    bits = 0
    for i, word in enumerate(words):
        bits |= (word & _WORD_MASK) << (WORD_BITS * i)
    return bits


def words_of(bits: int) -> list[int]:
    """The wire's signed 64-bit words, without empty ones at the end."""
    words = []
    while bits:
        word = bits & _WORD_MASK
        words.append(word - 2**WORD_BITS if word >> (WORD_BITS - 1) else word)
        bits >>= WORD_BITS
    return words
