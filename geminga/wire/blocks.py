"""LZ4 and Snappy blocks decoded: compressions of Pulsar's clients that the standard library lacks.

Pure, in Python, as generators that yield every `STEPS_MAX` steps, so that a loop has its turns meanwhile;
`whole` is for callers without one. What a block says is never trusted: nothing is read before its start, and
at most twice the bytes that the caller expects are made.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Final, TypeVar

STEPS_MAX: Final = 2000
"""Literals and copies between two yields: about a millisecond."""
_FULL_BYTES: Final = re.compile(b"\xff*")

T = TypeVar("T")


class BadBlock(ValueError):
    """The bytes are no such block."""


def whole(steps: Generator[object, None, T]) -> T:
    """What a decoder returns, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found


def lz4_block(block: bytes, size_max: int) -> Generator[None, None, bytearray]:
    """Returns what an LZ4 block holds; may stop behind `size_max`. Yields every `STEPS_MAX` sequences.

    Raises `BadBlock`, or IndexError for a block that ends too soon.
    """
    found = bytearray()
    at, steps = 0, 0
    while len(found) <= size_max:
        if (steps := steps + 1) % STEPS_MAX == 0:
            yield
        token = block[at]
        literals, at = _lz4_length(block, at + 1, token >> 4)
        found += block[at : at + literals]
        at += literals
        if at >= len(block):
            if at > len(block):
                raise BadBlock("its LZ4 block ends too soon")
            return found
        offset = block[at] | block[at + 1] << 8
        length, at = _lz4_length(block, at + 2, token & 15)
        _copy(found, offset, min(length + 4, size_max + 1))
    return found


def _lz4_length(block: bytes, at: int, length: int) -> tuple[int, int]:
    if length == 15:
        match = _FULL_BYTES.match(block, at)  # more bytes follow for as long as they are 255
        assert match is not None
        end = match.end()
        length += 255 * (end - at) + block[end]
        at = end + 1
    return length, at


def snappy_block(block: bytes, size_max: int) -> Generator[None, None, bytearray]:
    """As `lz4_block`, of a Snappy block."""
    at = 0
    while block[at] >= 0x80:  # the size, which the metadata say, too
        at += 1
    at += 1
    found = bytearray()
    steps = 0
    while at < len(block) and len(found) <= size_max:
        if (steps := steps + 1) % STEPS_MAX == 0:
            yield
        tag = block[at]
        kind, at = tag & 3, at + 1
        if kind == 0:
            length = (tag >> 2) + 1
            if length > 60:
                size = length - 60
                length = int.from_bytes(block[at : at + size], "little") + 1
                at += size
            if at + length > len(block):
                raise BadBlock("its Snappy block ends too soon")
            found += block[at : at + length]
            at += length
            continue
        if kind == 1:
            length, offset = (tag >> 2 & 7) + 4, (tag >> 5) << 8 | block[at]
            at += 1
        else:
            size = 2 if kind == 2 else 4
            length, offset = (tag >> 2) + 1, int.from_bytes(block[at : at + size], "little")
            at += size
        _copy(found, offset, length)
    return found


def _copy(found: bytearray, offset: int, length: int) -> None:
    """Append `length` bytes from `offset` before the end; they may overlap what is appended."""
    if not 0 < offset <= len(found):
        raise BadBlock("it refers to bytes before its start")
    start = len(found) - offset
    if offset >= length:
        found += found[start : start + length]
    else:
        repeated = bytes(found[start:])
        found += (repeated * (length // offset + 1))[:length]
