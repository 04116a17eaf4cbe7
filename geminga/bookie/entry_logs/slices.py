"""The living records of an entry log, slice by slice, for compaction.

Blocking; one thread at a time.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from geminga.bookie.entry_logs.entry_log_format import read_footer_piecewise
from geminga.bookie.entry_logs.reader import EntryLogs
from geminga.bookie.index.index_format import row_part
from geminga.bookie.index.ledger_index import LedgerIndex, LedgerRow
from geminga.bookie.records.ledger_name import LedgerName
from geminga.bookie.records.segment_map import SegmentMap
from geminga.errors import CorruptData, StorageError

SLICE_ROWS_MAX: Final = 500
ROWS_LOOKED_AT_MAX: Final = 5000
"""Rows of dead ledgers are skipped; after this many rows the slice ends, even if it is short or empty."""
log = logging.getLogger("geminga.bookie")


class LogSlice(NamedTuple):
    """`records` are those of the rows `taken`. `rest` is the remaining part of a row that was
    taken in part.
    """

    taken: list[LedgerRow]
    rest: list[LedgerRow]
    records: SegmentMap


class LogSlices:
    """One log's living records. `damaged` is set once something could not be read; the log must then be kept
    with its remaining records.
    """

    def __init__(self, logs: EntryLogs, index: LedgerIndex, log_id: int, slice_bytes: int) -> None:
        self.damaged = False
        self.log_id = log_id
        self.names: dict[int, LedgerName] = {}
        """The names of ledgers in the log, as far as the log has them. The first slice fills this."""
        self._logs = logs
        self._index = index
        self._slice_bytes = slice_bytes
        # The footer first: it lists rows in order of offset, so that a log is read from front to back.
        self._rows = self._rows_of_footer()
        self._footer_done = False
        self._carried: LedgerRow | None = None

    def next(self) -> LogSlice | None:
        """The next slice, after the previous one was moved; None after the last. Each record's checksum is
        right. Raises StorageError if the index cannot be read.
        """
        piece = LogSlice([], [], SegmentMap())
        left = self._slice_bytes
        for _ in range(ROWS_LOOKED_AT_MAX):
            # A row larger than what is left of the slice is begun in the next one.
            found, self._carried = self._carried, None
            if found is None:
                try:
                    found = next(self._rows)
                except StopIteration:
                    if piece.taken:
                        break  # what comes next looks at the index: these must have been moved before
                    # After damage the index is not asked: the rows that it still has in this log are those
                    # that could not be copied, and each would be read and reported once more.
                    if self._footer_done or self.damaged:
                        return None
                    self._footer_done = True
                    self._rows = self._rows_of_index()
                    continue
            if found is None:
                continue
            ledger_id, row = found
            fitting = bisect_right(row.ends, left)
            if not fitting:
                if piece.taken:
                    self._carried = found
                    break
                fitting = 1
            taken = LedgerRow(ledger_id, row_part(row, row.first, row.first + fitting - 1))
            if not self._load(taken, piece.records):
                continue
            piece.taken.append(taken)
            left -= taken.row.ends[-1]
            if fitting < len(row.ends):
                rest = LedgerRow(ledger_id, row_part(row, row.first + fitting, row.last))
                piece.rest.append(rest)
                self._carried = rest
                break
            if len(piece.taken) >= SLICE_ROWS_MAX:
                break
        return piece

    def give_up(self, error: StorageError) -> None:
        """Leave the unreadable records in the log: a reader gets the error, and an operator may
        rescue them.
        """
        self.damaged = True
        log.warning("entry log %d is not compacted in full: %s", self.log_id, error)

    def _load(self, taken: LedgerRow, records: SegmentMap) -> bool:
        ledger_id, row = taken
        try:
            segment = self._logs.load(ledger_id, row, row.first, row.last)
            if len(segment.ends) < len(row.ends):
                raise CorruptData(f"entry {segment.last + 1} of ledger {ledger_id} is damaged")
        except StorageError as error:
            # A ledger deleted while its rows were copied is no damage: its log may be gone already.
            if self._index.lives_in(ledger_id, self.log_id):
                self.give_up(error)
            return False
        records.add(segment)
        return True

    def _rows_of_footer(self) -> Iterator[LedgerRow | None]:
        """The rows that footer and index both have; None for each row that does not count."""
        index, log_id = self._index, self.log_id
        try:
            footer = self._logs.footer_bytes(log_id)
        except StorageError:
            footer = None  # what lives in it can be read, or it is reported there
        if footer is not None:
            ledgers, rows = read_footer_piecewise(footer)
            self.names = {id_: ledger.name for id_, ledger in ledgers.items() if ledger.name.topic}
            for ledger_id, row in rows:
                # Exactly this row: after a compaction or healing the index may have another one for the same
                # entries, and a copy of the old bytes must not replace it.
                living = index.lives_in(ledger_id, log_id) and index.has_row(ledger_id, row)
                yield LedgerRow(ledger_id, row) if living else None
        else:
            try:
                self.names = self._logs.names(log_id)
            except StorageError as error:
                self.give_up(error)  # the copies would be ledgers without a name

    def _rows_of_index(self) -> Iterator[LedgerRow | None]:
        """All other rows. A log may have no footer, and a rebuild may have divided its entries into other
        rows.
        """
        index, log_id = self._index, self.log_id
        for ledger_id in list(index.usage.get(log_id, ())):
            if index.lives_in(ledger_id, log_id):
                for row in index.rows(ledger_id):
                    if row.log_id == log_id and not row.lost:
                        yield LedgerRow(ledger_id, row)
            yield None
