"""Finds records in entry logs that an index does not cover.

The index says up to which position of the logs each record has a row (`LedgerIndex.covered`). Records behind
it are there for one of two reasons. A crash came between the write to a log and the index's batch: then the
journals have the same entries. Or the index is older than the logs, because a directory was copied while a
broker wrote to it, or an older index was put back: then the logs may be the only place of confirmed entries.
A log that was missing when the index was made, and is back, has no row either. A start therefore looks into
all of these records before a ledger is closed and before a log is deleted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

from geminga.bookie.entry_logs.entry_log_format import HEADER_BYTES
from geminga.bookie.entry_logs.scan import read_footer, scan_rows
from geminga.bookie.index.index_format import LogPosition, row_part
from geminga.bookie.index.ledger_index import LedgerIndex, LedgerRow
from geminga.bookie.records.entry_ranges import EntryRanges
from geminga.bookie.records.file_names import entry_log_path
from geminga.errors import StorageError
from geminga.storage.disk import Disk, File


def uncovered_rows(
    disk: Disk, directory: str, log_ids: Sequence[int], index: LedgerIndex, *, row_entries_max: int
) -> Iterator[list[LedgerRow]]:
    """The rows of all records behind the covered position, and of logs that the index does not know, log by
    log. Logs without such a record are left out. `log_ids` are the existing logs, ascending. Reads the footer
    of a closed log, and the records of another one. The log of the rows is synced when they are yielded, so
    that the index may name it. Raises StorageError.
    """
    covered = index.covered or _covered_by_rows(index)
    sizes = dict(index.kept.short)
    for log_id in log_ids:
        is_new = index.covered is not None and not _is_known(index, log_id)
        is_kept = log_id < index.kept.below and log_id not in index.dead
        if log_id < covered.log_id and not (is_new or is_kept):
            continue
        file = disk.open(entry_log_path(directory, log_id))
        try:
            size = file.size()
            # One of another length than the index was made of is another file.
            is_other = is_kept and sizes.get(log_id, size) != size
            try:
                rows = _rows_of(file, log_id, covered, row_entries_max, whole=is_new or is_kept)
            except StorageError:
                # What the index names in a kept log was counted already, and each start looks into it again.
                if log_id >= covered.log_id or not is_kept:
                    raise
                continue
            if log_id <= covered.log_id and not (is_new or is_other):
                rows = _believed(rows, log_id, covered, index)
            if rows:
                file.sync()
                yield rows
        finally:
            file.close()


def _rows_of(
    file: File, log_id: int, covered: LogPosition, row_entries_max: int, *, whole: bool
) -> list[LedgerRow]:
    """The rows of records behind the covered position, or of the whole log."""
    start = covered.offset if log_id == covered.log_id and not whole else HEADER_BYTES
    return _rows_from(file, log_id, start, row_entries_max) if file.size() > start else []


def _believed(
    rows: list[LedgerRow], log_id: int, covered: LogPosition, index: LedgerIndex
) -> list[LedgerRow]:
    """Rows where those of deleted ledgers may be gone from the index, states included: only those of ledgers
    that it still has. That is so before the covered position, in a log that is kept, since it may have been
    replaced by a whole copy; and in the newest log of an earlier version, which wrote no position.
    """
    end = covered.offset if log_id == covered.log_id and index.covered is not None else sys.maxsize
    known = index.ledgers()
    return [row for row in rows if row.ledger_id in known or row.row.offset >= end]


def _is_known(index: LedgerIndex, log_id: int) -> bool:
    return bool(index.usage.get(log_id)) or log_id in index.dead


def _rows_from(file: File, log_id: int, start: int, row_entries_max: int) -> list[LedgerRow]:
    footer = read_footer(file)
    if footer is not None:
        return [LedgerRow(ledger_id, row) for ledger_id, row in footer.rows if row.offset >= start]
    # Behind a damaged record too: each whole record there was confirmed once.
    return scan_rows(file, log_id, row_entries_max=row_entries_max, holes=[], start=start)


def _covered_by_rows(index: LedgerIndex) -> LogPosition:
    newest = index.next_log_id - 1
    last = index.last_rows_in({newest}).get(newest)
    return LogPosition(newest, last.row.offset + last.row.ends[-1] if last is not None else HEADER_BYTES)


class UnknownEntries:
    """The entries of some rows that an index has no row for."""

    def __init__(self, index: LedgerIndex) -> None:
        self._index = index
        self._known: dict[int, EntryRanges] = {}
        """For each ledger that was asked about; the rows of a ledger are read once."""

    def rows(self, rows: Iterable[LedgerRow]) -> list[LedgerRow]:
        """The parts of these rows with unknown entries of ledgers that are not deleted; they are known from
        now on.
        """
        return [
            LedgerRow(ledger_id, row_part(row, first, last))
            for ledger_id, row in rows
            for first, last in self.take(ledger_id, row.first, row.last)
        ]

    def take(self, ledger_id: int, first: int, last: int) -> list[tuple[int, int]]:
        """(first, last) of each unknown part of these entries; none of a deleted ledger. They are known from
        now on.
        """
        if self._index.is_deleted(ledger_id):
            return []
        known = self._known.get(ledger_id)
        if known is None:
            known = self._known[ledger_id] = self._ranges(ledger_id)
        return known.add(first, last)

    def _ranges(self, ledger_id: int) -> EntryRanges:
        known = EntryRanges()
        for row in self._index.rows(ledger_id):
            known.add(row.first, row.last)
        return known
