"""Searches the journals for given entries while a running bookie writes and reuses these files.

A file may be renamed, reused or deleted meanwhile; the search skips it then. Every found record is checked:
its checksum covers its ledger and its entry id, and no id was ever given to two entries.
"""

from __future__ import annotations

from collections.abc import Sequence

from geminga.bookie.entry_logs.missing_logs import fill_gaps
from geminga.bookie.journal.headers import find_header
from geminga.bookie.journal.scan import JournalScan
from geminga.bookie.records.file_names import JOURNAL_SUFFIX, journal_path, parse_id
from geminga.bookie.records.records import Run
from geminga.bookie.records.segment_map import SegmentMap
from geminga.errors import StorageError
from geminga.storage.disk import Disk


class JournalSearch:
    """Searches the journals of one directory for some runs. Call `step` until it returns False, then read
    `found`.

    Blocking; keeps the found entries in memory.
    """

    def __init__(self, disk: Disk, directory: str, wanted: Sequence[Run]) -> None:
        self.found = SegmentMap()
        self.oldest: dict[int, int] = {}
        """For each ledger that is searched for, the first entry that was found; earlier entries are in no
        journal.
        """
        self.is_whole = True
        """True if no file was skipped: entries that were not found are in no journal."""
        self._disk = disk
        self._directory = directory
        self._gaps: dict[int, list[tuple[int, int]]] = {}
        for run in sorted(wanted):
            self._gaps.setdefault(run.ledger_id, []).append((run.first, run.last))
        # `parse_id` and not `ids_in`: a running bookie must not stop over a file that was put there by hand.
        ids = (parse_id(name, JOURNAL_SUFFIX) for name in disk.list(directory))
        self._left = sorted(id_ for id_ in ids if id_ is not None)

    def step(self) -> bool:
        """Read one more file, the newest first. Returns False if no further file is needed or left."""
        if not self._left or not any(self._gaps.values()):
            return False
        try:
            # The newest first: damage is mostly met by the scrub, which begins with the newest logs, too.
            self._search(self._left.pop())
        except StorageError:
            # Not an error: the journal is in use, and a file that went away between listing and opening is
            # usual.
            self.is_whole = False
        return True

    def _search(self, journal_id: int) -> None:
        file = self._disk.open(journal_path(self._directory, journal_id))
        try:
            # A recycled file has its new header before its first group, so what is read is either all of one
            # journal or fails its checksums.
            header = find_header(file, journal_id).header
            if header is None:
                return
            # Without a synced end the scan may also yield intact records of the group that is being written;
            # the entries that are sought are older.
            for group in JournalScan(file, header, synced_end=None).groups(0):
                for segment in group.segments:
                    gaps = self._gaps.get(segment.ledger_id)
                    if gaps is None:
                        continue
                    # Ids only grow, so entries before the oldest that is left will not turn up later:
                    # `Healing` need not search all journals again for them at each pass of the scrub.
                    oldest = self.oldest.get(segment.ledger_id, segment.first)
                    self.oldest[segment.ledger_id] = min(oldest, segment.first)
                    for part in fill_gaps(gaps, segment):
                        self.found.add(part)
        finally:
            file.close()
