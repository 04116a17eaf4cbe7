"""Finds the ledgers that a stopped bookie would have after a recovery, without writing.

Reads the index's rows of each ledger and log, the tables of the journals' groups behind the marks, and the
records of entry logs that the index does not cover. If the next start will rebuild an index, the index does
not count: the entry logs and all journals decide then, and deleted ledgers are among theirs. So they are if
the logs have entries that neither the index nor a journal has: the index is older than the logs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from geminga.bookie.entry_logs.scan import read_rows
from geminga.bookie.entry_logs.uncovered import UnknownEntries, uncovered_rows
from geminga.bookie.index.index_format import ASIDE, DELETED, Usage
from geminga.bookie.index.ledger_index import LedgerIndex
from geminga.bookie.journal.inventory import JournalInventory
from geminga.bookie.journal.journal_format import Run as JournalRun
from geminga.bookie.journal.scan import JournalScan
from geminga.bookie.records.entry_ranges import EntryRanges, joined
from geminga.bookie.records.file_names import (
    ENTRY_LOG_SUFFIX,
    entry_log_directory,
    entry_log_path,
    journal_directory,
    parse_id,
)
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.records.ledger_mapping import directory_index
from geminga.bookie.records.records import Run
from geminga.errors import CorruptData
from geminga.storage.disk import Disk
from geminga.storage.key_value import KeyValue

NOWHERE = JournalPosition(0, 0)
ROW_ENTRIES_MAX = 1000
"""Entries of a row that is made from records; only its sums and ends count here."""


class StoppedLedgerFiles(NamedTuple):
    """A ledger directory and its index; None for an index that is lost or damaged."""

    directory: str
    key_value: KeyValue | None


class HeldLedgers(NamedTuple):
    """Ledger ids, for all directories together."""

    held: dict[int, Usage]
    """Entries and record bytes of each ledger that is not deleted, including those set aside."""
    aside: Set[int]
    deleted: Set[int]
    """Ledgers that an index still has as deleted."""
    doubtful: Set[int]
    """Ledgers of `held` that may be deleted ones: their index will be rebuilt, or is older than the logs."""
    unindexed: Sequence[Run] = ()
    """Entries in entry logs that neither the index nor a journal has; the next start adds them."""
    outrun: Sequence[str] = ()
    """Ledger directories whose index is older than the journals: the next start rebuilds it."""

    @property
    def last_id(self) -> int:
        """The greatest id that was ever used, as far as the files show it; -1 if there is none."""
        return max((*self.held, *self.deleted), default=-1)


def held_ledgers(disk: Disk, journals: Sequence[str], ledgers: Sequence[StoppedLedgerFiles]) -> HeldLedgers:
    """The ledgers in these directories, which are in the order of the bookie's lists. A missing directory
    counts as empty. Blocking. Raises StorageError if a file cannot be read; MisnamedJournals.
    """
    inventories = [
        JournalInventory(disk, path) if disk.exists(path := journal_directory(directory)) else None
        for directory in journals
    ]
    directories = [_Directory(disk, files, len(journals), inventories) for files in ledgers]
    for number, inventory in enumerate(inventories):
        if inventory is not None:
            inventory.check_names(min(each.index_marks[number] for each in directories))
            _add_unflushed(inventory, number, directories)
    for each in directories:
        each.compare()
    held = {id_: usage for each in directories for id_, usage in each.held.items()}
    return HeldLedgers(
        held,
        {id_ for each in directories for id_ in each.aside & held.keys()},
        {id_ for each in directories for id_ in each.deleted},
        {id_ for each in directories if each.made_anew for id_ in each.held},
        [run for each in directories for run in each.unindexed],
        [files.directory for files, each in zip(ledgers, directories, strict=True) if each.outrun],
    )


def held_by(indexes: Sequence[LedgerIndex]) -> HeldLedgers:
    """As `held_ledgers`, from indexes that have all entries, so that none waits in the journals."""
    held: dict[int, Usage] = {}
    for index in indexes:
        index.add_usage(held)
    aside = {id_ for index in indexes for id_ in index.in_state(ASIDE)}
    deleted = {id_ for index in indexes for id_ in index.in_state(DELETED)}
    doubtful = {id_ for index in indexes if index.unsorted for id_ in index.ledgers()}
    held = {ledger_id: usage for ledger_id, usage in held.items() if ledger_id not in deleted}
    return HeldLedgers(held, aside & held.keys(), deleted, doubtful)


class _Directory:
    """One ledger directory."""

    def __init__(
        self,
        disk: Disk,
        files: StoppedLedgerFiles,
        journals: int,
        inventories: Sequence[JournalInventory | None],
    ) -> None:
        self.held: dict[int, Usage] = {}
        self.aside: Set[int] = set()
        self.deleted: Set[int] = set()
        self.unindexed: list[Run] = []
        self._in_journals: dict[int, EntryRanges] = {}
        """The entries of the ledgers in `unindexed` that are behind the marks."""
        self.marks = self.index_marks = (NOWHERE,) * journals
        index = _readable(files.key_value, journals)
        self.outrun = False
        self.made_anew = index is None or not any(index.marks[0]) or bool(index.rebuild_reason)
        if index is not None:
            self.index_marks = index.marks
            self.aside, self.deleted = index.in_state(ASIDE), index.in_state(DELETED)
            self.outrun = any(index.marks[0]) and any(
                inventory is not None and inventory.starts_after(mark)
                for inventory, mark in zip(inventories, index.marks, strict=True)
            )
        self.made_anew = self.made_anew or self.outrun
        if index is not None and not self.made_anew:
            self.marks = index.marks
            index.add_usage(self.held)
            for ledger_id in self.deleted & self.held.keys():
                del self.held[ledger_id]
            self.made_anew = index.unsorted
            self._read_uncovered(disk, entry_log_directory(files.directory), index)
        else:
            self._read_logs(disk, entry_log_directory(files.directory))

    def add(self, ledger_id: int, usage: Usage) -> None:
        if ledger_id not in self.deleted:
            known = self.held.get(ledger_id)
            if known is not None:
                usage = Usage(known.entries + usage.entries, known.bytes + usage.bytes)
            self.held[ledger_id] = usage

    def see(self, run: JournalRun) -> None:
        """Note a run in a journal, behind the mark."""
        known = self._in_journals.get(run.ledger_id)
        if known is not None:
            known.add(run.first, run.first + run.entries - 1)

    def compare(self) -> None:
        """Take out of `unindexed` what journals have; after all of them were seen."""
        self.unindexed = joined(
            Run(ledger_id, first, last)
            for ledger_id, begin, end in sorted(self.unindexed)
            for first, last in self._in_journals[ledger_id].missing(begin, end)
        )
        self.made_anew = self.made_anew or bool(self.unindexed)

    def _read_uncovered(self, disk: Disk, directory: str, index: LedgerIndex) -> None:
        ids = _log_ids(disk, directory)
        unknown = UnknownEntries(index)
        for rows in uncovered_rows(disk, directory, ids, index, row_entries_max=ROW_ENTRIES_MAX):
            for ledger_id, row in unknown.rows(rows):
                self.add(ledger_id, Usage(len(row.ends), row.ends[-1]))
                self._in_journals.setdefault(ledger_id, EntryRanges())
                self.unindexed.append(Run(ledger_id, row.first, row.last))

    def _read_logs(self, disk: Disk, directory: str) -> None:
        for log_id in _log_ids(disk, directory):
            file = disk.open(entry_log_path(directory, log_id))
            try:
                for ledger_id, row in read_rows(file, log_id, row_entries_max=ROW_ENTRIES_MAX):
                    self.add(ledger_id, Usage(len(row.ends), row.ends[-1]))
            finally:
                file.close()


def _log_ids(disk: Disk, directory: str) -> list[int]:
    if not disk.exists(directory):
        return []
    ids = (parse_id(name, ENTRY_LOG_SUFFIX) for name in disk.list(directory))
    return sorted(id_ for id_ in ids if id_ is not None)


def _readable(values: KeyValue | None, journals: int) -> LedgerIndex | None:
    """The database with as many of its states as can be read, if it has to be rebuilt."""
    if values is None:
        return None
    index = LedgerIndex(values, journals=journals)
    try:
        index.load()
    except CorruptData:
        return None
    return index


def _add_unflushed(inventory: JournalInventory, number: int, directories: Sequence[_Directory]) -> None:
    """Add the entries behind a directory's mark in this journal. Entries of a ledger that has entries in
    logs may be known already, and are not counted again.
    """
    flushed = [set(directory.held) for directory in directories]
    for run, end in _runs(inventory, min(each.marks[number] for each in directories)):
        of_ledger = directory_index(run.ledger_id, len(directories))
        directory = directories[of_ledger]
        if end > directory.marks[number]:
            directory.see(run)
            if run.ledger_id not in flushed[of_ledger]:
                directory.add(run.ledger_id, Usage(run.entries, 0))


def _runs(
    inventory: JournalInventory, start: JournalPosition
) -> Iterator[tuple[JournalRun, JournalPosition]]:
    """Each run from `start` on, and the end of its group."""
    for header in inventory.readable(start):
        journal_id = header.journal_id
        with inventory.open(journal_id) as file:
            scan = JournalScan(file, header, synced_end=inventory.synced_end(journal_id, start))
            for runs, end in scan.run_tables(start.offset if journal_id == start.journal_id else 0):
                for run in runs:
                    yield run, JournalPosition(journal_id, end)
