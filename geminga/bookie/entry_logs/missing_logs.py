"""An index that names entry logs which are not there. It may be an old copy, from before a compaction: then
what it seeks lies in another log. Or a log was lost: then a journal that was kept may have its entries still.
"""

from __future__ import annotations

from collections.abc import Container

from geminga.bookie.entry_logs.scan import read_rows
from geminga.bookie.index.index_format import Row, row_part
from geminga.bookie.index.ledger_index import LedgerIndex, LedgerRow
from geminga.bookie.records.file_names import entry_log_path
from geminga.storage.disk import Disk


def find_moved_entries(
    disk: Disk, directory: str, log_ids: list[int], index: LedgerIndex, *, row_entries_max: int
) -> int:
    """Look in all logs for what the index has in logs that are missing, and correct its rows: durable on
    return. The number of entries found; the rest stays as it is, and reads of it fail.
    """
    there = set(log_ids)
    sought: dict[int, list[Row]] = {}
    for ledger_id in {
        ledger_id for log_id, ledgers in index.usage.items() if log_id not in there for ledger_id in ledgers
    }:
        sought[ledger_id] = [row for row in index.rows(ledger_id) if row.log_id not in there and not row.lost]
    copies: dict[int, list[Row]] = {ledger_id: [] for ledger_id in sought}
    for log_id in log_ids if sought else ():
        file = disk.open(entry_log_path(directory, log_id))
        try:
            for ledger_id, row in read_rows(file, log_id, row_entries_max=row_entries_max):
                if ledger_id in copies:
                    copies[ledger_id].append(row)
        finally:
            file.close()
    entries = 0
    for ledger_id, rows in sought.items():
        copies[ledger_id].sort(key=lambda row: row.first)
        for row in rows:
            new = _pieces(row, copies[ledger_id])
            if new:
                last = new[-1].last
                rest = [row_part(row, last + 1, row.last)] if last < row.last else []
                index.move(
                    [LedgerRow(ledger_id, row_part(row, row.first, last))],
                    [LedgerRow(ledger_id, left) for left in rest],
                    [LedgerRow(ledger_id, piece) for piece in new],
                )
                entries += last - row.first + 1
    return entries


def gaps(index: LedgerIndex, ledger_id: int, log_ids: Container[int]) -> list[tuple[int, int]]:
    """(first, last) of the entries up to the ledger's last one that lie in none of these logs; ascending.
    Those that are known to be destroyed are no gap.
    """
    found: list[tuple[int, int]] = []
    following = 0
    for row in index.rows(ledger_id):
        if row.first > following:
            found.append((following, row.first - 1))
        if not row.lost and row.log_id not in log_ids:
            found.append((row.first, row.last))
        following = row.last + 1
    return found


def replace_missing(index: LedgerIndex, new: LedgerRow, log_ids: Container[int]) -> int:
    """Put a row, whose entries are durable in a log, in the place of what the index has of them in logs that
    are missing: durable on return. The number of entries that were named there; if 0, nothing was done.
    """
    ledger_id, row = new
    taken, rest = [], []
    for old in index.rows(ledger_id):
        if old.lost or old.log_id in log_ids or old.last < row.first or old.first > row.last:
            continue
        part = row_part(old, max(old.first, row.first), min(old.last, row.last))
        taken.append(LedgerRow(ledger_id, part))
        if old.first < part.first:
            rest.append(LedgerRow(ledger_id, row_part(old, old.first, part.first - 1)))
        if part.last < old.last:
            rest.append(LedgerRow(ledger_id, row_part(old, part.last + 1, old.last)))
    if taken:
        index.move(taken, rest, [new])
    return sum(len(each.row.ends) for each in taken)


def _pieces(row: Row, copies: list[Row]) -> list[Row]:
    """Parts of copies, in order of their first entry, that cover the row from its beginning without a
    gap.
    """
    pieces: list[Row] = []
    first = row.first
    for copy in copies:
        if copy.first <= first <= copy.last and first <= row.last:
            pieces.append(row_part(copy, first, min(copy.last, row.last)))
            first = pieces[-1].last + 1
    return pieces
