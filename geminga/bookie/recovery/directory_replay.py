"""One ledger directory's part of a recovery: decides whether its index can be trusted, and which entries of
the journals are new to it.

Entries from the journals go into a write cache, which is flushed like any other. Entries that the index has
already are skipped, so a second replay changes nothing.

The rule about the end of a ledger is in `finish`, and nowhere else: when it returns, each whole record in any
entry log and each whole entry in any journal has a row, unless its ledger is deleted. So
`Bookie.last_entry_id` never is less than what some file of the directory has, and a ledger that is closed at
it loses nothing. If the files had entries that the index should have known, it is older than they are: a
mismatch, after which no log is deleted (`Kept`).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set

from geminga.bookie.entry_logs.log_ends import LogEnds, check_names, log_headers, look_at_ends
from geminga.bookie.entry_logs.missing_logs import (
    fill_gaps,
    find_moved_entries,
    missing_rows,
    replace_missing,
)
from geminga.bookie.entry_logs.missing_logs import gaps as find_gaps
from geminga.bookie.entry_logs.reader import EntryLogs
from geminga.bookie.entry_logs.uncovered import UnknownEntries, uncovered_rows
from geminga.bookie.entry_logs.writer import EntryLogWriter
from geminga.bookie.index.index_format import Kept, Row
from geminga.bookie.index.ledger_index import LedgerIndex, LedgerRow
from geminga.bookie.journal.journal_format import Run
from geminga.bookie.records.entry_ranges import joined
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.records.ledger_name import LedgerName
from geminga.bookie.records.records import Run as EntryRun
from geminga.bookie.records.records import Segment
from geminga.bookie.records.segment_map import SegmentMap
from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.recovery.index_rebuild import rebuild_index
from geminga.errors import CorruptData
from geminga.storage.disk import Disk

IsOlder = Callable[[tuple[JournalPosition, ...]], bool]
"""Returns whether the journals prove that a later mark than these existed."""


class DirectoryReplay:
    """Blocking; for one recovery. `counts` has the `replayed`, `known`, `deleted` and `lost` entries."""

    def __init__(
        self,
        disk: Disk,
        settings: BookieSettings,
        index: LedgerIndex,
        logs: EntryLogs,
        writer: EntryLogWriter,
    ) -> None:
        """`settings` are the directory's share."""
        self.counts: Counter[str] = Counter()
        self.index_rebuilt = ""
        self.entries_indexed = self.entries_moved = self.entries_found = 0
        self.mismatch = ""
        """After `finish`: what this start was the first to see of index and files that are not of one moment;
        "" if they are.
        """
        self.logs_missing: tuple[int, ...] = ()
        self.logs_cut: tuple[int, ...] = ()
        """Logs that end before the last record that the index has in them."""
        self.logs_damaged: tuple[str, ...] = ()
        """Where headers, footers and trailers are damaged; such damage loses no entry."""
        self.missing: list[EntryRun] = []
        """After `finish`: the entries that the index has in logs that are missing or truncated, and those
        between others of their ledger that no file has.
        """
        self.names: dict[int, LedgerName] = {}
        """The names of the ledgers that begin in the replayed part of the journals."""
        self.path = logs.directory
        self._disk = disk
        self._settings = settings
        self._index = index
        self._logs = logs
        self._writer = writer
        self._cache = SegmentMap()
        self._last: dict[int, int] = {}
        self._lost: list[tuple[Run, str]] = []
        self._lengths: dict[int, int] = {}
        """Where the records end of logs that do not have all that the index expects; 0 for missing logs."""
        self._sizes: dict[int, int] = {}
        """The lengths of these logs' files, and of those with holes."""
        self._holes: list[LedgerRow] = []
        # Read from the index once for each ledger: `refill` is called for every segment in every journal.
        self._gaps: dict[int, list[tuple[int, int]]] = {}
        """For each ledger, the entries before its last one that are in no log and were not found in a
        journal yet.
        """
        self._log_ids: list[int] = []
        self._behind_damage: list[LedgerRow] = []
        """After a rebuild: rows of records behind damaged ones."""
        self._nowhere: list[LedgerRow] = []
        """After a rebuild: rows of the old index that lead to no bytes."""
        self._nowhere_ends: LogEnds | None = None
        self._unknown: UnknownEntries | None = None
        self._living: set[int] = set()
        self._lost_journals: set[tuple[int, int]] = set()
        self._found_journals: set[tuple[int, int]] = set()
        self._torn: set[int] = set()
        """Ledgers that may lack entries between others."""

    @property
    def marks(self) -> tuple[JournalPosition, ...]:
        """For each journal, the position from which on this directory needs it."""
        return self._index.marks

    def check_index(self, is_older: IsOlder) -> None:
        """Rebuild the index if it cannot be right; the marks are (0, 0) then. Raises MisnamedLogs before
        it writes.
        """
        log_ids = self._log_ids = self._logs.ids()
        # An index without a mark beside existing logs was lost or put aside. Taken for current it would serve
        # none of their entries, and the next garbage collection would delete the logs, in which it knows no
        # living ledger.
        if not any(self.marks[0]):
            # Before the first mark nothing is ever flushed, so there can be no log.
            self.index_rebuilt = self._index.rebuild_reason or ("it was lost" if log_ids else "")
        # An index that was restored from a copy is sound by itself. The journals tell its age as long as they
        # reach back to its mark; `finish` asks the entry logs.
        elif is_older(self.marks):
            self.index_rebuilt = "it is older than the journal"
            self._note_nowhere()
        directory, entries_max = self._logs.directory, self._settings.row_entries_max
        # The reason is kept in the index until the first mark, so a crash during the rebuild begins it again.
        if self.index_rebuilt:
            check_names(directory, log_headers(self._disk, directory, log_ids))
            self.notice(f"the index was rebuilt: {self.index_rebuilt}")
            rebuilt = rebuild_index(self._disk, directory, log_ids, self._index, row_entries_max=entries_max)
            self.entries_indexed, self._behind_damage = rebuilt
            return
        # Not after a rebuild: its rows come from the logs as they are, so none can lead beyond a log's end.
        ends = look_at_ends(self._disk, directory, log_ids, self._index)
        self._lengths, self._sizes, remarks, self._holes = ends
        self.logs_damaged = tuple(remarks)
        if self._lengths or self._holes:
            if not {*self._sizes.items()} <= {*self._index.kept.short}:
                self.notice("the index names entries that entry logs do not have")
            self.entries_moved = find_moved_entries(
                self._disk, directory, log_ids, self._lengths, self._index, row_entries_max=entries_max
            )

    def _note_nowhere(self) -> None:
        """Before a rebuild of an old but sound index: what only its rows tell of. Its log is not among the
        files, which may be those of a copy. Without these rows a ledger would be closed at the last entry
        that a file has, and nothing would say that there were more. A crash during the rebuild forgets them.
        """
        with contextlib.suppress(CorruptData):  # then it is not sound
            ends = look_at_ends(self._disk, self._logs.directory, self._log_ids, self._index)
            self._nowhere = list(missing_rows(self._index, ends.lengths))
            self._nowhere_ends = ends

    def _add_nowhere(self, unknown: UnknownEntries) -> None:
        """Add what no log and no journal had of these rows: they lead to logs that are missing or cut."""
        found = unknown.rows(self._nowhere)
        if found and self._nowhere_ends is not None:
            self._index.add_rows(found)
            named = {row.log_id for _, row in found}
            ends = self._nowhere_ends
            self._lengths = {log_id: end for log_id, end in ends.lengths.items() if log_id in named}
            self._sizes = {log_id: size for log_id, size in ends.sizes.items() if log_id in named}

    @property
    def lengths(self) -> Mapping[int, int]:
        """Where the records end of logs that do not have all that the index expects; 0 for missing logs."""
        return self._lengths

    @property
    def keeps_files(self) -> bool:
        """Whether nothing that is there may be deleted or overwritten."""
        return bool(self._index.kept.below)

    @property
    def wants_refill(self) -> bool:
        """Whether the index has entries that are in no log: journals from before the marks may have them."""
        return any(self._index.usage.get(log_id) for log_id in self._lengths)

    def take(self, segment: Segment) -> None:
        """Add entries of a ledger that belongs here, from behind the marks."""
        ledger_id = segment.ledger_id
        if self._index.is_deleted(ledger_id):
            # The state "deleted" outlives the rows for this one case: without it a crash would bring back a
            # topic's data that an operator had deleted.
            self.counts["deleted"] += len(segment.ends)
            return
        last = self._last_entry_id(ledger_id)
        # Entries that the index has are replayed after a crash during recovery (`flush_if_full` keeps the
        # marks) or a rebuild (marks 0). Adding them twice would leave two rows for an entry, and rows of a
        # ledger must never overlap.
        if segment.first <= last:
            known = min(last, segment.last) - segment.first + 1
            # Known is not the same as readable: the index may name a log that is gone. This copy may be the
            # last one.
            self.counts["known"] += known - self.refill(segment)
            if segment.last <= last:
                return
            segment = segment.part(last + 1, segment.last)
        # One entry of a group of 4 MiB must not keep those 4 MiB in memory; recovery has the write cache's
        # bound.
        # Its group's other entries may be another directory's, or known: they are not kept alive for it.
        if segment.first > last + 1:
            self._torn.add(ledger_id)
        self._cache.add(segment.detached())
        self._last[ledger_id] = segment.last
        self.counts["replayed"] += len(segment.ends)

    @property
    def looks_into_old_journals(self) -> bool:
        """Whether journals from before the mark may have entries that the index does not: one of them may
        have been put back after a mismatch.
        """
        return bool(self._index.kept.below or self._index.kept.journals) and not self.index_rebuilt

    def take_old(self, segment: Segment, journal: tuple[int, int]) -> None:
        """Keep what the index lacks of these entries, from a journal before the mark: its directory's number,
        and its id. Ledgers that the index does not have at all may have been deleted, and are left out, but
        for a journal that was missing before.
        """
        if self._unknown is None:
            # What came with the replay is to be known.
            self._flush(self.marks, [])
            self._unknown = UnknownEntries(self._index)
            self._living = self._index.ledgers()
        if segment.ledger_id not in self._living and journal not in self._index.kept.journals:
            return
        for first, last in self._unknown.take(segment.ledger_id, segment.first, segment.last):
            self.notice("journals from before the index's mark have entries that the index does not")
            self._cache.add(segment.part(first, last).detached())
            self._torn.add(segment.ledger_id)
            self.entries_found += last - first + 1

    def refill(self, segment: Segment) -> int:
        """Keep those of these entries, from anywhere in the journals, that should be in a log and are not;
        returns their number.
        """
        ledger_id = segment.ledger_id
        # The usual start returns here: looking for gaps reads all rows of a ledger.
        if not (self.index_rebuilt or self._lengths) or self._index.is_deleted(ledger_id):
            return 0
        gaps = self._gaps.get(ledger_id)
        if gaps is None:
            gaps = self._gaps[ledger_id] = find_gaps(self._index, ledger_id, self._lengths)
        entries = 0
        for part in fill_gaps(gaps, segment):
            self._cache.add(part)
            entries += len(part.ends)
        self.counts["replayed"] += entries
        return entries

    def lose(self, run: Run, damage: str) -> None:
        """Mark entries as destroyed; `damage` names the bytes. `finish` writes that to the index."""
        self._lost.append((run, damage))

    def flush_if_full(self) -> None:
        # A journal may be far larger than memory (the mark of one slow directory holds back all files).
        if self._cache.bytes >= self._settings.write_cache_bytes // 2:
            # The marks stay: a crash from here on replays all of it again and skips what is indexed.
            self._flush(self.marks, [])

    def finish(self, marks: tuple[JournalPosition, ...]) -> None:
        """Flush all added entries, and look into what the index does not cover. On return all that the files
        have is in entry logs and index, and nothing before `marks` is needed.
        """
        # After the journals, which have the same entries after a crash: only what they lack shows that the
        # index is older than the logs.
        self._take_uncovered()
        # Marks and lost rows go in one batch. If the marks went first, a crash in between would skip the
        # damaged group at the next start and a reader would take the missing entries for never written.
        if marks != self.marks:
            self._flush(marks, self._lost, is_last=True)
        self._look_for_missing()

    def _take_uncovered(self) -> None:
        """Add rows for the entries that logs have and neither the index nor a journal."""
        unknown: UnknownEntries | None = None
        directory, entries_max = self._logs.directory, self._settings.row_entries_max
        pieces = (
            uncovered_rows(self._disk, directory, self._log_ids, self._index, row_entries_max=entries_max)
            if not self.index_rebuilt
            else iter([self._behind_damage] if self._behind_damage else [])
        )
        for rows in pieces:
            if unknown is None:
                # The usual start has no such record, and does not come here. The marks stay: until all logs
                # were looked into, a crash begins all of this again.
                self._flush(self.marks, [])
                unknown = UnknownEntries(self._index)
            found = unknown.rows(rows)
            if found and not self.index_rebuilt:
                self.notice("entry logs have entries that neither the index nor a journal has")
            self._index.add_rows(found)
            self._torn.update(row.ledger_id for row in found)
            entries = sum(len(row.ends) for _, row in found)
            if self.index_rebuilt:
                self.entries_indexed += entries
            else:
                self.entries_found += entries
        if self._nowhere:
            self._flush(self.marks, [])
            self._add_nowhere(unknown or UnknownEntries(self._index))

    def miss(self, journal: tuple[int, int], path: str) -> None:
        """The replay needed this journal, and it is not there: its directory's number, and its id."""
        self._lost_journals.add(journal)
        self.notice(f"{path} is not there, and the index's mark lies in it or before it")

    def find(self, journals: Set[tuple[int, int]]) -> None:
        """These journals are there, and were read: their directory's number, and their id."""
        self._found_journals |= journals

    def notice(self, mismatch: str) -> None:
        """Keep all logs and journals from now on: this start is the first to see a mismatch. Durable on
        return.
        """
        if not self.mismatch:
            self.mismatch = mismatch
            # Before the index is mended: after a crash in between a mended index shows no mismatch any more.
            kept = self._index.kept._replace(below=self._writer.position.log_id)
            # A rebuild says by itself, with its first mark, that its ledgers are unsorted.
            self._index.keep(kept, unsorted=not self.index_rebuilt)

    def _kept(self) -> Kept | None:
        """What the index has to note about logs that are kept; None if that has not changed."""
        # Everything that is there now, what this recovery has written included: entries of a journal that is
        # used again later are only there.
        below = self._writer.position.log_id + 1 if self.mismatch else self._index.kept.below
        short = dict(self._sizes)
        if below:
            # A log that was not whole when the index was made may be replaced by a whole copy.
            sizes = {log_id: self._logs.size_bytes(log_id) for log_id in self._log_ids}
            known = {log_id: size for log_id, size in self._index.kept.short if sizes.get(log_id) == size}
            short = known | self._unclosed(sizes) | short
        journals = {*self._index.kept.journals, *self._lost_journals}
        if not below:
            # Read by this start: all that they have is in entry logs.
            journals -= self._found_journals
        kept = Kept(below, tuple(sorted(short.items())), tuple(sorted(journals)))
        return kept if kept != self._index.kept else None

    def _unclosed(self, sizes: Mapping[int, int]) -> dict[int, int]:
        """After a rebuild: the lengths of logs without a footer, or with a damaged one."""
        if not self.index_rebuilt:
            return {}
        return {log_id: size for log_id, size in sizes.items() if not self._logs.is_whole(log_id)}

    def _look_for_missing(self) -> None:
        named: set[int] = set()
        missing = [*self._missing_runs(named), *self._torn_runs()]
        self.missing = joined(sorted(missing))
        present = set(self._logs.ids()) if named else set()
        self.logs_missing = tuple(sorted(named - present))
        self.logs_cut = tuple(sorted(named & present))

    def _missing_runs(self, named: set[int]) -> Iterator[EntryRun]:
        """The missing runs. Adds to `named` the logs that lack them, and the logs that lack only deleted
        entries.
        """
        for ledger_id, row in (*missing_rows(self._index, self._lengths), *self._holes):
            named.add(row.log_id)
            if not self._index.is_deleted(ledger_id):
                yield EntryRun(ledger_id, row.first, row.last)

    def _torn_runs(self) -> Iterator[EntryRun]:
        """The entries between others of their ledger that have no row. After a rebuild all ledgers are looked
        at: a log that is gone leaves no trace in a new index.
        """
        for ledger_id in sorted(self._index.ledgers() if self.index_rebuilt else self._torn):
            if not self._index.is_deleted(ledger_id):
                for first, last in find_gaps(self._index, ledger_id, {}):
                    yield EntryRun(ledger_id, first, last)

    def _flush(
        self,
        marks: tuple[JournalPosition, ...],
        lost: Sequence[tuple[Run, str]],
        *,
        is_last: bool = False,
    ) -> None:
        rows = []
        written = self._writer.write(self._cache, self.names)
        # Rows that fill a gap replace the row that led nowhere in a batch of their own. Put with the others
        # they would overlap it, and which one a read finds would depend on its first entry.
        for each in written:
            moved = 0
            if each.ledger_id in self._gaps:
                moved = replace_missing(self._index, each, self._lengths)
            self.entries_moved += moved
            if not moved:
                rows.append(each)
        rows += self._lost_rows(lost)
        self._cache = SegmentMap()
        # Covered last: an earlier flush writes to a new log, behind records that were not looked into yet.
        covered, kept = (self._writer.position, self._kept()) if is_last else (None, None)
        looked_into = self._logs.ids() if is_last else None
        self._index.flushed(rows, marks, covered=covered, kept=kept, looked_into=looked_into)

    def _lost_rows(self, lost: Sequence[tuple[Run, str]]) -> list[LedgerRow]:
        """Rows for destroyed entries: a read of one fails with the damaged offset, and its id counts as
        used.
        """
        rows = []
        for run, damage in lost:
            if self._index.is_deleted(run.ledger_id):
                continue
            missing = [
                entry_id
                for entry_id in range(run.first, run.first + run.entries)
                if self._index.find(run.ledger_id, entry_id) is None
            ]
            self.counts["lost"] += len(missing)
            rows += [LedgerRow(run.ledger_id, Row(entry_id, 0, 0, range(1), damage)) for entry_id in missing]
        return rows

    def _last_entry_id(self, ledger_id: int) -> int:
        last = self._last.get(ledger_id)
        if last is None:
            last = self._last[ledger_id] = self._index.last_entry_id(ledger_id)
        return last
