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
# The kind is under the checksum: an entry of the right bytes in the wrong place, such as a segment where the
# directory should be, must not be decoded as the other.
SEGMENT, PIECE, OVERRIDES = 1, 2, 3
"""Kinds: a bucket's segment, a piece of its directory, changed due times."""
_HEAD: Final = struct.Struct("<BBI")

T = TypeVar("T")


def framed(kind: int, body: bytes) -> bytes:
    return _HEAD.pack(VERSION, kind, crc32c(bytes((VERSION, kind)) + body)) + body


def body_of(entry: bytes, kind: int) -> bytes:
    """ValueError, or struct.error, if it is not what `framed` has made of such a body."""
    version, found, crc = _HEAD.unpack_from(entry)
    # The bookie checks its records too. This checksum accompanies the entry further: through bundles, copies
    # made by `geminga pipeline`, and ledgers that another program wrote.
    body = entry[_HEAD.size :]
    if crc32c(bytes((version, found)) + body) != crc:
        raise ValueError("it does not match its checksum")
    # After the checksum: a damaged version byte is reported as damage and not as a release that is too old.
    if version != VERSION:
        raise ValueError(f"version {version}; this release reads version {VERSION}")
    if found != kind:
        raise ValueError(f"an entry of kind {found} where {kind} should be")
    return body


def checked(what: str, decode: Callable[[], T]) -> T:
    """What `decode` returns. CorruptData, naming `what`, for whatever bytes of another form make of it."""
    try:
        return decode()
    # All that damaged bytes can raise becomes CorruptData, upon which the index reads the bucket's range of
    # the topic again. Any other exception is a bug and must not be taken for damage.
    except (struct.error, ValueError, IndexError, OverflowError) as error:
        raise CorruptData(f"{what} does not follow its format: {error}") from error
