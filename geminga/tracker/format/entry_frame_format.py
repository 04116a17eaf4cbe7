"""What every entry in a ledger of the delayed index begins with: what it is, and a checksum.

    entry := version u8 (1) | kind u8 | crc u32 | body

`crc` is CRC-32C over version, kind and body.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeVar

from fastcrc.crc32 import iscsi as crc32c

from geminga.errors import CorruptData

VERSION: Final = 1
SEGMENT, PIECE, OVERRIDES = 1, 2, 3
"""Kinds: a bucket's segment, a piece of its directory, changed due times."""
_HEAD: Final = struct.Struct("<BBI")

T = TypeVar("T")


def framed(kind: int, body: bytes) -> bytes:
    return _HEAD.pack(VERSION, kind, crc32c(bytes((VERSION, kind)) + body)) + body


def body_of(entry: bytes, kind: int) -> bytes:
    """ValueError, or struct.error, if it is not what `framed` has made of such a body."""
    version, found, crc = _HEAD.unpack_from(entry)
    body = entry[_HEAD.size :]
    if crc32c(bytes((version, found)) + body) != crc:
        raise ValueError("it does not match its checksum")
    if version != VERSION:
        raise ValueError(f"version {version}; this release reads version {VERSION}")
    if found != kind:
        raise ValueError(f"an entry of kind {found} where {kind} should be")
    return body


def checked(what: str, decode: Callable[[], T]) -> T:
    """What `decode` returns. CorruptData, naming `what`, for whatever bytes of another form make of it."""
    try:
        return decode()
    except (struct.error, ValueError, IndexError, OverflowError) as error:
        raise CorruptData(f"{what} does not follow its format: {error}") from error
