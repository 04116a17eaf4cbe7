"""Heals damaged entries of a running bookie from a journal that still has them, and logs the others.

A journal is kept for a while after its entries are in entry logs (`journalMaxBackups`). So entries that are
damaged soon after they were written can be healed; older entries cannot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import trio

from geminga.bookie.records.entry_ranges import EntryRanges, joined, runs_of
from geminga.bookie.records.ledger_mapping import directory_index
from geminga.bookie.records.records import Run
from geminga.bookie.records.segment_map import SegmentMap
from geminga.bookie.recovery.journal_search import JournalSearch
from geminga.bookie.recovery.report import RUNS_NAMED_MAX, WHAT_TO_DO, run_text
from geminga.bookie.running.lifeline import Lifeline
from geminga.bookie.running.storage import LedgerStorage
from geminga.errors import ReadOnly

RANGES_MAX: Final = 10_000
"""The number of remembered ranges of logged entries; every pass of the scrub logs further ranges again."""
log = logging.getLogger("geminga.bookie")


class LedgerWatch:
    """One function for each ledger, called when the ledger has lost entries for good. A room above uses this
    to replace the lost entries. On the loop.
    """

    def __init__(self) -> None:
        self._tell: dict[int, Callable[[int], None]] = {}

    def watch(self, ledger_id: int, tell: Callable[[int], None]) -> None:
        """Call `tell` with the ledger's id when the ledger has lost entries. Replaces an earlier function."""
        self._tell[ledger_id] = tell

    def unwatch(self, ledger_id: int) -> None:
        self._tell.pop(ledger_id, None)

    def lost(self, ledger_id: int) -> None:
        """The ledger was deleted, or some of its entries are damaged and in no journal."""
        # Forgotten first: the loss is final, and the function may watch the ledger that replaces this one.
        tell = self._tell.pop(ledger_id, None)
        if tell is not None:
            tell(ledger_id)


class Healing:
    """Heals the entries of one ledger directory. On the loop; one call at a time, others wait."""

    def __init__(
        self,
        storage: LedgerStorage,
        journal_directories: Sequence[str],
        lifeline: Lifeline,
        *,
        topic_of: Callable[[int], str],
        named: Sequence[Run],
    ) -> None:
        """`journal_directories` have the journal files; `named` are entries that the start has logged
        already.
        """
        self.watch = LedgerWatch()
        self.entries_found = self.entries_healed = 0
        """The number of damaged entries, each counted once."""
        self._storage = storage
        self._directories = journal_directories
        self._lifeline = lifeline
        self._topic_of = topic_of
        self._named: dict[int, EntryRanges] = {}
        self._gone: dict[int, int] = {}
        """By ledger, the entry id up to which no journal has entries any more."""
        self._lock = trio.Lock()
        for run in named:
            self._remember(run)

    async def heal(self, runs: Sequence[Run]) -> bool:
        """Check these entries. Rewrite the damaged ones to the current entry log, durable on return, and
        log, once, those that no journal has.

        Returns whether it is worth while to read the entries again, because some were healed or none is
        damaged. Raises StorageError if a disk fails; on a full disk the next call does the work. Cancelling
        may leave copies that no row names.
        """
        async with self._lock:
            # Looked at again, at the place that the index has now: compaction may have moved the entry since
            # the read failed.
            damaged = await self._storage.damaged(runs)
            new = [piece for run in damaged for piece in self._not_named(run)]
            # Named already. A consumer that asks for it again and again must not fill the log.
            if not new:
                return not damaged
            found = await self._search([run for run in new if run.last > self._gone.get(run.ledger_id, -1)])
            healed = 0
            if found.entries:
                try:
                    with self._lifeline.failure_ends_it():
                        # Copies are synced before a row leads to them; the damaged log is not touched, so a
                        # wrong diagnosis costs nothing.
                        healed = await self._storage.rewrite(found)
                except ReadOnly as error:
                    log.warning(
                        "%d damaged entries are in the journal, but not healed: %s", found.entries, error
                    )
                    return False
            self.entries_found += sum(map(_length, new))
            self.entries_healed += healed
            self._report(new, found)
            return healed > 0

    def _not_named(self, run: Run) -> list[Run]:
        named = self._named.get(run.ledger_id)
        pieces = named.missing(run.first, run.last) if named is not None else [(run.first, run.last)]
        return [Run(run.ledger_id, first, last) for first, last in pieces]

    async def _search(self, wanted: Sequence[Run]) -> SegmentMap:
        found = SegmentMap()
        for number, directory in enumerate(self._directories):
            part = [run for run in wanted if directory_index(run.ledger_id, len(self._directories)) == number]
            if not part:
                continue
            search = await self._storage.disk.run(JournalSearch, self._storage.disk, directory, part)
            # In steps, each a call to a thread: a journal may have 32 MiB and more, and a worker that is busy
            # for so long would keep reads waiting.
            while await self._storage.disk.run(search.step):
                pass
            for _, segments in search.found.sorted_segments():
                for segment in segments:
                    found.add(segment)
            if search.is_whole:
                # Only after a whole search: a file that was being renamed may be the one with the entry.
                self._note_gone(part, search.oldest)
        return found

    def _note_gone(self, wanted: Sequence[Run], oldest: dict[int, int]) -> None:
        # What comes later into a journal has higher ids: a ledger that was not met has none up to these.
        if len(self._gone) > RANGES_MAX:
            self._gone.clear()
        for run in wanted:
            gone = oldest[run.ledger_id] - 1 if run.ledger_id in oldest else run.last
            self._gone[run.ledger_id] = max(gone, self._gone.get(run.ledger_id, -1))

    def _report(self, damaged: Sequence[Run], found: SegmentMap) -> None:
        healed: list[Run] = []
        lost: list[Run] = []
        for ledger_id, first, last in joined(sorted(damaged)):
            ids = range(first, last + 1)
            for runs, is_found in ((healed, True), (lost, False)):
                chosen = (each for each in ids if (found.find(ledger_id, each) is not None) == is_found)
                runs += [Run(ledger_id, *each) for each in runs_of(chosen)]
        directory = self._storage.log_directory
        if healed:
            log.warning("%s: damaged, healed from the journal: %s", directory, self._text(healed))
        if lost:
            log.warning(
                "%s: damaged, and in no journal any more: %s cannot be read; %s",
                *(directory, self._text(lost), WHAT_TO_DO),
            )
            for run in lost:
                self._remember(run)
            # After they are remembered: what is called may ask whether the ledger is damaged.
            for ledger_id in {run.ledger_id for run in lost}:
                self.watch.lost(ledger_id)

    def is_damaged(self, ledger_id: int) -> bool:
        """Whether some entry of the ledger is known to be damaged for good."""
        return ledger_id in self._named

    def _remember(self, run: Run) -> None:
        ranges = self._named.get(run.ledger_id)
        if ranges is None:
            # Forgetting is harmless: the same damage is named once more by the next pass.
            if len(self._named) >= RANGES_MAX:
                return
            ranges = self._named[run.ledger_id] = EntryRanges()
        if len(ranges) < RANGES_MAX:
            ranges.add(run.first, run.last)

    def _text(self, runs: Sequence[Run]) -> str:
        texts = [run_text(run, self._topic_of) for run in runs[:RUNS_NAMED_MAX]]
        if len(runs) > RUNS_NAMED_MAX:
            texts.append(f"{len(runs) - RUNS_NAMED_MAX} more runs")
        return ", ".join(texts)


def _length(run: Run) -> int:
    return run.last - run.first + 1
