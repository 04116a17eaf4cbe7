"""A payload inflated as its producer compressed it: LZ4 block, zlib stream, Zstandard frame, Snappy block.

The broker never inflates on its way from producers to consumers; only the admin API, which shows a message,
needs it. LZ4 and Snappy are decoded here, some hundred steps at a time; zlib and Zstandard (of the system's
libzstd, if it has one) work in a thread without the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import functools
import re
import zlib
from collections.abc import Callable, Generator
from typing import Final, NamedTuple

import trio

from geminga.broker.flow.slices import in_slices
from geminga.errors import PeerError
from geminga.limits import MIB
from geminga.wire import pulsar_pb2 as pb

INFLATED_BYTES_MAX: Final = 64 * MIB
"""What one entry may inflate to, whatever it says."""
STEPS_MAX: Final = 2000
"""Literals and copies between two yields: about a millisecond."""
_FULL_BYTES: Final = re.compile(b"\xff*")


class BadPayload(PeerError):
    """The payload is not what its metadata say; no client could read it either."""

    http_status = 422


class NoDecoder(PeerError):
    http_status = 501


class _Zstd(NamedTuple):
    decompress: Callable[..., int]
    is_error: Callable[[int], int]


async def inflated(compression: int, payload: bytes, size_bytes: int) -> bytes:
    """`size_bytes` as the metadata say. Raises `BadPayload`, `NoDecoder`."""
    if compression == pb.NONE:
        return payload
    if not 0 <= size_bytes <= INFLATED_BYTES_MAX:
        raise BadPayload(f"the message says that it is {size_bytes} bytes long once inflated")
    try:
        if compression == pb.ZLIB:
            found = await trio.to_thread.run_sync(_zlib, payload, size_bytes)
        elif compression == pb.ZSTD:
            found = await trio.to_thread.run_sync(_zstd, payload, size_bytes)
        elif compression == pb.LZ4:
            found = await in_slices(lz4_block(payload, size_bytes))
        elif compression == pb.SNAPPY:
            found = await in_slices(snappy_block(payload, size_bytes))
        else:
            raise NoDecoder(f"the message is compressed in a way that is not known here ({compression})")
    except (IndexError, zlib.error) as error:
        raise BadPayload(f"the message cannot be inflated: {error}") from None
    if len(found) != size_bytes:
        raise BadPayload(f"the message has {len(found)} bytes once inflated, not {size_bytes}")
    return found


def _zlib(payload: bytes, size_bytes: int) -> bytes:
    return zlib.decompressobj().decompress(payload, size_bytes + 1)


@functools.cache
def _libzstd() -> _Zstd | None:
    """The system's, loaded with the first message that needs it."""
    try:
        library = ctypes.CDLL("libzstd.so.1")
    except OSError:
        return None
    size, text, room = ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p
    return _Zstd(
        ctypes.CFUNCTYPE(size, room, size, text, size)(("ZSTD_decompress", library)),
        ctypes.CFUNCTYPE(ctypes.c_uint, size)(("ZSTD_isError", library)),
    )


def _zstd(payload: bytes, size_bytes: int) -> bytes:
    library = _libzstd()
    if library is None:
        raise NoDecoder("the message is compressed with Zstandard, and this host has no libzstd.so.1")
    room = ctypes.create_string_buffer(max(1, size_bytes))
    size = library.decompress(room, size_bytes, payload, len(payload))
    if library.is_error(size):
        raise BadPayload("the message cannot be inflated: no Zstandard frame of that size")
    return room.raw[:size]


def lz4_block(block: bytes, size_max: int) -> Generator[None, None, bytes]:
    """Returns what an LZ4 block holds; may stop behind `size_max`. Yields every `STEPS_MAX` sequences.

    Raises `BadPayload`, or IndexError for a block that ends too soon.
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
                raise BadPayload("the message cannot be inflated: its LZ4 block ends too soon")
            return bytes(found)
        offset = block[at] | block[at + 1] << 8
        length, at = _lz4_length(block, at + 2, token & 15)
        _copy(found, offset, min(length + 4, size_max + 1))
    return bytes(found)


def _lz4_length(block: bytes, at: int, length: int) -> tuple[int, int]:
    if length == 15:
        match = _FULL_BYTES.match(block, at)  # more bytes follow for as long as they are 255
        assert match is not None
        end = match.end()
        length += 255 * (end - at) + block[end]
        at = end + 1
    return length, at


def snappy_block(block: bytes, size_max: int) -> Generator[None, None, bytes]:
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
                raise BadPayload("the message cannot be inflated: its Snappy block ends too soon")
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
    return bytes(found)


def _copy(found: bytearray, offset: int, length: int) -> None:
    """Append `length` bytes from `offset` before the end; they may overlap what is appended."""
    if not 0 < offset <= len(found):
        raise BadPayload("the message cannot be inflated: it refers to what is not there")
    start = len(found) - offset
    if offset >= length:
        found += found[start : start + length]
    else:
        repeated = bytes(found[start:])
        found += (repeated * (length // offset + 1))[:length]
