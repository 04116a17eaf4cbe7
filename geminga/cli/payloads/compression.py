"""The compressions of Pulsar's clients. ZSTD, and packing with any but zlib, need a library that has it."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from typing import Any

from geminga.cli.payloads.errors import CannotDecode, CannotEncode
from geminga.wire.blocks import lz4_block, snappy_block, whole

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
        found = unpack(payload, size_bytes)
    except (IndexError, ValueError, zlib.error) as error:
        raise CannotDecode(f"not a {kind} payload of {size_bytes} bytes: {error}") from None
    if len(found) != size_bytes:
        is_more = len(found) > size_bytes
        raise CannotDecode(
            f"not a {kind} payload of {size_bytes} bytes: {'more' if is_more else 'fewer'} bytes than it says"
        )
    return found


def _zlib(payload: bytes, size_bytes: int) -> bytes:
    return zlib.decompressobj().decompress(payload, size_bytes + 1)


def _lz4(payload: bytes, size_bytes: int) -> bytes:
    return bytes(whole(lz4_block(payload, size_bytes)))


def _snappy(payload: bytes, size_bytes: int) -> bytes:
    return bytes(whole(snappy_block(payload, size_bytes)))


def _zstd(payload: bytes, size_bytes: int) -> bytes:
    for name in ("compression.zstd", "zstandard", "pyarrow"):
        try:
            module: Any = importlib.import_module(name)
        except ImportError:
            continue
        try:
            if name == "compression.zstd":
                unpacked: bytes = module.ZstdDecompressor().decompress(payload, size_bytes + 1)
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
