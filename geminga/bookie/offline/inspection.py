"""Inspects a stopped bookie's files: lists, records, and the entries that only the journal has. Writes
nothing.

For tools that hold the directory's lock. Blocking. One window of a file, one group or one footer is in
memory at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from geminga.bookie.entry_logs.entry_log_format import (
    HEADER_BYTES,
    TRAILER_BYTES,
    Footer,
    decode_header,
    decode_trailer,
    looks_like_trailer,
)
from geminga.bookie.entry_logs.reader import EntryLogs
from geminga.bookie.entry_logs.scan import SCAN_BYTES, read_footer, read_names, record_at
from geminga.bookie.index.ledger_index import LedgerIndex
from geminga.bookie.journal.headers import HeaderState
from geminga.bookie.journal.inventory import JournalInventory
from geminga.bookie.journal.journal_format import FileHeader
from geminga.bookie.journal.scan import JournalScan
from geminga.bookie.records.file_names import entry_log_path
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.records.ledger_mapping import directory_index, needed_from
from geminga.bookie.records.ledger_name import META_ENTRY_ID, LedgerName, decode_name
from geminga.bookie.records.records import RECORD_HEAD, RECORD_PREFIX_BYTES, Segment
from geminga.storage.disk import Disk, File


class LogRecord(NamedTuple):
    """A valid record of an entry log."""

    offset: int
    ledger_id: int
    entry_id: int
    body_bytes: int

    @property
    def is_name(self) -> bool:
        """Whether this record is the ledger's name, not an entry."""
        return self.entry_id == META_ENTRY_ID

    @property
    def end(self) -> int:
        return self.offset + RECORD_PREFIX_BYTES + self.body_bytes


class BadBytes(NamedTuple):
    """A part of a file that is not what was written there."""

    offset: int
    length: int


class JournalFile(NamedTuple):
    """One journal. `header` is None for a file that cannot be read, and for an empty one. `synced_end` is
    the end of this journal according to the next one.
    """

    journal_id: int
    path: str
    bytes: int
    header: FileHeader | None
    state: HeaderState
    synced_end: int | None

    @property
    def begun(self) -> bool:
        """Whether the file has, or had, groups that may have confirmed entries."""
        return self.state is not HeaderState.UNUSED or self.synced_end is not None


def entry_log_ids(disk: Disk, directory: str) -> list[int]:
    """The ids of the entry logs, ascending. `directory` is the entry logs' own."""
    return EntryLogs(disk, directory).ids() if disk.exists(directory) else []


def journal_files(disk: Disk, directory: str) -> list[JournalFile]:
    """Every journal, oldest first. `directory` is the journals' own."""
    if not disk.exists(directory):
        return []
    inventory = JournalInventory(disk, directory)
    files = []
    for journal_id, (header, state) in inventory.found.items():
        with inventory.open(journal_id) as file:
            size = file.size()
        path, end = inventory.path(journal_id), inventory.stated_end(journal_id)
        files.append(JournalFile(journal_id, path, size, header, state, end))
    return files


# ---- entry logs


class LogContents(NamedTuple):
    """The contents of one entry log, by ledger: entries and record bytes, including deleted ledgers."""

    closed: bool
    ledgers: dict[int, tuple[int, int]]
    names: dict[int, LedgerName]

    @property
    def record_bytes(self) -> int:
        return sum(size for _, size in self.ledgers.values())


def log_contents(disk: Disk, directory: str, log_id: int) -> LogContents:
    """The contents, from the footer. A log without a footer is read up to the first record that is not
    whole.
    """
    file = disk.open(entry_log_path(directory, log_id))
    try:
        footer = read_footer(file)
        if footer is not None:
            return LogContents(
                True,
                {id_: (ledger.usage.entries, ledger.usage.bytes) for id_, ledger in footer.ledgers.items()},
                {id_: ledger.name for id_, ledger in footer.ledgers.items() if ledger.name.topic},
            )
        ledgers: dict[int, tuple[int, int]] = {}
        for record in walk_records(file, HEADER_BYTES, file.size()):
            if isinstance(record, BadBytes):
                break
            if record.is_name:
                continue
            entries, size = ledgers.get(record.ledger_id, (0, 0))
            ledgers[record.ledger_id] = entries + 1, size + record.end - record.offset
        return LogContents(False, ledgers, read_names(file, log_id))
    finally:
        file.close()


def name_at(file: File, record: LogRecord) -> LedgerName | None:
    """The name in a record with `is_name`; None if it cannot be decoded."""
    return decode_name(file.pread(record.offset + RECORD_PREFIX_BYTES, record.body_bytes))


def log_id_in_header(file: File) -> int | None:
    """The log id in the header; None if the file does not begin like an entry log."""
    header = decode_header(file.pread(0, HEADER_BYTES))
    return header.log_id if header is not None else None


def footer_of(file: File) -> tuple[Footer | None, BadBytes | None]:
    """A closed log's footer, or the damage to it, or (None, None) for a log that was never closed."""
    footer = read_footer(file)
    if footer is not None:
        return footer, None
    size = file.size()
    trailer = file.pread(max(0, size - TRAILER_BYTES), TRAILER_BYTES)
    found = decode_trailer(trailer)
    if found is not None:
        return None, BadBytes(found.offset, found.length)
    if looks_like_trailer(trailer, size):
        return None, BadBytes(size - TRAILER_BYTES, TRAILER_BYTES)
    return None, None


def records_end(file: File) -> int:
    """Where a closed log's records end and its footer begins; for any other log, the end of the file."""
    size = file.size()
    trailer = decode_trailer(file.pread(max(0, size - TRAILER_BYTES), TRAILER_BYTES))
    return trailer.offset if trailer is not None else size


def walk_records(
    file: File, begin: int, end: int, *, resume: Sequence[int] = ()
) -> Iterator[LogRecord | BadBytes]:
    """Every record from `begin` up to `end`, checked.

    If the bytes at an offset are no record, the walk continues behind them if their length leads to a valid
    record. Otherwise it continues at the next offset of `resume`, which are ascending offsets at which
    records are known to begin, or ends.
    """
    window, window_start = file.pread(begin, SCAN_BYTES), begin

    def at(offset: int) -> LogRecord | None:
        nonlocal window, window_start
        found = record_at(window, offset - window_start) if offset >= window_start else None
        if found is None and offset != window_start:
            window, window_start = file.pread(offset, SCAN_BYTES), offset
            found = record_at(window, 0)
        if found is None or offset + found[2] > end:
            return None
        return LogRecord(offset, found[0], found[1], found[2] - RECORD_PREFIX_BYTES)

    position = begin
    while position < end:
        record = at(position)
        if record is not None:
            yield record
            position = record.end
            continue
        following = _stated_end(file, position)
        known = bisect_right(resume, position)
        limit = min(resume[known], end) if known < len(resume) else end
        if following > limit or (following < limit and at(following) is None):
            following = limit
        yield BadBytes(position, following - position)
        position = following


def _stated_end(file: File, offset: int) -> int:
    head = file.pread(offset, RECORD_HEAD.size)
    if len(head) < RECORD_HEAD.size:
        return offset + RECORD_PREFIX_BYTES
    return int(offset + RECORD_PREFIX_BYTES + RECORD_HEAD.unpack(head)[0])


# ---- the journal


def unflushed(
    disk: Disk, directories: Sequence[str], indexes: Sequence[LedgerIndex]
) -> Iterator[tuple[JournalFile, Segment]]:
    """The entries that a start would replay: those behind the mark of their ledger directory that are not in
    its index. `directories` are those with the journals' files; `indexes` are those of the ledger
    directories.
    """
    for number, directory in enumerate(directories):
        yield from _unflushed(disk, directory, number, indexes)


def _unflushed(
    disk: Disk, directory: str, number: int, indexes: Sequence[LedgerIndex]
) -> Iterator[tuple[JournalFile, Segment]]:
    start = needed_from(index.marks for index in indexes)[number]
    last: dict[int, int] = {}
    for journal in journal_files(disk, directory):
        if journal.header is None or journal.journal_id < start.journal_id:
            continue
        file = disk.open(journal.path)
        try:
            scan = JournalScan(file, journal.header, synced_end=journal.synced_end)
            at_start = journal.journal_id == start.journal_id
            for group in scan.groups(start.offset if at_start else 0):
                end = JournalPosition(journal.journal_id, group.end)
                for segment in group.segments:
                    ledger_id = segment.ledger_id
                    index = indexes[directory_index(ledger_id, len(indexes))]
                    if end <= index.marks[number]:
                        continue
                    if ledger_id not in last:
                        last[ledger_id] = index.last_entry_id(ledger_id)
                    if segment.last > last[ledger_id]:
                        first = max(segment.first, last[ledger_id] + 1)
                        yield journal, segment.part(first, segment.last)
                        last[ledger_id] = segment.last
        finally:
            file.close()
