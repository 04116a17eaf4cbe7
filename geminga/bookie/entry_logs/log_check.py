"""Checks the records of an entry log, a piece at a time.

Only records that the index names are checked, because no reader can reach others. Blocking; one thread at a
time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from geminga.bookie.entry_logs.reader import EntryLogs
from geminga.bookie.index.index_format import row_part
from geminga.bookie.index.ledger_index import LedgerIndex, LedgerRow
from geminga.bookie.records.entry_ranges import runs_of
from geminga.bookie.records.records import Run

PIECE_BYTES: Final = 256 << 10
# The thread holds the interpreter for the Python part of each record, and the loop waits meanwhile.
PIECE_ENTRIES_MAX: Final = 500
"""Limits a piece to about a millisecond of the interpreter, even with small entries."""
LOOKED_AT_MAX: Final = 500
"""The limit of rows and ledgers that one piece examines, even if none counts."""


class CheckedPiece(NamedTuple):
    bytes: int
    entries: int
    damaged: list[Run]
    """Runs whose records did not match at the offset that the index had for them a moment ago."""


class LogCheck:
    """One pass over a log that is no longer written to."""

    def __init__(self, logs: EntryLogs, index: LedgerIndex, log_id: int) -> None:
        self._logs = logs
        self._index = index
        self._log_id = log_id
        self._parts = self._parts_of_rows()

    def next(self) -> CheckedPiece | None:
        """The next piece: 256 KiB, or one longer entry. None after the last piece. Raises StorageError if
        the log or the index cannot be read; the next call continues behind that point.
        """
        read_bytes = entries = 0
        damaged: list[Run] = []
        # A log of deleted ledgers has rows without end that yield nothing; the bound keeps one step short
        # there too.
        for _ in range(LOOKED_AT_MAX):
            if read_bytes >= PIECE_BYTES or entries >= PIECE_ENTRIES_MAX:
                break
            try:
                part = next(self._parts)
            except StopIteration:
                if not entries:
                    return None
                break
            if part is None:
                continue
            ledger_id, row = part
            # A compaction may move the row meanwhile. Then "damaged" means "its log is gone", and `Healing`
            # asks the index again before it believes that.
            found = self._logs.damaged_entries(ledger_id, row)
            damaged += [Run(ledger_id, first, last) for first, last in runs_of(found)]
            read_bytes += row.ends[-1]
            entries += len(row.ends)
        return CheckedPiece(read_bytes, entries, damaged)

    def _parts_of_rows(self) -> Iterator[LedgerRow | None]:
        """Parts of rows that fit into a piece; None for each ledger or row that does not count."""
        index, log_id = self._index, self._log_id
        for ledger_id in sorted(index.usage.get(log_id, ())):
            yield None
            for row in index.rows(ledger_id) if index.lives_in(ledger_id, log_id) else ():
                if row.log_id != log_id or row.lost:
                    yield None
                    continue
                at, begin = 0, 0
                while at < len(row.ends):
                    fitting = bisect_right(row.ends, begin + PIECE_BYTES)
                    end = max(at + 1, min(fitting, at + PIECE_ENTRIES_MAX))
                    yield LedgerRow(ledger_id, row_part(row, row.first + at, row.first + end - 1))
                    at, begin = end, row.ends[end - 1]
