"""Where a backlog's rows come from: Parquet files, or the messages in a stopped broker's own files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from geminga.bookie.index.index_format import Row
from geminga.errors import CorruptData, ProtocolError
from geminga.pipeline.audit.events import WrongLog
from geminga.pipeline.audit.logs import Log, Piece, plan
from geminga.pipeline.buckets.buckets import NO_CODE, Range, count_by_ledger, range_of, row_shares
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
    concatenate,
    from_columns,
)
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
        """About how many rows each ledger has; of a ledger that has some at least one."""
        ...

    def shares(self, ranges: Sequence[Range]) -> Iterator[Share]:
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
        return count_by_ledger(self.rows())

    def shares(self, ranges: Sequence[Range]) -> Iterator[Share]:
        yield from row_shares(self.rows(), ranges)


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
    buckets: dict[int, Range]
    """By the ledger that holds the bucket."""
    due_after_ms: int
    """What is due earlier needs no index."""


class StoredRows(NamedTuple):
    """A slice of a stopped broker's files."""

    part: Slice
    backlog: Backlog

    def rows(self) -> Rows:
        return _Reading(self.backlog, None).read(self.part)[0]

    def counts(self) -> dict[int, int]:
        """From one run in eight of each ledger, where a footer tells what lies where."""
        return _Reading(self.backlog, None).count(self.part)

    def shares(self, ranges: Sequence[Range]) -> Iterator[Share]:
        """Nothing is read of ledgers that are in no range, where a footer tells what lies where. Messages of
        the backlog whose records are damaged come as shares too.
        """
        reading = _Reading(self.backlog, ranges)
        rows, entries = reading.read(self.part)
        yield from row_shares(rows, ranges)
        yield from entries
        yield from reading.unread_shares()


class _Reading:
    """What a slice has of the backlog and of buckets; of all ledgers, or of some ranges of them."""

    def __init__(self, backlog: Backlog, ranges: Sequence[Range] | None) -> None:
        self._backlog = backlog
        self._ranges = ranges
        self._acknowledged = {
            ledger_id: BitMap.deserialize(data) for ledger_id, data in backlog.acknowledged.items()
        }
        self._rows: list[Rows] = []
        self._entries: list[Share] = []
        self._codes: list[int] = []
        self._times_ms: list[int] = []
        self._unread: dict[int, list[int]] = defaultdict(list)
        """Codes by range."""

    def read(self, part: Slice) -> tuple[Rows, list[Share]]:
        file = RealDisk().open(part.path)
        try:
            runs = runs_of(file, part)
            if runs is None:
                holes: list[Hole] = []
                self._take_each(read_slice(RealDisk(), part, holes))
                self._unread[0] += [NO_CODE] * len(holes)
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
                return count_by_ledger(self.read(part)[0])
            by_ledger: dict[int, list[Row]] = defaultdict(list)
            for ledger_id, run in runs:
                if self._has_backlog(ledger_id) and (ledger_id, run.last) > self._backlog.mark_delete:
                    by_ledger[ledger_id].append(run)
            return {
                ledger_id: self._estimated(file, ledger_id, some) for ledger_id, some in by_ledger.items()
            }
        finally:
            file.close()

    def _estimated(self, file: File, ledger_id: int, runs: Sequence[Row]) -> int:
        sampled = runs[::COUNTED_EVERY]
        for run in sampled:
            self._take_run(file, ledger_id, run)
        rows = sum(part.length for part in self._rows) + len(self._codes)
        self._rows, self._codes, self._times_ms = [], [], []
        share = rows / sum(len(run.ends) for run in sampled)
        return max(1, round(share * sum(len(run.ends) for run in runs)))

    def _take_run(self, file: File, ledger_id: int, run: Row) -> None:
        if self._number_of_bucket(ledger_id) is not None:
            self._take_each(records_of(file, run))  # a bucket's own damage shows when it is checked
        elif self._has_backlog(ledger_id) and (ledger_id, run.last) > self._backlog.mark_delete:
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
        number = None if self._ranges is None else range_of(self._ranges, ledger_id)
        if number is not None:
            codes = (
                ledger_id << ENTRY_BITS | entry_id for entry_id in left if self._is_left(ledger_id, entry_id)
            )
            self._unread[number] += codes

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
            number = self._number_of_bucket(found.ledger_id)
            if number is not None:
                self._entries.append((number, "entry", found.entry_id, found.body))
            elif self._has_backlog(found.ledger_id):
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

    def _number_of_bucket(self, ledger_id: int) -> int | None:
        """The range of the bucket that this ledger is, if that is asked for."""
        one = self._backlog.buckets.get(ledger_id)
        return None if one is None or self._ranges is None else range_of(self._ranges, one.first)

    def _has_backlog(self, ledger_id: int) -> bool:
        if ledger_id not in self._backlog.ledgers:
            return False
        return self._ranges is None or range_of(self._ranges, ledger_id) is not None


def stored_sources(directories: Sequence[str], backlog: Backlog) -> list[StoredRows]:
    """Entry logs of a broker that was stopped in order: its journals have nothing more."""
    slices = plan_files(RealDisk(), directories).slices
    return [StoredRows(part, backlog) for part in slices if not part.is_journal]


def _due_ms(body: bytes) -> int:
    try:
        return peek(body).deliver_at_ms
    except ProtocolError:
        return 0
