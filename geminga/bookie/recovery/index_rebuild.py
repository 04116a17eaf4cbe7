"""Rebuilds an index from the entry logs, when the old one is lost or older than the files beside it.

Deleted ledgers come back unless the index still knows of their deletion. The start compares them with the
metadata and sets them aside (`LedgerInventory.unsorted`). An index that cannot be read at all takes the
fences with it, but no ledger is written to after a restart anyway.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from geminga.bookie.entry_logs.scan import read_footer, scan_rows
from geminga.bookie.index.index_format import Row, row_part
from geminga.bookie.index.ledger_index import LedgerIndex, LedgerRow
from geminga.bookie.records.entry_ranges import EntryRanges
from geminga.bookie.records.file_names import entry_log_path
from geminga.storage.disk import Disk, File

log = logging.getLogger("geminga.bookie")


class Rebuilt(NamedTuple):
    entries: int
    """The entries that were found before any damage."""
    behind_damage: list[LedgerRow]
    """Rows of records behind a damaged one, which are not in the index yet."""


def rebuild_index(
    disk: Disk, directory: str, log_ids: list[int], index: LedgerIndex, *, row_entries_max: int
) -> Rebuilt:
    """Fill the index from these logs. The marks are unset until all is durable, so a start repeats an
    interrupted rebuild. Every journal is replayed afterwards, which adds the entries that are in no log; the
    rows behind damage are added after that. The replay takes a ledger's last entry in the index for proof
    that the earlier ones are there, so rows behind a gap would keep the journals from filling it.
    """
    # Rows of a damaged index are not mixed with those of the logs: they may name logs that are gone, and
    # nothing tells a stale row from a current one.
    index.clear()
    covered: dict[int, EntryRanges] = {}
    entries = 0
    behind: list[LedgerRow] = []
    # In order of ids: a compacted or repeated entry lies in several logs with the same bytes, so the first
    # found is as good as any, and the order makes two rebuilds give the same index.
    for log_id in log_ids:
        file = disk.open(entry_log_path(directory, log_id))
        try:
            found, damaged = _rows_of(file, log_id, row_entries_max)
        finally:
            file.close()
        # A flush that a crash cut short was done again: its entries lie in two logs, with the same bytes.
        rows = [
            LedgerRow(ledger_id, piece)
            for ledger_id, row in found
            for piece in _new_parts(covered.setdefault(ledger_id, EntryRanges()), row)
        ]
        entries += sum(len(row.ends) for _, row in rows)
        index.add_rows(rows)
        behind += damaged
    return Rebuilt(entries, behind)


def _rows_of(file: File, log_id: int, row_entries_max: int) -> tuple[list[LedgerRow], list[LedgerRow]]:
    """The rows of a log: up to the first damaged record, and behind it."""
    # A footer has a checksum and was written after its records were synced. It saves reading 256 MiB for a
    # log.
    footer = read_footer(file)
    if footer is not None:
        return [LedgerRow(ledger_id, row) for ledger_id, row in footer.rows], []
    holes: list[int] = []
    rows = scan_rows(file, log_id, row_entries_max=row_entries_max, holes=holes)
    if not holes:
        return rows, []
    log.warning("%s: the record at offset %d is damaged; those behind it are read", file.path, holes[0])
    # Before the hole the log is a flush in order. Behind it an entry's predecessor may be the damaged one.
    behind = [found for found in rows if found.row.offset > holes[0]]
    return rows[: len(rows) - len(behind)], behind


def _new_parts(covered: EntryRanges, row: Row) -> list[Row]:
    """The parts of the row that were not covered yet; they are covered from now on."""
    return [row_part(row, first, last) for first, last in covered.add(row.first, row.last)]
