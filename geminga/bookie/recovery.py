"""Bringing a bookie's directory back after any end of its process.

The journal from the mark on is replayed into a write cache, which is flushed like any other; what the index
has already is skipped, so a second replay changes nothing. When this is done all that will be served is in
synced entry logs and in the index: nothing that a reader sees can vanish later.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from geminga.bookie.entry_log_writer import EntryLogWriter
from geminga.bookie.entry_logs import EntryLogs
from geminga.bookie.index_format import DELETED, Row
from geminga.bookie.index_rebuild import rebuild_index
from geminga.bookie.journal_files import JournalFiles, JournalPosition
from geminga.bookie.journal_format import FileHeader, Run
from geminga.bookie.journal_inventory import JournalInventory
from geminga.bookie.journal_scan import Damage, JournalScan
from geminga.bookie.ledger_index import LedgerIndex, LedgerRow
from geminga.bookie.missing_logs import find_moved_entries
from geminga.bookie.records import Segment
from geminga.bookie.segment_map import SegmentMap
from geminga.bookie.settings import BookieSettings
from geminga.disk import Disk


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What `Bookie.open` found. Counts of this one start."""

    journals_read: int = 0
    groups_read: int = 0
    entries_replayed: int = 0
    entries_known: int = 0
    """Met in the journal and skipped, because the index had them already."""
    entries_of_deleted_ledgers: int = 0
    entries_lost: int = 0
    """Known to have been durable once, and damaged now."""
    torn_bytes: int = 0
    """Of a last group that was never promised, and was cut."""
    damages: tuple[Damage, ...] = ()
    headers_restored: tuple[str, ...] = ()
    """Journals with a damaged header that were read all the same: by its copy, or by what their groups
    say.
    """
    index_rebuilt: str = ""
    """Why the index was made anew from the entry logs, if it was."""
    entries_indexed: int = 0
    """Found in entry logs by that."""
    entries_moved: int = 0
    """Found in another log than the index named, after it was replaced by an old copy."""
    logs_missing: tuple[int, ...] = ()
    """Entry logs that the index names and that are not there; reads of what they held fail."""

    def __str__(self) -> str:
        """What is not zero, for the log."""
        found = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value:
                shown = "; ".join(map(str, value)) if isinstance(value, tuple) else value
                found.append(f"{field.name.replace('_', ' ')}: {shown}")
        return ", ".join(found) or "nothing to do"

    @property
    def clean(self) -> bool:
        """Nothing had to be replayed, cut or given up."""
        return not (
            self.entries_replayed
            or self.torn_bytes
            or self.damages
            or self.headers_restored
            or self.index_rebuilt
            or self.entries_moved
            or self.logs_missing
        )


class Recovery:
    """One replay. Blocking; call `run` once, then `report` says what happened."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        settings: BookieSettings,
        index: LedgerIndex,
        logs: EntryLogs,
        writer: EntryLogWriter,
    ) -> None:
        """`directory` is the journal's."""
        self._disk = disk
        self._directory = directory
        self._settings = settings
        self._index = index
        self._entry_logs = logs
        self._logs = writer
        self._cache = SegmentMap()
        self._lost: list[tuple[Run, str]] = []
        self._last: dict[int, int] = {}
        self._counts = dict.fromkeys(("groups", "replayed", "known", "deleted", "lost", "torn"), 0)
        self._damages: list[Damage] = []
        self._headers_restored: list[str] = []
        self._journals = 0
        self._index_rebuilt = ""
        self._entries_indexed = 0
        self._entries_moved = 0
        self._logs_missing: tuple[int, ...] = ()

    @property
    def report(self) -> RecoveryReport:
        counts = self._counts
        return RecoveryReport(
            journals_read=self._journals,
            groups_read=counts["groups"],
            entries_replayed=counts["replayed"],
            entries_known=counts["known"],
            entries_of_deleted_ledgers=counts["deleted"],
            entries_lost=counts["lost"],
            torn_bytes=counts["torn"],
            damages=tuple(self._damages),
            headers_restored=tuple(self._headers_restored),
            index_rebuilt=self._index_rebuilt,
            entries_indexed=self._entries_indexed,
            entries_moved=self._entries_moved,
            logs_missing=self._logs_missing,
        )

    def run(self) -> JournalFiles:
        """Check the index, replay, flush, start a new journal. After a StorageError run another one."""
        journals = JournalInventory(
            self._disk,
            self._directory,
            file_bytes=self._settings.journal_file_bytes,
            alignment=self._settings.journal_alignment_bytes,
        )
        self._check_index(journals)
        needed_from = self._index.mark
        self._damages = journals.damages(needed_from)
        self._headers_restored = journals.restored(needed_from)
        for header in journals.readable(needed_from):
            self._replay(header, journals)
        mark = JournalPosition(max(journals.last_id, needed_from.journal_id) + 1, 0)
        self._flush(mark)
        return JournalFiles(
            self._disk,
            self._directory,
            self._settings,
            journal_id=mark.journal_id,
            previous=JournalPosition(0, 0),
            free=journals.spent(self._damages, needed_from),
        )

    def _check_index(self, journals: JournalInventory) -> None:
        mark, log_ids = self._index.mark, self._entry_logs.ids()
        if not mark.journal_id:
            # Before the first mark nothing is ever flushed, so there can be no log.
            self._index_rebuilt = self._index.rebuild_reason or ("it was lost" if log_ids else "")
        elif journals.starts_after(mark):
            self._index_rebuilt = "it is older than the journal"
        if not self._index_rebuilt and self._missing(log_ids):
            self._entries_moved = find_moved_entries(
                self._disk,
                self._entry_logs.directory,
                log_ids,
                self._index,
                row_entries_max=self._settings.row_entries_max,
            )
        self._logs_missing = self._missing(log_ids)
        if self._index_rebuilt:
            self._entries_indexed = rebuild_index(
                self._disk,
                self._entry_logs.directory,
                log_ids,
                self._index,
                row_entries_max=self._settings.row_entries_max,
            )

    def _missing(self, log_ids: list[int]) -> tuple[int, ...]:
        named = {log_id for log_id, ledgers in self._index.usage.items() if ledgers}
        return tuple(sorted(named - set(log_ids)))

    def _replay(self, header: FileHeader, journals: JournalInventory) -> None:
        mark = self._index.mark
        with journals.open(header.journal_id) as file:
            scan = JournalScan(file, header, synced_end=journals.synced_end(header.journal_id, mark))
            self._journals += 1
            for group in scan.groups(mark.offset if header.journal_id == mark.journal_id else 0):
                self._counts["groups"] += 1
                for segment in group.segments:
                    self._take(segment)
                if self._cache.bytes >= self._settings.write_cache_bytes // 2:
                    # The mark stays: a crash from here on replays all of it again and skips what is indexed.
                    self._flush(mark)
        self._damages += scan.damages
        self._counts["torn"] += scan.torn_bytes
        for damage in scan.damages:
            self._lost += [(run, str(damage)) for run in damage.lost]

    def _take(self, segment: Segment) -> None:
        ledger_id = segment.ledger_id
        state = self._index.states.get(ledger_id)
        if state is not None and state.kind == DELETED:
            self._counts["deleted"] += len(segment.ends)
            return
        last = self._last_entry_id(ledger_id)
        if segment.first <= last:
            known = min(last, segment.last) - segment.first + 1
            self._counts["known"] += known
            if segment.last <= last:
                return
            segment = segment.part(last + 1, segment.last)
        self._cache.add(segment)
        self._last[ledger_id] = segment.last
        self._counts["replayed"] += len(segment.ends)

    def _last_entry_id(self, ledger_id: int) -> int:
        last = self._last.get(ledger_id)
        if last is None:
            last = self._last[ledger_id] = self._index.last_entry_id(ledger_id)
        return last

    def _flush(self, mark: JournalPosition) -> None:
        rows = self._logs.write(self._cache, {})
        final = mark != self._index.mark
        if final:
            rows += self._lost_rows()
        self._cache = SegmentMap()
        self._index.flushed(rows, mark)

    def _lost_rows(self) -> list[LedgerRow]:
        """Rows that make a read of a destroyed entry fail with its place, and keep its id from looking
        unused.
        """
        rows = []
        for run, damage in self._lost:
            state = self._index.states.get(run.ledger_id)
            if state is not None and state.kind == DELETED:
                continue
            missing = [
                entry_id
                for entry_id in range(run.first, run.first + run.entries)
                if self._index.find(run.ledger_id, entry_id) is None
            ]
            self._counts["lost"] += len(missing)
            rows += [LedgerRow(run.ledger_id, Row(entry_id, 0, 0, range(1), damage)) for entry_id in missing]
        return rows
