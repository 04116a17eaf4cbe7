"""The four compressions of Pulsar's clients. LZ4 and SNAPPY are unpacked here, as the standard library has
neither; ZSTD, and packing with any but zlib, needs a library that has it.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from typing import Any

from geminga.cli.payloads.errors import CannotDecode, CannotEncode

INFLATED_BYTES_MAX = 64 * 1024 * 1024
COMPRESSIONS = ("none", "zlib", "lz4", "zstd", "snappy")


def inflated(kind: str, payload: bytes, size_bytes: int) -> bytes:
    """The payload unpacked; `size_bytes` as its metadata has it. Raises `CannotDecode`."""
    if kind == "NONE":
        return payload
    if size_bytes > INFLATED_BYTES_MAX:
        raise CannotDecode(f"{size_bytes} bytes when unpacked; at most {INFLATED_BYTES_MAX} are")
    unpack = _UNPACK.get(kind)
    if unpack is None:
        raise CannotDecode(f"compressed with {kind}, which is unknown here")
    try:
        return unpack(payload, size_bytes)
    except (IndexError, ValueError, zlib.error) as error:
        raise CannotDecode(f"not a {kind} payload of {size_bytes} bytes: {error}") from None


def _zlib(payload: bytes, size_bytes: int) -> bytes:
    return zlib.decompressobj().decompress(payload, INFLATED_BYTES_MAX)


def _lz4(payload: bytes, size_bytes: int) -> bytes:
    """An LZ4 block: runs of literals, each followed by a copy of what is there already."""
    out = bytearray()
    at, end = 0, len(payload)
    while at < end:
        token = payload[at]
        at += 1
        length, at = _lz4_length(payload, at, token >> 4)
        out += _slice(payload, at, length)
        at += length
        if at >= end:
            break
        distance = int.from_bytes(_slice(payload, at, 2), "little")
        length, at = _lz4_length(payload, at + 2, token & 15)
        _copy(out, distance, length + 4, size_bytes)
    return bytes(out)


def _lz4_length(payload: bytes, at: int, nibble: int) -> tuple[int, int]:
    if nibble == 15:
        while (more := payload[at]) == 255:
            nibble += 255
            at += 1
        nibble += more
        at += 1
    return nibble, at


def _snappy(payload: bytes, size_bytes: int) -> bytes:
    """Snappy's raw format: a size, then literals and copies of what is there already."""
    at = shift = size = 0
    while True:
        byte = payload[at]
        at += 1
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if size > INFLATED_BYTES_MAX:
        raise ValueError(f"it says {size} bytes")
    out = bytearray()
    while at < len(payload):
        tag = payload[at]
        at += 1
        kind = tag & 3
        if kind == 0:
            length = tag >> 2
            if length >= 60:
                extra = length - 59
                length = int.from_bytes(_slice(payload, at, extra), "little")
                at += extra
            length += 1
            out += _slice(payload, at, length)
            at += length
            continue
        extra = (0, 1, 2, 4)[kind]
        distance = int.from_bytes(_slice(payload, at, extra), "little")
        at += extra
        if kind == 1:
            distance |= (tag >> 5) << 8
            _copy(out, distance, ((tag >> 2) & 7) + 4, size)
        else:
            _copy(out, distance, (tag >> 2) + 1, size)
    if len(out) != size:
        raise ValueError(f"{len(out)} bytes unpacked, it says {size}")
    return bytes(out)


def _slice(payload: bytes, at: int, length: int) -> bytes:
    found = payload[at : at + length]
    if len(found) != length:
        raise ValueError("it ends too early")
    return found


def _copy(out: bytearray, distance: int, length: int, size_max: int) -> None:
    if not 0 < distance <= len(out):
        raise ValueError("it refers to bytes before its start")
    if len(out) + length > size_max:
        raise ValueError("more bytes than it says")
    start = len(out) - distance
    if distance >= length:
        out += out[start : start + length]
        return
    pattern = bytes(out[start:])
    out += (pattern * (length // distance + 1))[:length]


def _zstd(payload: bytes, size_bytes: int) -> bytes:
    for name in ("compression.zstd", "zstandard", "pyarrow"):
        try:
            module: Any = importlib.import_module(name)
        except ImportError:
            continue
        try:
            if name == "compression.zstd":
                unpacked: bytes = module.ZstdDecompressor().decompress(payload, INFLATED_BYTES_MAX)
            elif name == "zstandard":
                unpacked = module.ZstdDecompressor().decompress(payload, max_output_size=size_bytes)
            else:
                unpacked = module.Codec("zstd").decompress(payload, size_bytes, asbytes=True)
        except Exception as error:
            raise ValueError(str(error).partition("\n")[0]) from None
        return bytes(unpacked)
    raise CannotDecode("compressed with ZSTD; 'pip install zstandard' lets this command unpack it")


_UNPACK: dict[str, Callable[[bytes, int], bytes]] = {
    "ZLIB": _zlib,
    "LZ4": _lz4,
    "SNAPPY": _snappy,
    "ZSTD": _zstd,
}


def deflated(kind: str, payload: bytes) -> bytes:
    """The payload packed; `kind` one of `COMPRESSIONS`. Raises `CannotEncode`."""
    if kind == "none":
        return payload
    if kind == "zlib":
        return zlib.compress(payload)
    try:
        module: Any = importlib.import_module("pyarrow")
    except ImportError:
        raise CannotEncode(f"{kind} needs pyarrow ('pip install pyarrow'); zlib needs nothing") from None
    codec = module.Codec("lz4_raw" if kind == "lz4" else kind)
    return bytes(codec.compress(payload, asbytes=True))
