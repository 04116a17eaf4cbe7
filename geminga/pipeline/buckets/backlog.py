"""Where a backlog's rows come from: Parquet files, or the messages in a stopped broker's own files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from geminga.bookie.index.index_format import Row
from geminga.errors import CorruptData, ProtocolError
from geminga.pipeline.audit.events import WrongLog
from geminga.pipeline.audit.logs import Log, Piece, plan
from geminga.pipeline.buckets.buckets import BLOCK_BITS, NO_CODE, Division, count_by_block, row_shares
from geminga.pipeline.buckets.rescue_files import Found, Hole, Slice, read_slice
from geminga.pipeline.buckets.rescue_files import plan as plan_files
from geminga.pipeline.buckets.stored_columns import delayed_rows, records_of, runs_of
from geminga.storage.disk import File, RealDisk
from geminga.tracker.format.rows import (
    ENTRY_BITS,
    ENTRY_MASK,
    FAR_MS,
    LEDGER_ID_END,
    Rows,
    code_of,
    concatenate,
    from_columns,
)
from geminga.tracker.format.stored_bucket import KeyRange
from geminga.wire.message_metadata import peek

ROWS_PER_PIECE: Final = 4_000_000
COUNTED_EVERY: Final = 8
COLUMNS: Final = ("ledger_id", "entry_id", "deliver_at_ms")

Share = tuple[int, str, int, bytes]


class Source(Protocol):
    """A part of a backlog that is read by itself; small, and picklable."""

    def rows(self) -> Rows:
        """In any order."""
        ...

    def counts(self) -> dict[int, int]:
        """About how many rows each block has; of a ledger that has some at least one."""
        ...

    def shares(self, division: Division) -> Iterator[Share]:
        """Of the rows and, where the source has any, of the buckets that are there."""
        ...


class ParquetRows(NamedTuple):
    """Row groups of a Parquet file with the columns `COLUMNS`; rows without a due time are left out."""

    piece: Piece

    def rows(self) -> Rows:
        try:
            with pq.ParquetFile(self.piece.path, page_checksum_verification=True) as file:
                groups = range(self.piece.first, self.piece.last)
                table = file.read_row_groups(groups, columns=list(COLUMNS), use_threads=False).drop_null()
        except (pa.ArrowException, OSError) as error:
            raise CorruptData(f"{self.piece.path}: damaged: {error}") from None
        ledgers, entries, times_ms = (np.asarray(table[name].cast(pa.int64())) for name in COLUMNS)
        if len(ledgers) and not 0 <= int(ledgers.min()) <= int(ledgers.max()) < LEDGER_ID_END:
            raise WrongLog(f"{self.piece.path}: a ledger id beyond what the index holds")
        delayed = times_ms > 0
        codes = (ledgers << ENTRY_BITS) | entries
        return Rows(np.minimum(times_ms, FAR_MS)[delayed], codes[delayed])

    def counts(self) -> dict[int, int]:
        return count_by_block(self.rows())

    def shares(self, division: Division) -> Iterator[Share]:
        yield from row_shares(self.rows(), division)


def parquet_sources(paths: Iterable[str]) -> list[ParquetRows]:
    """Raises `WrongLog` and `CorruptData`, which name the file."""
    pieces = plan((Log(path, "backlog") for path in paths), rows_max=ROWS_PER_PIECE, needed=COLUMNS)
    return [ParquetRows(piece) for piece in pieces]


class Backlog(NamedTuple):
    """Which entries of a topic's ledgers a subscription has still to get, and where its buckets are."""

    ledgers: frozenset[int]
    mark_delete: tuple[int, int]
    acknowledged: dict[int, bytes]
    """Entry ids beyond `mark_delete`, serialised bitmaps by ledger."""
    buckets: dict[int, KeyRange]
    """What their names speak of, by the ledger that holds the bucket."""
    due_after_ms: int
    """What is due earlier needs no index."""


class StoredRows(NamedTuple):
    """A slice of a stopped broker's files."""

    part: Slice
    backlog: Backlog

    def rows(self) -> Rows:
        return _Reading(self.backlog, None).read(self.part)[0]

    def counts(self) -> dict[int, int]:
        """Counted in one run of eight, if a footer gives the offsets: the others are assumed to be alike."""
        return _Reading(self.backlog, None).count(self.part)

    def shares(self, division: Division) -> Iterator[Share]:
        """If a footer gives the offsets, reads only records that belong to the division. Messages of
        the backlog whose records are damaged are returned as shares too.
        """
        reading = _Reading(self.backlog, division)
        rows, entries = reading.read(self.part)
        yield from row_shares(rows, division)
        yield from entries
        yield from reading.unread_shares()


class _Reading:
    """What a slice has of the backlog; of all of it, or of what belongs to something, and of buckets."""

    def __init__(self, backlog: Backlog, division: Division | None) -> None:
        self._backlog = backlog
        self._division = division
        self._buckets = frozenset() if division is None else division.buckets & backlog.buckets.keys()
        self._acknowledged = {
            ledger_id: BitMap.deserialize(data) for ledger_id, data in backlog.acknowledged.items()
        }
        self._rows: list[Rows] = []
        self._entries: list[Share] = []
        self._codes: list[int] = []
        self._times_ms: list[int] = []
        self._unread: dict[int, list[int]] = defaultdict(list)
        """Codes by the number of what they belong to."""

    def read(self, part: Slice) -> tuple[Rows, list[Share]]:
        file = RealDisk().open(part.path)
        try:
            runs = runs_of(file, part)
            if runs is None:
                holes: list[Hole] = []
                self._take_each(read_slice(RealDisk(), part, holes))
                if self._division is not None and self._division.regions:
                    self._unread[self._division.regions[0].number] += [NO_CODE] * len(holes)
            else:
                for ledger_id, run in runs:
                    self._take_run(file, ledger_id, run)
        finally:
            file.close()
        if self._codes:
            self._rows.append(from_columns(self._times_ms, self._codes))
        return concatenate(self._rows), self._entries

    def count(self, part: Slice) -> dict[int, int]:
        file = RealDisk().open(part.path)
        try:
            runs = runs_of(file, part)
            if runs is None:
                return count_by_block(self.read(part)[0])
            by_ledger: dict[int, list[Row]] = defaultdict(list)
            for ledger_id, run in runs:
                if self._has_backlog(ledger_id, run.first, run.last):
                    by_ledger[ledger_id].append(run)
            counts: dict[int, int] = {}
            for ledger_id, some in by_ledger.items():
                counts |= self._estimated(file, ledger_id, sorted(some, key=lambda run: run.first))
            return counts
        finally:
            file.close()

    def _estimated(self, file: File, ledger_id: int, runs: Sequence[Row]) -> Mapping[int, int]:
        """Rows by block."""
        found: dict[int, float] = defaultdict(float)
        for at in range(0, len(runs), COUNTED_EVERY):
            self._take_run(file, ledger_id, runs[at])
            rows = sum(part.length for part in self._rows) + len(self._codes)
            self._rows, self._codes, self._times_ms = [], [], []
            for run in runs[at : at + COUNTED_EVERY]:
                for block in range(run.first >> BLOCK_BITS, (run.last >> BLOCK_BITS) + 1):
                    first, last = block << BLOCK_BITS, ((block + 1) << BLOCK_BITS) - 1
                    entries = min(last, run.last) - max(first, run.first) + 1
                    found[code_of(ledger_id, first) >> BLOCK_BITS] += rows * entries / len(runs[at].ends)
        counts = {block: round(rows) for block, rows in found.items() if round(rows)}
        return counts or {next(iter(found)): 1}

    def _take_run(self, file: File, ledger_id: int, run: Row) -> None:
        if ledger_id in self._buckets:
            self._take_each(records_of(file, run))  # a bucket's own damage shows when it is checked
        elif self._has_backlog(ledger_id, run.first, run.last):
            rows = delayed_rows(file, ledger_id, run)
            if rows is None:
                self._take_whole(ledger_id, run, list(records_of(file, run)))
            else:
                self._rows.append(self._wanted(ledger_id, rows))

    def _take_whole(self, ledger_id: int, run: Row, records: Sequence[Found]) -> None:
        """All of the run that can be read; what is left of it is damaged."""
        self._take_each(records)
        left = set(range(run.first, run.last + 1))
        left.difference_update(found.entry_id for found in records if found.ledger_id == ledger_id)
        for entry_id in left if self._division is not None else ():
            if self._is_left(ledger_id, entry_id):
                assert self._division is not None
                code = code_of(ledger_id, entry_id)
                number = self._division.number_of(code)
                if number is not None:
                    self._unread[number].append(code)

    def unread_shares(self) -> Iterator[Share]:
        """Messages that are not acknowledged and cannot be read, delayed or not."""
        for number, codes in self._unread.items():
            if codes:
                yield number, "unread", len(codes), np.array(codes, "<i8").tobytes()

    def _wanted(self, ledger_id: int, rows: Rows) -> Rows:
        wanted = rows.times_ms > self._backlog.due_after_ms
        if ledger_id == self._backlog.mark_delete[0]:
            wanted &= (rows.codes & ENTRY_MASK) > self._backlog.mark_delete[1]
        if (done := self._acknowledged.get(ledger_id)) is not None:
            wanted &= ~np.isin(rows.codes & ENTRY_MASK, np.frombuffer(done.to_array(), np.uint32))
        return Rows(np.minimum(rows.times_ms, FAR_MS)[wanted], rows.codes[wanted])

    def _take_each(self, records: Iterable[Found]) -> None:
        for found in records:
            if found.ledger_id in self._buckets:
                self._entries.append((found.ledger_id, "entry", found.entry_id, found.body))
            elif self._has_backlog(found.ledger_id, found.entry_id, found.entry_id):
                self._take(found)

    def _take(self, found: Found) -> None:
        if self._is_left(found.ledger_id, found.entry_id):
            due_ms = _due_ms(found.body)
            if due_ms > self._backlog.due_after_ms:
                self._codes.append(found.ledger_id << ENTRY_BITS | found.entry_id)
                self._times_ms.append(min(due_ms, FAR_MS))

    def _is_left(self, ledger_id: int, entry_id: int) -> bool:
        """Not acknowledged."""
        done = self._acknowledged.get(ledger_id)
        is_done = done is not None and entry_id in done
        return (ledger_id, entry_id) > self._backlog.mark_delete and not is_done

    def _has_backlog(self, ledger_id: int, first_entry: int, last_entry: int) -> bool:
        """Whether some of these entries are wanted, for all that is known without them."""
        if ledger_id not in self._backlog.ledgers or (ledger_id, last_entry) <= self._backlog.mark_delete:
            return False
        codes = ledger_id << ENTRY_BITS | first_entry, ledger_id << ENTRY_BITS | last_entry
        return self._division is None or self._division.has_any(*codes)


def stored_sources(directories: Sequence[str], backlog: Backlog) -> list[StoredRows]:
    """Entry logs of a broker that was stopped in order: its journals have nothing more."""
    slices = plan_files(RealDisk(), directories).slices
    return [StoredRows(part, backlog) for part in slices if not part.is_journal]


def _due_ms(body: bytes) -> int:
    try:
        return peek(body).deliver_at_ms
    except ProtocolError:
        return 0
