"""Where a backlog's rows come from: Parquet files, or the messages in a stopped broker's own files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from geminga.disk import RealDisk
from geminga.errors import CorruptData, ProtocolError
from geminga.pipeline.audit_events import WrongLog
from geminga.pipeline.audit_logs import Log, Piece, plan
from geminga.pipeline.buckets import Range, range_of, row_shares
from geminga.pipeline.rescue import Slice, read_slice
from geminga.pipeline.rescue import plan as plan_files
from geminga.tracker.rows import EMPTY, ENTRY_BITS, FAR_MS, LEDGER_ID_END, Rows, from_columns
from geminga.wire.message_metadata import peek

ROWS_PER_PIECE: Final = 4_000_000
COLUMNS: Final = ("ledger_id", "entry_id", "deliver_at_ms")

Share = tuple[int, str, int, bytes]


class Source(Protocol):
    """A part of a backlog that is read by itself; small, and picklable."""

    def rows(self) -> Rows:
        """In any order."""
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
        return self._read([])[0]

    def shares(self, ranges: Sequence[Range]) -> Iterator[Share]:
        rows, entries = self._read(ranges)
        yield from row_shares(rows, ranges)
        yield from entries

    def _read(self, ranges: Sequence[Range]) -> tuple[Rows, list[Share]]:
        backlog, entries = self.backlog, []
        acknowledged = {id_: BitMap.deserialize(data) for id_, data in backlog.acknowledged.items()}
        codes: list[int] = []
        times_ms: list[int] = []
        for found in read_slice(RealDisk(), self.part, []):
            place = found.ledger_id, found.entry_id
            if found.ledger_id in backlog.buckets:
                number = range_of(ranges, backlog.buckets[found.ledger_id].first)
                if number is not None:
                    entries.append((number, "entry", found.entry_id, found.body))
            elif found.ledger_id in backlog.ledgers and place > backlog.mark_delete:
                done = acknowledged.get(found.ledger_id)
                if done is None or found.entry_id not in done:
                    due_ms = _due_ms(found.body)
                    if due_ms > backlog.due_after_ms:
                        codes.append(found.ledger_id << ENTRY_BITS | found.entry_id)
                        times_ms.append(min(due_ms, FAR_MS))
        return (from_columns(times_ms, codes) if codes else EMPTY), entries


def stored_sources(directories: Sequence[str], backlog: Backlog) -> list[StoredRows]:
    """Entry logs of a broker that was stopped in order: its journals have nothing more."""
    slices = plan_files(RealDisk(), directories).slices
    return [StoredRows(part, backlog) for part in slices if not part.is_journal]


def _due_ms(body: bytes) -> int:
    try:
        return peek(body).deliver_at_ms
    except ProtocolError:
        return 0
