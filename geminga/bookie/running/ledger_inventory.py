"""Which ledgers a running bookie has, which of them it serves, and which entries they lack.

The rooms above compare this with the metadata: to delete orphans, and to find ledgers without a record.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from geminga.bookie.index.index_format import ASIDE, Usage
from geminga.bookie.running.directory_set import DirectorySet
from geminga.bookie.running.lifeline import Lifeline


class StoredCounts(NamedTuple):
    """How much a running bookie stores, for metrics."""

    ledgers: int
    entries: int
    """Entries in entry logs and in write caches, including those of deleted ledgers until their rows are
    removed.
    """


class LedgerInventory:
    """Covers all ledger directories. Belongs to the event loop, except the methods called blocking."""

    def __init__(self, directories: DirectorySet, lifeline: Lifeline) -> None:
        self.confirmed_missing = 0
        """Entries that topics have confirmed, and that no file had at the start: see `tell_missing`."""
        self._set = directories
        self._lifeline = lifeline

    def ledgers(self) -> set[int]:
        """Every served ledger with a durable entry. After an index was lost, this may include deleted
        ledgers (`unsorted`) until the start has set them aside.
        """
        return {ledger_id for directory in self._set.all for ledger_id in directory.reader.ledgers()}

    def aside(self) -> set[int]:
        """The ledgers that `set_aside` keeps from being served."""
        return {id_ for each in self._set.all for id_ in each.storage.index.in_state(ASIDE)}

    def unsorted(self) -> set[int] | None:
        """Every served ledger of the directories with a rebuilt index, including deleted ones. None if there
        is no such directory, or after `set_aside` was called.
        """
        unsorted = [each for each in self._set.all if each.storage.index.unsorted]
        # An empty set is an answer too: the rebuilt index serves nothing, and the caller still has to say so.
        return {id_ for each in unsorted for id_ in each.reader.ledgers()} if unsorted else None

    def missing(self, ledger_id: int, entries: int) -> list[tuple[int, int]]:
        """(first, last) of the flushed entries that a ledger with `entries` entries lacks. Blocking; reads
        all of the ledger's rows, and the sizes of the logs.
        """
        return self._set.of(ledger_id).storage.missing(ledger_id, entries)

    @property
    def keeps_logs(self) -> bool:
        """Whether entry logs are kept from deletion, since this start or an earlier one found that the files
        are not of one moment, until an operator releases them. The lengths of ledgers in the metadata may be
        those of another moment, too.
        """
        return any(directory.storage.index.kept.below for directory in self._set.all)

    def tell_missing(self, entries: int) -> None:
        """Note how many confirmed entries are not there, for statistics: only the metadata knows."""
        self.confirmed_missing = entries

    def counts(self) -> StoredCounts:
        """Sums over values that the indexes keep in memory."""
        entries = 0
        for directory in self._set.all:
            for cache in (directory.caches.active, directory.caches.flushing):
                entries += cache.entries if cache is not None else 0
            # A copy: a flush on a thread adds logs meanwhile.
            usage = list(directory.storage.index.usage.values())
            entries += sum(of.entries for ledgers in usage for of in ledgers.values())
        return StoredCounts(len(self.ledgers()), entries)

    def usage(self) -> dict[int, Usage]:
        """Entries and record bytes in entry logs of each ledger that is not purged, served or not. Passes
        over values that the indexes keep in memory.
        """
        sums: dict[int, Usage] = {}
        for directory in self._set.all:
            directory.storage.index.add_usage(sums)
        return sums

    async def set_aside(self, ledger_ids: Collection[int], *, lift: Collection[int] = ()) -> None:
        """Set ledgers aside, so that they are kept but not served; garbage collection spares them. The
        ledgers in `lift` are served again. Durable on return, one directory at a time; `unsorted` is None
        then. Raises StorageError.
        """
        self._lifeline.check()
        # Each directory, even one without any of these ledgers: only this call tells a rebuilt index that its
        # ledgers have been sorted.
        for directory in self._set.all:
            await directory.set_aside(
                [each for each in ledger_ids if self._set.of(each) is directory],
                [each for each in lift if self._set.of(each) is directory],
            )
