"""Checks that each entry log is as long as the index expects, from sizes, headers, footers and trailers
alone.

A closed log ends with a trailer that has the offset of the footer, which proves that the log is whole. A log
without a trailer was being written when its process ended, or was truncated. The index names only synced
records. So a log that ends before the last record that a row names has lost the bytes behind its end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from geminga.bookie.entry_logs.entry_log_format import (
    HEADER_BYTES,
    TRAILER_BYTES,
    decode_header,
    decode_trailer,
    looks_like_trailer,
)
from geminga.bookie.index.ledger_index import LedgerIndex
from geminga.bookie.records.file_names import entry_log_path
from geminga.bookie.records.records import crc32c
from geminga.errors import StorageError
from geminga.storage.disk import Disk, File

# The start is budgeted. A footer of 1 MiB describes tens of thousands of rows; most logs have a few KiB.
FOOTER_BYTES_MAX: Final = 1 << 20
"""A start reads no more than this of a log's footer; the scrub checks the checksum of a longer one."""


class LogEnds(NamedTuple):
    lengths: dict[int, int]
    """The lengths of logs that are shorter than the index expects; 0 for missing logs."""
    remarks: list[str]
    """Damage to headers, footers and trailers, with file and offset; such damage loses no entry."""


def look_at_ends(disk: Disk, directory: str, log_ids: Sequence[int], index: LedgerIndex) -> LogEnds:
    """Check all logs that the index names. `log_ids` are the existing logs. Raises StorageError if one
    cannot be opened. Reads little of each log, and the rows of ledgers that have entries in logs without a
    trailer.
    """
    named = {log_id for log_id, ledgers in index.usage.items() if ledgers}
    # A log that is gone is one of length 0: all that follows treats both alike.
    lengths = dict.fromkeys(named.difference(log_ids), 0)
    remarks: list[str] = []
    unfinished: dict[int, int] = {}
    for log_id in sorted(named.intersection(log_ids)):
        file = disk.open(entry_log_path(directory, log_id))
        try:
            if not is_closed(file, log_id, remarks):
                # Too short is judged by the rows below, not by the missing trailer: a kill leaves a log
                # without one, whole.
                unfinished[log_id] = file.size()
        finally:
            file.close()
    ends = index.ends_in(unfinished.keys())
    lengths |= {log_id: size for log_id, size in unfinished.items() if size < ends[log_id]}
    return LogEnds(lengths, remarks)


def is_closed(
    file: File, log_id: int, remarks: list[str], *, footer_bytes_max: int = FOOTER_BYTES_MAX
) -> bool:
    """Whether the log has a trailer that fits its length. Adds damage to header, footer and trailer to
    `remarks`.
    """
    size = file.size()
    head = tail = b""
    with contextlib.suppress(StorageError):  # a bad sector: the read of an entry in it reports the entry
        head, tail = file.pread(0, HEADER_BYTES), file.pread(max(0, size - TRAILER_BYTES), TRAILER_BYTES)
    if len(head) == HEADER_BYTES and decode_header(head) != log_id:
        remarks.append(f"{file.path}: the header at offset 0 is damaged")
    trailer = decode_trailer(tail)
    if trailer is None:
        if looks_like_trailer(tail, size):
            remarks.append(f"{file.path}: the trailer at offset {size - TRAILER_BYTES} is damaged")
        return False
    offset, length, crc, _ = trailer
    # A right trailer at the wrong distance belongs to other contents: the file was cut and written to again,
    # or two files were concatenated. Then only its records can be believed.
    if offset + length + TRAILER_BYTES != size:
        return False
    if length <= footer_bytes_max and _checksum(file, offset, length) != crc:
        remarks.append(f"{file.path}: the footer at offset {offset} is damaged")
    return True


def _checksum(file: File, offset: int, length: int) -> int | None:
    """The checksum of a part of the file, read piece by piece; None if the part cannot be read."""
    crc = 0
    with contextlib.suppress(StorageError):
        for start in range(offset, offset + length, FOOTER_BYTES_MAX):
            crc = crc32c(file.pread(start, min(FOOTER_BYTES_MAX, offset + length - start)), crc)
        return crc
    return None
