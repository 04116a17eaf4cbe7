"""A bookie's files, read without an index or metadata: which there are, and every whole record in them.

Entry logs and journals are read record by record, each checked by its checksum; where one is damaged the next
right one is searched. A topic is known where any entry log or journal names its ledger. Nothing is written,
and nothing needs to be right but the records themselves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from geminga.bookie.entry_logs.entry_log_format import HEADER_BYTES
from geminga.bookie.journal.headers import HeaderState, find_header
from geminga.bookie.journal.scan import JournalScan
from geminga.bookie.offline.inspection import (
    BadBytes,
    LogRecord,
    footer_of,
    journal_files,
    records_end,
    walk_records,
)
from geminga.bookie.records.file_names import ENTRY_LOG_SUFFIX, JOURNAL_SUFFIX, parse_id
from geminga.bookie.records.ledger_name import META_ENTRY_ID, decode_name
from geminga.bookie.records.records import RECORD_PREFIX_BYTES
from geminga.errors import GemingaError
from geminga.metadata.records import topic_of
from geminga.pipeline.buckets.rescue_search import find_record
from geminga.pipeline.files.files import Files
from geminga.pipeline.files.locations import FILE, join, parse
from geminga.storage.disk import Disk, File

SLICE_BYTES: Final = 64 << 20
_DIGITS: Final = re.compile(r"\d{20}\.(log|journal)")


class NothingThere(GemingaError):
    """A directory without a file of a bookie in it."""


class Slice(NamedTuple):
    """A part of a file that is read by itself: a journal always whole, an entry log from `begin` to `end`."""

    path: str
    is_journal: bool
    begin: int
    end: int
    synced_end: int | None = None
    """Of a journal: where the next one says that it ended."""


class Found(NamedTuple):
    """One whole record."""

    ledger_id: int
    entry_id: int
    offset: int
    body: bytes


class Hole(NamedTuple):
    """Bytes in which no right record was found; what was searched in them and found again is not counted."""

    path: str
    offset: int
    length: int

    def __str__(self) -> str:
        return f"{self.path}: {self.length} bytes at offset {self.offset} are damaged"


class Plan(NamedTuple):
    slices: list[Slice]
    topics: dict[int, str]
    """By ledger, where a footer names it. The entries of the slices may name more."""
    holes: list[Hole]
    """Footers that are damaged."""


# -- what there is ----------------------------------------------------------------------------------------


def plan(disk: Disk, directories: Sequence[str], files: Files | None = None) -> Plan:
    """All entry logs and journals below these directories: logs first, the oldest first. Reads footers only.

    `files`: what finds them where a directory is a URL; then `disk` has to read there (`disk_by_url`). Raises
    `NothingThere`, and `StorageError` for what cannot be listed.
    """
    known = files or Files()
    paths = sorted({path for directory in directories for path in _below(known, directory)}, key=_age)
    if not paths:
        raise NothingThere(f"no entry log and no journal below {', '.join(directories)}")
    slices: list[Slice] = []
    topics: dict[int, str] = {}
    holes: list[Hole] = []
    ends = _journal_ends(disk, paths)
    for path in paths:
        file = disk.open(path)
        try:
            if path.endswith(JOURNAL_SUFFIX):
                slices.append(Slice(path, True, 0, file.size(), ends.get(path)))
                continue
            footer, bad = footer_of(file)
            if bad is not None:
                holes.append(Hole(path, bad.offset, bad.length))
            for ledger_id, ledger in (footer.ledgers if footer is not None else {}).items():
                if ledger.name.topic:
                    topics[ledger_id] = _topic_name(ledger.name.topic)
            starts = sorted(row.offset for _, row in footer.rows) if footer is not None else []
            slices += _slices(path, starts, records_end(file))
        finally:
            file.close()
    return Plan(slices, topics, holes)


def _journal_ends(disk: Disk, paths: Iterable[str]) -> dict[str, int]:
    """Where journals ended, by what the ones after them say."""
    folders = {os.path.dirname(path) for path in paths if path.endswith(JOURNAL_SUFFIX)}
    journals = [journal for folder in folders for journal in journal_files(disk, folder)]
    return {journal.path: journal.synced_end for journal in journals if journal.synced_end is not None}


def _below(files: Files, directory: str) -> Iterator[str]:
    if parse(directory).scheme == FILE:
        yield from _walk(str(parse(directory)))
        return
    found = [one.name for one in files.list(directory, recursive=True) if not one.is_directory]
    yield from (join(directory, name) for name in found if _DIGITS.fullmatch(os.path.basename(name)))


def _walk(directory: str) -> Iterator[str]:
    if not os.path.isdir(directory):
        raise NothingThere(f"{directory}: there is no such directory")
    for folder, _, names in os.walk(directory):
        for name in names:
            if _DIGITS.fullmatch(name):
                yield os.path.join(folder, name)


def _age(path: str) -> tuple[bool, int, str]:
    name = os.path.basename(path)
    is_journal = name.endswith(JOURNAL_SUFFIX)
    return is_journal, parse_id(name, JOURNAL_SUFFIX if is_journal else ENTRY_LOG_SUFFIX) or 0, path


def _topic_name(path: str) -> str:
    try:
        return str(topic_of(path))
    except (AssertionError, GemingaError, ValueError):
        return path


def _slices(path: str, starts: Sequence[int], end: int) -> Iterator[Slice]:
    """Cut where the footer says that a record begins."""
    begin = HEADER_BYTES
    for start in starts:
        if start - begin >= SLICE_BYTES and start < end:
            yield Slice(path, False, begin, start)
            begin = start
    if end > begin:
        yield Slice(path, False, begin, end)


# -- reading ----------------------------------------------------------------------------------------------


def read_slice(
    disk: Disk, part: Slice, holes: list[Hole], topics: dict[int, str] | None = None
) -> Iterator[Found]:
    """Every whole record of an entry, in the order of the file; what is damaged is added to `holes`, what is
    said of a ledger's topic to `topics`.
    """
    topics = topics if topics is not None else {}
    file = disk.open(part.path)
    try:
        if part.is_journal:
            records = _read_journal(file, part, holes, topics)
        else:
            end, is_open = min(part.end, file.size()), _is_open(file, part)
            records = _records(file, part.begin, end, holes, is_end_open=is_open)
        for record in records:
            if record.entry_id != META_ENTRY_ID:
                yield record
            elif (name := decode_name(record.body)) is not None:
                topics[record.ledger_id] = _topic_name(name.topic)
    finally:
        file.close()


def records_between(file: File, begin: int, end: int) -> Iterator[Found]:
    """Every whole record of a closed entry log between these offsets."""
    return _records(file, begin, end, [], is_end_open=False)


def _is_open(file: File, part: Slice) -> bool:
    """Whether the slice reaches to the end of a log that was never closed: a torn flush is no damage."""
    return part.end >= file.size()


def _records(file: File, begin: int, end: int, holes: list[Hole], *, is_end_open: bool) -> Iterator[Found]:
    position = begin
    while position < end:
        bad: BadBytes | None = None
        for record in walk_records(file, position, end):
            if isinstance(record, BadBytes):
                bad = record
                break
            yield _found(file, record)
            position = record.end
        if bad is None:
            return
        following = find_record(file, bad.offset + 1, end)
        if following is None:
            if not is_end_open:
                holes.append(Hole(file.path, bad.offset, end - bad.offset))
            return
        holes.append(Hole(file.path, bad.offset, following - bad.offset))
        position = following


def _found(file: File, record: LogRecord) -> Found:
    body = file.pread(record.offset + RECORD_PREFIX_BYTES, record.body_bytes)
    return Found(record.ledger_id, record.entry_id, record.offset, body)


def _read_journal(file: File, part: Slice, holes: list[Hole], topics: dict[int, str]) -> Iterator[Found]:
    journal_id = parse_id(os.path.basename(file.path), JOURNAL_SUFFIX)
    assert journal_id is not None
    header, state = find_header(file, journal_id)
    if header is None:
        if state is HeaderState.UNREADABLE:
            holes.append(Hole(file.path, 0, file.size()))
            yield from _search(file, 0, file.size())
        return
    scan = JournalScan(file, header, synced_end=part.synced_end)
    for group in scan.groups(0):
        topics |= {ledger_id: _topic_name(name.topic) for ledger_id, name in group.names.items()}
        for segment in group.segments:
            offset = segment.start
            for entry_id, body in enumerate(segment.bodies(segment.first, segment.last), segment.first):
                yield Found(segment.ledger_id, entry_id, offset, body)
    for damage in scan.damages:
        holes.append(Hole(file.path, damage.offset, damage.length))
        yield from _search(file, damage.offset, damage.offset + damage.length)


def _search(file: File, begin: int, end: int) -> Iterator[Found]:
    """Right records in bytes that are not what they should be."""
    at = find_record(file, begin, end)
    while at is not None:
        position = at
        for record in walk_records(file, at, end):
            if isinstance(record, BadBytes):
                break
            yield _found(file, record)
            position = record.end
        at = find_record(file, max(position, at + 1), end)
