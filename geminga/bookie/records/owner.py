"""The directory that a file of the bookie belongs to, as indexes, entry logs and journals say it themselves.

A directory's cookie does not tell whose its files are: each may be copied, moved or mounted there alone.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from geminga.bookie.records.records import crc32c

_OWNER: Final = struct.Struct(">I32s")
_CRC: Final = struct.Struct(">I")
OWNER_BYTES: Final = _OWNER.size + _CRC.size
"""The length of an owner in the header of an entry log or journal."""
_UNKNOWN: Final = bytes(OWNER_BYTES)


class Owner(NamedTuple):
    """A directory as its cookie names it: by the instance's id, and by the directory's position in the list
    of ledger directories (for a journal: of journal directories), counted from 1.
    """

    instance_id: str
    position: int


# No new version of the headers: an older program ignores these bytes, and would take a journal of an unknown
# version for one with a damaged header.
def encode_owner_behind(head: bytes, owner: Owner | None) -> bytes:
    """The bytes that follow `head` in a header; zeros, as in files of an earlier version, if the owner is not
    known or its id is longer than 32 bytes.
    """
    instance_id = owner.instance_id.encode() if owner is not None else b""
    if owner is None or not 0 < len(instance_id) <= 32:
        return _UNKNOWN
    head += _OWNER.pack(owner.position, instance_id)
    return head[-_OWNER.size :] + _CRC.pack(crc32c(head))


def decode_owner_at(data: bytes, at: int) -> Owner | None:
    """The owner at this offset of a header; None if it is not known. Raises ValueError if it is damaged."""
    field = data[at : at + OWNER_BYTES]
    if not any(field):
        return None
    if len(field) < OWNER_BYTES or _CRC.unpack_from(field, _OWNER.size)[0] != crc32c(
        data[: at + _OWNER.size]
    ):
        raise ValueError("damaged")
    position, instance_id = _OWNER.unpack_from(field)
    return Owner(instance_id.rstrip(b"\0").decode(), position)
