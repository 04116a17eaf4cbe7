"""Finds the next valid record if no footer says where records begin."""

from __future__ import annotations

from typing import Final

import numpy as np

from geminga.bookie.records.records import RECORD_CRC, RECORD_HEAD, RECORD_PREFIX_BYTES, crc32c
from geminga.limits import ENTRY_BYTES_MAX
from geminga.storage.disk import File

WINDOW_BYTES: Final = 8 << 20


def find_record(file: File, begin: int, end: int) -> int | None:
    """The offset of the first whole record at or after `begin` that ends at or before `end`.

    Looks at every byte: lengths are below 16 MiB and ledger and entry ids below 2**32, so that four zeros
    stand where a record's upper bytes are; the checksum then tells for sure.
    """
    while begin + RECORD_PREFIX_BYTES <= end:
        window = file.pread(begin, min(WINDOW_BYTES + RECORD_PREFIX_BYTES, end - begin))
        if len(window) < RECORD_PREFIX_BYTES:
            return None
        for at in _candidates(window):
            if _is_record(file, begin + at, end, window, at):
                return begin + at
        begin += len(window) - RECORD_PREFIX_BYTES + 1
    return None


def _candidates(window: bytes) -> list[int]:
    data = np.frombuffer(window, np.uint8)
    count = len(data) - RECORD_PREFIX_BYTES + 1
    likely = data[:count] == 0
    for offset in (4, 5, 6, 7, 12, 13, 14, 15):
        likely &= data[offset : offset + count] == 0
    found: list[int] = np.flatnonzero(likely).tolist()
    return found


def _is_record(file: File, offset: int, end: int, window: bytes, at: int) -> bool:
    head = window[at : at + RECORD_HEAD.size]
    length = RECORD_HEAD.unpack(head)[0]
    if length > ENTRY_BYTES_MAX or offset + RECORD_PREFIX_BYTES + length > end:
        return False
    body = window[at + RECORD_PREFIX_BYTES : at + RECORD_PREFIX_BYTES + length]
    if len(body) < length:
        body = file.pread(offset + RECORD_PREFIX_BYTES, length)
    expected: int = RECORD_CRC.unpack_from(window, at + RECORD_HEAD.size)[0]
    return len(body) == length and crc32c(body, crc32c(head)) == expected
