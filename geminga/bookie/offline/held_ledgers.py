"""Finds the ledgers that a stopped bookie would have after a recovery, without writing.

Reads the index's rows of each ledger and log, and the tables of the journals' groups behind the marks, but
no record. If the next start will rebuild an index, the index does not count: the entry logs and all journals
decide then, and deleted ledgers are among theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from geminga.bookie.entry_logs.scan import read_rows
from geminga.bookie.index.index_format import ASIDE, DELETED, Usage
from geminga.bookie.index.ledger_index import LedgerIndex
from geminga.bookie.journal.inventory import JournalInventory
from geminga.bookie.journal.scan import JournalScan
from geminga.bookie.records.file_names import (
    ENTRY_LOG_SUFFIX,
    entry_log_directory,
    entry_log_path,
    journal_directory,
    parse_id,
)
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.records.ledger_mapping import directory_index
from geminga.errors import CorruptData
from geminga.storage.disk import Disk
from geminga.storage.key_value import KeyValue

NOWHERE = JournalPosition(0, 0)


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
    """Ledgers of `held` whose index will be rebuilt: they may have been deleted."""

    @property
    def last_id(self) -> int:
        """The greatest id that was ever used, as far as the files show it; -1 if there is none."""
        return max((*self.held, *self.deleted), default=-1)


def held_ledgers(disk: Disk, journals: Sequence[str], ledgers: Sequence[StoppedLedgerFiles]) -> HeldLedgers:
    """The ledgers in these directories, which are in the order of the bookie's lists. A missing directory
    counts as empty. Blocking. Raises StorageError if a file cannot be read.
    """
    inventories = [
        JournalInventory(disk, path) if disk.exists(path := journal_directory(directory)) else None
        for directory in journals
    ]
    directories = [_Directory(disk, files, len(journals), inventories) for files in ledgers]
    for number, inventory in enumerate(inventories):
        if inventory is not None:
            _add_unflushed(inventory, number, directories)
    held = {id_: usage for each in directories for id_, usage in each.held.items()}
    return HeldLedgers(
        held,
        {id_ for each in directories for id_ in each.aside & held.keys()},
        {id_ for each in directories for id_ in each.deleted},
        {id_ for each in directories if each.made_anew for id_ in each.held},
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
        self.marks = (NOWHERE,) * journals
        index = _readable(files.key_value, journals)
        self.made_anew = index is None or not any(index.marks[0]) or bool(index.rebuild_reason)
        if index is not None:
            self.aside, self.deleted = index.in_state(ASIDE), index.in_state(DELETED)
            self.made_anew = self.made_anew or any(
                inventory is not None and inventory.starts_after(mark)
                for inventory, mark in zip(inventories, index.marks, strict=True)
            )
        if index is not None and not self.made_anew:
            self.marks = index.marks
            index.add_usage(self.held)
            for ledger_id in self.deleted & self.held.keys():
                del self.held[ledger_id]
            self.made_anew = index.unsorted
        else:
            self._read_logs(disk, entry_log_directory(files.directory))

    def add(self, ledger_id: int, usage: Usage) -> None:
        if ledger_id not in self.deleted:
            known = self.held.get(ledger_id)
            if known is not None:
                usage = Usage(known.entries + usage.entries, known.bytes + usage.bytes)
            self.held[ledger_id] = usage

    def _read_logs(self, disk: Disk, directory: str) -> None:
        if not disk.exists(directory):
            return
        ids = (parse_id(name, ENTRY_LOG_SUFFIX) for name in disk.list(directory))
        for log_id in sorted(id_ for id_ in ids if id_ is not None):
            file = disk.open(entry_log_path(directory, log_id))
            try:
                for ledger_id, row in read_rows(file, log_id, row_entries_max=1000):
                    self.add(ledger_id, Usage(len(row.ends), row.ends[-1]))
            finally:
                file.close()


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
    for ledger_id, entries, end in _runs(inventory, min(each.marks[number] for each in directories)):
        of_ledger = directory_index(ledger_id, len(directories))
        directory = directories[of_ledger]
        if end > directory.marks[number] and ledger_id not in flushed[of_ledger]:
            directory.add(ledger_id, Usage(entries, 0))


def _runs(inventory: JournalInventory, start: JournalPosition) -> Iterator[tuple[int, int, JournalPosition]]:
    """Ledger, number of entries, and end of the group, of each run from `start` on."""
    for header in inventory.readable(start):
        journal_id = header.journal_id
        with inventory.open(journal_id) as file:
            scan = JournalScan(file, header, synced_end=inventory.synced_end(journal_id, start))
            for runs, end in scan.run_tables(start.offset if journal_id == start.journal_id else 0):
                for run in runs:
                    yield run.ledger_id, run.entries, JournalPosition(journal_id, end)
