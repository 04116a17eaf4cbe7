"""Checks that each entry log is the one of its name, and reaches as far as the index expects, from sizes,
headers, footers, trailers and last records alone.

A closed log ends with a trailer that has the offset of the footer, which proves that the log is whole. A log
without a trailer was being written when its process ended, or its end was cut off or overwritten. The index
names only synced records. So a log without the last record that a row names has lost its end.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from geminga.bookie.entry_logs.entry_log_format import (
    HEADER_BYTES,
    TRAILER_BYTES,
    LogHeader,
    decode_header,
    decode_trailer,
    looks_like_trailer,
)
from geminga.bookie.entry_logs.scan import record_at
from geminga.bookie.index.index_format import row_part
from geminga.bookie.index.ledger_index import LedgerIndex, LedgerRow
from geminga.bookie.records.entry_ranges import runs_of
from geminga.bookie.records.file_names import entry_log_path
from geminga.bookie.records.records import crc32c
from geminga.errors import StorageError
from geminga.storage.disk import Disk, File

# The start is budgeted. A footer of 1 MiB describes tens of thousands of rows; most logs have a few KiB.
FOOTER_BYTES_MAX: Final = 1 << 20
"""A start reads no more than this of a log's footer; the scrub checks the checksum of a longer one."""


UNREADABLE_MAX: Final = 100
"""After so many records that cannot be read, all of the log counts as unreadable: a failing disk may need
seconds for each.
"""


class MisnamedLogs(StorageError):
    """Files have the names of other entry logs than their headers say. Nothing was written."""


class LogEnds(NamedTuple):
    lengths: dict[int, int]
    """Where the records end of logs that lack the last one that the index names, or whose last one cannot be
    read; 0 for missing logs.
    """
    sizes: dict[int, int]
    """The lengths of the files of these logs and of those with `holes`; greater if the ends were overwritten.
    """
    remarks: list[str]
    """Damage to headers, footers and trailers, with file and offset; such damage loses no entry."""
    holes: list[LedgerRow]
    """What the index names in logs without a header, and is not there."""


def log_headers(disk: Disk, directory: str, log_ids: Iterable[int]) -> dict[int, LogHeader | None]:
    """The headers of these existing logs; None for one that is damaged. Raises StorageError if a log cannot
    be opened.
    """
    found: dict[int, LogHeader | None] = {}
    for log_id in log_ids:
        file = disk.open(entry_log_path(directory, log_id))
        try:
            found[log_id] = _header_of(file)
        finally:
            file.close()
    return found


def check_names(directory: str, headers: Mapping[int, LogHeader | None]) -> None:
    """Raise MisnamedLogs, with what to do, if the header of one of these logs names another one. A damaged
    one counts as right.
    """
    # Under another's name every record of a log is at a wrong place, and the deletion of the ledgers of one
    # log would delete the bytes of the other.
    named = {log_id: header.log_id for log_id, header in headers.items() if header is not None}
    _refuse_others(directory, headers, {mine: its for mine, its in named.items() if its != mine})


def _refuse_others(directory: str, log_ids: Iterable[int], others: Mapping[int, int]) -> None:
    """`others` has the id in the header of each log that is another one."""
    if not others:
        return
    right = set(log_ids).difference(others)
    lines = [
        f"{directory}: entry logs are there under each other's names. Rename them back, and start again: "
        "all that they have is served then. Nothing was written or deleted."
    ]
    for log_id, named in others.items():
        name, its_name = (os.path.basename(entry_log_path(directory, each)) for each in (log_id, named))
        lines.append(
            f"  {name} is a copy of {its_name}, which is there: move it out of this directory, and put back "
            f"the file of entry log {log_id} if there is one"
            if named in right
            else f"  {name} is entry log {named}: its name is {its_name}"
        )
    raise MisnamedLogs("\n".join(lines))


def other_log_in_header(file: File, log_id: int) -> int | None:
    """The id in the header, if that is whole and names another log."""
    header = _header_of(file)
    return header.log_id if header is not None and header.log_id != log_id else None


def _header_of(file: File) -> LogHeader | None:
    with contextlib.suppress(StorageError):  # a bad sector names nothing
        return decode_header(file.pread(0, HEADER_BYTES))
    return None


def look_at_ends(disk: Disk, directory: str, log_ids: Sequence[int], index: LedgerIndex) -> LogEnds:
    """Check all logs that the index names. `log_ids` are the existing logs. Raises MisnamedLogs, and
    StorageError if a log cannot be opened. Reads little of each log, and the rows of ledgers that have
    entries in logs without a trailer; of a log without its last record also the damaged end.
    """
    named = {log_id for log_id, ledgers in index.usage.items() if ledgers}
    # A log that is gone is one of length 0: all that follows treats both alike.
    lengths = dict.fromkeys(named.difference(log_ids), 0)
    sizes = dict(lengths)
    remarks: list[str] = []
    others: dict[int, int] = {}
    unfinished: set[int] = set()
    holes: list[LedgerRow] = []
    headless: list[int] = []
    for log_id in sorted(named.intersection(log_ids)):
        file = disk.open(entry_log_path(directory, log_id))
        try:
            if (other := other_log_in_header(file, log_id)) is not None:
                others[log_id] = other
            if not is_closed(file, log_id, remarks):
                # The rows below show whether its end is gone: a kill leaves a log without a trailer, whole.
                unfinished.add(log_id)
            if _has_no_header(file):
                headless.append(log_id)
        finally:
            file.close()
    _refuse_others(directory, log_ids, others)
    for log_id, last in index.last_rows_in(unfinished).items():
        # The length alone says too little: the repair of a file system, or a failing disk, may leave zeros in
        # the place of the end.
        file = disk.open(entry_log_path(directory, log_id))
        try:
            is_whole = False
            with contextlib.suppress(StorageError):  # no less lost to a reader than one that is gone
                is_whole = _is_whole(file, last, len(last.row.ends) - 1)
            end = last.row.offset + last.row.ends[-1]
            # Looked at again, since a read may fail once and succeed then. What the next start deletes must
            # not hang on that.
            if not is_whole and (found := _records_end(file, log_id, index)) < end:
                lengths[log_id] = found
                sizes[log_id] = file.size()
        finally:
            file.close()
    for log_id in headless:
        # It was cut and written to again by a process that did not notice: its end is right, and a hole of
        # unknown length lies before it.
        file = disk.open(entry_log_path(directory, log_id))
        try:
            sizes[log_id] = file.size()
            holes += _not_there(file, log_id, index, lengths.get(log_id, file.size()))
        finally:
            file.close()
    return LogEnds(lengths, sizes, remarks, holes)


def _has_no_header(file: File) -> bool:
    with contextlib.suppress(StorageError):
        head = file.pread(0, HEADER_BYTES)
        return bool(head) and not any(head)
    return False


def _not_there(file: File, log_id: int, index: LedgerIndex, end: int) -> list[LedgerRow]:
    """The entries that the index names in the log before `end` and that are no whole records; reads all."""
    found: list[LedgerRow] = []
    for each in _rows_in(log_id, index):
        ledger_id, row = each
        damaged = []
        for number in range(bisect_right(row.ends, end - row.offset)):
            with contextlib.suppress(StorageError):
                if _is_whole(file, each, number):
                    continue
            damaged.append(row.first + number)
        found += [LedgerRow(ledger_id, row_part(row, *run)) for run in runs_of(damaged)]
    return found


def _rows_in(log_id: int, index: LedgerIndex) -> list[LedgerRow]:
    return [
        LedgerRow(ledger_id, row)
        for ledger_id in index.usage[log_id]
        for row in index.rows(ledger_id)
        if row.log_id == log_id and not row.lost
    ]


def _records_end(file: File, log_id: int, index: LedgerIndex) -> int:
    """Where the last whole record ends that a row names."""
    rows = _rows_in(log_id, index)
    unreadable = 0
    # From the end: reads and the scrub find damage further ahead, and what follows that is served.
    for found in sorted(rows, key=lambda each: each.row.offset, reverse=True):
        for number in range(len(found.row.ends) - 1, -1, -1):
            try:
                is_whole = _is_whole(file, found, number)
            except StorageError:
                unreadable += 1
                if unreadable >= UNREADABLE_MAX:
                    return HEADER_BYTES
                continue
            if is_whole:
                return found.row.offset + found.row.ends[number]
    return HEADER_BYTES


def _is_whole(file: File, found: LedgerRow, number: int) -> bool:
    """Whether the row's record of this number is what the index says. Raises StorageError if it cannot be
    read.
    """
    ledger_id, row = found
    begin = row.ends[number - 1] if number else 0
    length = row.ends[number] - begin
    data = file.pread(row.offset + begin, length)
    return record_at(data, 0) == (ledger_id, row.first + number, length)


def is_closed(
    file: File, log_id: int, remarks: list[str], *, footer_bytes_max: int = FOOTER_BYTES_MAX
) -> bool:
    """Whether the log has a trailer that fits its length. Adds damage to header, footer and trailer to
    `remarks`.
    """
    size = file.size()
    head = tail = b""
    try:
        head, tail = file.pread(0, HEADER_BYTES), file.pread(max(0, size - TRAILER_BYTES), TRAILER_BYTES)
    except StorageError as error:
        remarks.append(str(error))
    if len(head) == HEADER_BYTES:
        header = decode_header(head)
        if header is None:
            remarks.append(f"{file.path}: the header at offset 0 is damaged")
        elif header.log_id != log_id:
            what = f"is that of entry log {header.log_id}: the file was renamed"
            remarks.append(f"{file.path}: the header at offset 0 {what}")
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
