"""Repairs an index that names missing bytes: entry logs that are gone, or shorter than its rows expect.

The index may be an old copy, from before a compaction; another log then has the entries. Or a log was lost
or truncated; a journal that was kept may then have the entries. The end that a crash cuts off a log is no
such case, because the index never names unsynced records.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping

from geminga.bookie.entry_logs.scan import read_rows
from geminga.bookie.index.index_format import Row, row_part
from geminga.bookie.index.ledger_index import LedgerIndex, LedgerRow
from geminga.bookie.records.file_names import entry_log_path
from geminga.bookie.records.records import Segment
from geminga.errors import StorageError
from geminga.storage.disk import Disk

Lengths = Mapping[int, int]
"""By log id, the lengths of logs that are shorter than the index expects; 0 for missing logs. Any other log
has all records that the index names in it.
"""


def missing_part(row: Row, lengths: Lengths) -> Row | None:
    """The entries of a row that its log does not reach: all of them, its last ones, or None."""
    length = lengths.get(row.log_id)
    # A "lost" row has no log: its entries were destroyed in the journal, and no log was ever written for
    # them.
    if length is None or row.lost or row.offset + row.ends[-1] <= length:
        return None
    # Of a log that was cut short the records before the cut are still right, so a row may be missing in part.
    return row_part(row, row.first + bisect_right(row.ends, length - row.offset), row.last)


def missing_rows(index: LedgerIndex, lengths: Lengths) -> Iterator[LedgerRow]:
    """The missing parts of all rows, ledger by ledger, in order of entries."""
    ledger_ids = {ledger_id for log_id in lengths for ledger_id in index.usage.get(log_id, ())}
    for ledger_id in sorted(ledger_ids):
        for row in index.rows(ledger_id):
            part = missing_part(row, lengths)
            if part is not None:
                yield LedgerRow(ledger_id, part)


def find_moved_entries(
    disk: Disk,
    directory: str,
    log_ids: list[int],
    lengths: Lengths,
    index: LedgerIndex,
    *,
    row_entries_max: int,
) -> int:
    """Search all logs for the entries that the index has in missing or truncated logs, and correct the rows:
    durable on return. Returns the number of entries found. Other rows are unchanged, and reads of their
    entries fail.
    """
    # Collected first: all logs have to be read once for any missing entry, and once is enough for all of
    # them.
    sought: dict[int, list[Row]] = {}
    for ledger_id, row in missing_rows(index, lengths):
        sought.setdefault(ledger_id, []).append(row)
    copies: dict[int, list[Row]] = {ledger_id: [] for ledger_id in sought}
    for log_id in log_ids if sought else ():
        file = disk.open(entry_log_path(directory, log_id))
        try:
            try:
                found = read_rows(file, log_id, row_entries_max=row_entries_max)
            except StorageError:
                if log_id not in lengths:
                    raise
                continue  # it is one of those that are sought for
            for ledger_id, row in found:
                # Rows of all other ledgers are dropped log by log: those of hundreds of logs need not fit
                # into memory.
                if ledger_id in copies:
                    copies[ledger_id].append(row)
        finally:
            file.close()
    entries = 0
    for ledger_id, rows in sought.items():
        # Compaction may have moved one row's entries in several pieces, to several logs.
        copies[ledger_id].sort(key=lambda row: row.first)
        for row in rows:
            new = [LedgerRow(ledger_id, piece) for piece in _pieces(row, copies[ledger_id])]
            if new:
                entries += _put_in_place(index, ledger_id, row.first, new[-1].row.last, lengths, new)
    return entries


def gaps(index: LedgerIndex, ledger_id: int, lengths: Lengths) -> list[tuple[int, int]]:
    """(first, last) of the entries up to the ledger's last one that are in no log; ascending. Entries that
    are known to be destroyed are no gap.
    """
    found: list[tuple[int, int]] = []
    following = 0
    for row in index.rows(ledger_id):
        # A hole between rows: the index was rebuilt from logs of which one is lost, so that it names nothing
        # there.
        if row.first > following:
            found.append((following, row.first - 1))
        part = missing_part(row, lengths)
        if part is not None:
            found.append((part.first, part.last))
        following = row.last + 1
    return found


def fill_gaps(gaps: list[tuple[int, int]], segment: Segment) -> list[Segment]:
    """The parts of a segment that are in gaps of its ledger, without the rest of its buffer. The gaps shrink
    by these parts.
    """
    parts = []
    # From the end, since each step may change the number of gaps behind it.
    for number in range(len(gaps) - 1, -1, -1):
        begin, end = gaps[number]
        first, last = max(begin, segment.first), min(end, segment.last)
        if first <= last:
            # Detached: a few entries would otherwise keep a whole journal group in memory for as long as the
            # part is held.
            parts.append(segment.part(first, last).detached())
            left = (begin, first - 1), (last + 1, end)
            gaps[number : number + 1] = [gap for gap in left if gap[0] <= gap[1]]
    return parts


def replace_missing(index: LedgerIndex, new: LedgerRow, lengths: Lengths) -> int:
    """Replace the rows of entries in missing or truncated logs by a row whose entries are durable in a log:
    durable on return. Returns the number of entries whose rows were replaced; if 0, nothing was done.
    """
    ledger_id, row = new
    return _put_in_place(index, ledger_id, row.first, row.last, lengths, [new])


def replace_rows(index: LedgerIndex, new: LedgerRow) -> set[int]:
    """As `replace_missing`, for all rows of these entries, which are damaged in the logs that the rows name.
    Returns these logs.
    """
    ledger_id, row = new
    overlapping = [old for old in index.rows(ledger_id) if old.first <= row.last and old.last >= row.first]
    _put_in_place(index, ledger_id, row.first, row.last, None, [new])
    return {old.log_id for old in overlapping if not old.lost}


def _put_in_place(
    index: LedgerIndex, ledger_id: int, first: int, last: int, lengths: Lengths | None, new: list[LedgerRow]
) -> int:
    """Remove the missing ones of the entries first..last from their rows, or all of them without `lengths`,
    and add the new rows.
    """
    taken, rest = [], []
    for old in index.rows(ledger_id):
        # A row for destroyed entries is not replaced: its text says why a read fails, and no log has them.
        whole = None if old.lost else old
        missing = whole if lengths is None else missing_part(old, lengths)
        if missing is None or missing.last < first or missing.first > last:
            continue
        part = row_part(old, max(missing.first, first), min(missing.last, last))
        taken.append(LedgerRow(ledger_id, part))
        if old.first < part.first:
            rest.append(LedgerRow(ledger_id, row_part(old, old.first, part.first - 1)))
        if part.last < old.last:
            rest.append(LedgerRow(ledger_id, row_part(old, part.last + 1, old.last)))
    if taken:
        # One batch for all: between two batches a crash would leave entries that two rows cover, or none.
        index.move(taken, rest, new)
    return sum(len(each.row.ends) for each in taken)


def _pieces(row: Row, copies: list[Row]) -> list[Row]:
    """Parts of copies, in order of their first entry, that cover the row from its beginning
    without a gap.
    """
    pieces: list[Row] = []
    first = row.first
    # Without a gap, and from the beginning: a later part alone could not become a row, since what comes
    # before it stays where the old row says.
    for copy in copies:
        if copy.first <= first <= copy.last and first <= row.last:
            pieces.append(row_part(copy, first, min(copy.last, row.last)))
            first = pieces[-1].last + 1
    return pieces
