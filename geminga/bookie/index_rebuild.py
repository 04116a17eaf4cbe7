"""A new index from the entry logs, when the old one is lost or older than what stands beside it.

Ledgers that were deleted come back, unless the index still knows better: whoever knows which ledgers there
should be deletes them again (`Bookie.ledgers`). Fences go with an index that cannot be read at all; no ledger
is written to after a restart anyway.
"""

from __future__ import annotations

from bisect import bisect_right

from geminga.bookie.entry_log_scan import read_rows
from geminga.bookie.file_names import entry_log_path
from geminga.bookie.index_format import Row, row_part
from geminga.bookie.ledger_index import LedgerIndex, LedgerRow
from geminga.disk import Disk


def rebuild_index(
    disk: Disk, directory: str, log_ids: list[int], index: LedgerIndex, *, row_entries_max: int
) -> int:
    """Fill the index anew from these logs; the number of entries found. The mark is left unset until all is
    durable, so a rebuild that is cut short is begun again. Then every journal is replayed, which adds what
    is in no log.
    """
    index.clear()
    covered: dict[int, _Covered] = {}
    entries = 0
    for log_id in log_ids:
        file = disk.open(entry_log_path(directory, log_id))
        try:
            found = read_rows(file, log_id, row_entries_max=row_entries_max)
        finally:
            file.close()
        # A flush that a crash cut short was done again: its entries lie in two logs, with the same bytes.
        rows = [
            LedgerRow(ledger_id, piece)
            for ledger_id, row in found
            for piece in covered.setdefault(ledger_id, _Covered()).add(row)
        ]
        entries += sum(len(row.ends) for _, row in rows)
        index.add_rows(rows)
    return entries


class _Covered:
    """Which entries of a ledger have a row: ascending, disjoint ranges."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def add(self, row: Row) -> list[Row]:
        """The parts of the row that are new."""
        pieces = []
        first = row.first
        while first <= row.last:
            at = bisect_right(self._firsts, first)
            if at and self._lasts[at - 1] >= first:
                first = self._lasts[at - 1] + 1
                continue
            last = min(row.last, self._firsts[at] - 1) if at < len(self._firsts) else row.last
            pieces.append(row_part(row, first, last))
            if at and self._lasts[at - 1] == first - 1:
                self._lasts[at - 1] = last
            else:
                self._firsts.insert(at, first)
                self._lasts.insert(at, last)
            first = last + 1
        return pieces
