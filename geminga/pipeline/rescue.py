"""Every entry that a bookie's files still hold, read without a broker, an index or metadata. docs/rescue.md.

Entry logs and journals are read record by record, each checked by its checksum; where one is damaged the next
right one is searched. An entry that lies in several files is taken from the first of them in which it is
whole. A topic is known where the footer of any entry log names its ledger. Nothing is written, and nothing
needs to be right but the records themselves.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from geminga.bookie.entry_log_format import HEADER_BYTES
from geminga.bookie.file_names import ENTRY_LOG_SUFFIX, JOURNAL_SUFFIX, parse_id
from geminga.bookie.inspection import (
    BadBytes,
    LogRecord,
    footer_of,
    journal_files,
    records_end,
    walk_records,
)
from geminga.bookie.journal_headers import HeaderState, find_header
from geminga.bookie.journal_scan import JournalScan
from geminga.bookie.records import RECORD_PREFIX_BYTES
from geminga.disk import Disk, File
from geminga.errors import GemingaError
from geminga.metadata.records import topic_of
from geminga.pipeline.rescue_columns import EntryColumns
from geminga.pipeline.rescue_search import find_record

SLICE_BYTES: Final = 64 << 20
BATCH_BYTES_MAX: Final = 32 << 20
BATCH_ENTRIES_MAX: Final = 20_000
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


class Inventory(NamedTuple):
    """What a slice holds."""

    entries: dict[int, bytes]
    """Entry ids by ledger, each a serialised `BitMap64`."""
    holes: list[Hole]


class Plan(NamedTuple):
    slices: list[Slice]
    topics: dict[int, str]
    """By ledger, as far as a footer names it."""
    holes: list[Hole]
    """Footers that are damaged."""


# -- what there is ----------------------------------------------------------------------------------------


def plan(disk: Disk, directories: Sequence[str]) -> Plan:
    """All entry logs and journals below these directories: logs first, the oldest first. Reads footers only.

    Raises `NothingThere`, and `StorageError` for what cannot be listed.
    """
    paths = sorted({path for directory in directories for path in _walk(directory)}, key=_age)
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
                if ledger.topic:
                    topics[ledger_id] = _topic_name(ledger.topic)
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


def read_slice(disk: Disk, part: Slice, holes: list[Hole]) -> Iterator[Found]:
    """Every whole record, in the order of the file; what is damaged is added to `holes`."""
    file = disk.open(part.path)
    try:
        if part.is_journal:
            yield from _read_journal(file, part, holes)
        else:
            yield from _records(
                file, part.begin, min(part.end, file.size()), holes, is_end_open=_is_open(file, part)
            )
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


def _read_journal(file: File, part: Slice, holes: list[Hole]) -> Iterator[Found]:
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


# -- each entry once --------------------------------------------------------------------------------------


def take_inventory(disk: Disk, part: Slice) -> Inventory:
    """Reads and checks all of the slice."""
    ledgers: dict[int, BitMap64] = defaultdict(BitMap64)
    holes: list[Hole] = []
    for entry in read_slice(disk, part, holes):
        ledgers[entry.ledger_id].add(entry.entry_id)
    return Inventory({ledger_id: ids.serialize() for ledger_id, ids in ledgers.items()}, holes)


def owned(inventories: Sequence[Inventory]) -> list[dict[int, bytes]]:
    """Of each slice the entries to take from it: those that no slice before has. Serialised as in
    `Inventory`.
    """
    seen: dict[int, BitMap64] = defaultdict(BitMap64)
    found = []
    for inventory in inventories:
        own = {}
        for ledger_id, data in inventory.entries.items():
            ids = BitMap64.deserialize(data)
            new = ids - seen[ledger_id]
            if new:
                own[ledger_id] = new.serialize()
            seen[ledger_id] |= ids
        found.append(own)
    return found


def rescued_batches(
    disk: Disk, part: Slice, own: dict[int, bytes], topics: dict[int, str]
) -> Iterator[pa.RecordBatch]:
    """The entries of a slice that are its own, as batches of `rescue_columns.ENTRIES`."""
    left = {ledger_id: BitMap64.deserialize(data) for ledger_id, data in own.items()}
    columns = EntryColumns(part.path)
    for entry in read_slice(disk, part, []):
        mine = left.get(entry.ledger_id)
        if mine is None or entry.entry_id not in mine:
            continue
        mine.discard(entry.entry_id)
        columns.add(topics.get(entry.ledger_id), entry.ledger_id, entry.entry_id, entry.offset, entry.body)
        if columns.body_bytes >= BATCH_BYTES_MAX or columns.rows >= BATCH_ENTRIES_MAX:
            yield columns.take()
    if columns.rows:
        yield columns.take()


def rescue_batches(disk: Disk, directories: Sequence[str], holes: list[Hole]) -> Iterator[pa.RecordBatch]:
    """Everything below the directories in this process, one slice after the other."""
    known = plan(disk, directories)
    inventories = [take_inventory(disk, part) for part in known.slices]
    holes += known.holes
    holes += (hole for inventory in inventories for hole in inventory.holes)
    for part, own in zip(known.slices, owned(inventories), strict=True):
        yield from rescued_batches(disk, part, own, known.topics)


class Held(NamedTuple):
    """What is to be told of a ledger."""

    topic: str | None
    ledger_id: int
    entries: int
    missing: list[tuple[int, int]]
    """First and last of each run of entry ids that is not there, below the greatest that is."""


def ledgers_in(inventories: Iterable[Inventory], topics: dict[int, str]) -> list[Held]:
    """All ledgers with an entry, by topic; those without a known topic last."""
    ledgers: dict[int, BitMap64] = defaultdict(BitMap64)
    for inventory in inventories:
        for ledger_id, data in inventory.entries.items():
            ledgers[ledger_id] |= BitMap64.deserialize(data)
    held = [Held(topics.get(id_), id_, len(ids), _gaps(ids)) for id_, ids in ledgers.items()]
    return sorted(held, key=lambda one: (one.topic is None, one.topic or "", one.ledger_id))


def _gaps(ids: BitMap64) -> list[tuple[int, int]]:
    if len(ids) == ids.max() + 1:
        return []
    there = np.array(ids.to_array(), np.uint64)
    before = np.concatenate((np.array([-1], np.int64), there[:-1].astype(np.int64)))
    firsts, lasts = before + 1, there.astype(np.int64) - 1
    return [(int(firsts[at]), int(lasts[at])) for at in np.flatnonzero(firsts <= lasts)]
