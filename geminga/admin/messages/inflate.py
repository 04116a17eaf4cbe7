"""A payload inflated as its producer compressed it: LZ4 block, zlib stream, Zstandard frame, Snappy block.

The broker never inflates on its way from producers to consumers; only the admin API, which shows a message,
needs it. LZ4 and Snappy are decoded in slices; zlib and Zstandard (of the system's libzstd, if it has one)
work in a thread without the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import functools
import zlib
from collections.abc import Callable
from typing import Final, NamedTuple

import trio

from geminga.broker.flow.slices import in_slices
from geminga.errors import PeerError
from geminga.limits import MIB
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.blocks import BadBlock, lz4_block, snappy_block

INFLATED_BYTES_MAX: Final = 64 * MIB
"""What one entry may inflate to, whatever it says."""


class BadPayload(PeerError):
    """The payload is not what its metadata say; no client could read it either."""

    http_status = 422


class NoDecoder(PeerError):
    http_status = 501


class _Zstd(NamedTuple):
    decompress: Callable[..., int]
    is_error: Callable[[int], int]


async def inflated(compression: int, payload: bytes, size_bytes: int) -> bytes | bytearray:
    """`size_bytes` as the metadata say. Raises `BadPayload`, `NoDecoder`."""
    if compression == pb.NONE:
        return payload
    check_size(size_bytes)
    try:
        if compression == pb.ZLIB:
            found: bytes | bytearray = await trio.to_thread.run_sync(_zlib, payload, size_bytes)
        elif compression == pb.ZSTD:
            found = await trio.to_thread.run_sync(_zstd, payload, size_bytes)
        elif compression == pb.LZ4:
            found = await in_slices(lz4_block(payload, size_bytes))
        elif compression == pb.SNAPPY:
            found = await in_slices(snappy_block(payload, size_bytes))
        else:
            raise NoDecoder(f"the message is compressed in a way that is not known here ({compression})")
    except (IndexError, BadBlock, zlib.error) as error:
        raise BadPayload(f"the message cannot be inflated: {error}") from None
    if len(found) != size_bytes:
        raise BadPayload(f"the message has {len(found)} bytes once inflated, not {size_bytes}")
    return found


def check_size(size_bytes: int) -> None:
    """Raises `BadPayload` for more than is ever inflated."""
    if not 0 <= size_bytes <= INFLATED_BYTES_MAX:
        raise BadPayload(f"the message says that it is {size_bytes} bytes long once inflated")


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


def _zstd(payload: bytes, size_bytes: int) -> bytearray:
    library = _libzstd()
    if library is None:
        raise NoDecoder("the message is compressed with Zstandard, and this host has no libzstd.so.1")
    found = bytearray(max(1, size_bytes))
    room = (ctypes.c_char * len(found)).from_buffer(found)
    size = library.decompress(room, size_bytes, payload, len(payload))
    del room
    if library.is_error(size):
        raise BadPayload("the message cannot be inflated: no Zstandard frame of that size")
    del found[size:]
    return found
