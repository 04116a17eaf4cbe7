"""Recovers a bookie's directories after any end of its process.

Each journal is read from the earliest mark that a ledger directory has in it. Each ledger directory gets the
entries behind its own mark. When this is done, all entries that will be served are in synced entry logs and
in the indexes, so nothing that a reader sees can vanish later.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence

from geminga.bookie.journal.files import JournalFiles
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.records.ledger_mapping import needed_from
from geminga.bookie.records.records import Run
from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.recovery.directory_replay import DirectoryReplay
from geminga.bookie.recovery.journal_replay import JournalReplay
from geminga.bookie.recovery.report import RecoveryReport
from geminga.storage.disk import Disk

__all__ = ["Recovery", "RecoveryReport"]

SKIPPED_IDS = 20
"""How many of the newest journals may be missing after a crash without a name of theirs being used again."""


def skipped_ids(last_id: int, mark: JournalPosition) -> range:
    """The journal ids that a start does not use, and the one that it begins with, which is `stop`. `last_id`
    is that of the last file, 0 for none; `mark` is the latest of all directories.

    Each new id lies above every file and every mark. A mark may name a file that is gone; a journal with that
    id made now would pass for the one the mark means, and the loss would never be noticed. After a crash the
    newest journals may be gone without a trace, and may be put back later under their names.
    """
    if mark.journal_id > last_id and not mark.offset:
        return range(mark.journal_id, mark.journal_id)  # closed in order: see `DirectorySet.settle`
    after = max(last_id, mark.journal_id) + 1
    return range(after, after + (SKIPPED_IDS if after > 1 else 0))


class Recovery:
    """One recovery. Blocking. Call `run` once; `report` then has the findings."""

    def __init__(
        self,
        disk: Disk,
        journals: Sequence[str],
        settings: BookieSettings,
        directories: Sequence[DirectoryReplay],
        instance_id: str,
    ) -> None:
        """`journals` are the directories with the journal files; `settings` are one journal's share.
        `instance_id` is for the headers of new journals; "" if it is not known.
        """
        self._journals = [
            JournalReplay(disk, directory, settings, number, instance_id)
            for number, directory in enumerate(journals)
        ]
        self._directories = directories
        self.skipped: tuple[tuple[int, int], ...] = ()
        """After `run`: the journals, by their directory's number and their id, that may have been begun
        without a file or a mark that shows it.
        """

    def run(self) -> list[JournalFiles]:
        """Check the indexes, replay, flush, and start new journals. After a StorageError no journal is open;
        repeat with a new object.
        """
        # First: by the headers under wrong names an index would pass for an old copy and be rebuilt.
        for number, journal in enumerate(self._journals):
            journal.check_names(directory.marks[number] for directory in self._directories)
        for directory in self._directories:
            # All indexes are checked before anything is replayed: a rebuild sets a directory's marks back to
            # the beginning, and the journals have to be read from the earliest mark.
            directory.check_index(self._is_older)
        # Before the replay, while the marks still tell which groups had been flushed: the other groups come
        # with it.
        if any(directory.wants_refill for directory in self._directories):
            for journal in self._journals:
                journal.refill(self._directories)
        # Computed after the refill, whose flushes keep the marks as they were.
        starts = needed_from(directory.marks for directory in self._directories)
        for journal, start in zip(self._journals, starts, strict=True):
            journal.replay(start, self._directories)
        for journal in self._journals:
            journal.replay_old(self._directories)
            for directory in self._directories:
                directory.find(journal.found)
            for lost, path in journal.lost_files().items():
                for directory in self._directories:
                    directory.miss(lost, path)
        latest = [max(of_journal) for of_journal in zip(*(d.marks for d in self._directories), strict=True)]
        numbered = zip(self._journals, latest, strict=True)
        self.skipped = tuple(
            (number, journal_id)
            for number, (journal, mark) in enumerate(numbered)
            for journal_id in skipped_ids(journal.last_id, mark)
        )
        # The files first: a mark names a journal that was there, so one that is not there later is missed.
        # A crash before the marks leaves files without a group, which no mark names.
        files = []
        with contextlib.ExitStack() as opened:
            for journal, mark in zip(self._journals, latest, strict=True):
                skipped = skipped_ids(journal.last_id, mark)
                files.append(journal.begin(skipped.stop))
                opened.callback(files[-1].close)
            marks = tuple(each.position for each in files)
            for directory in self._directories:
                # If one directory finishes and a crash comes before the next, the next start replays from the
                # other's older mark; the first one knows its entries already. So no transaction over several
                # indexes is needed.
                directory.finish(marks)
            # After a mismatch no file that was there is overwritten until an operator releases them: another
            # copy of the index, the logs or the journals may be the right one.
            if not any(directory.keeps_files for directory in self._directories):
                for journal, each in zip(self._journals, files, strict=True):
                    # Last: written over any earlier, a journal could be missing for a recovery after a crash
                    # of this one.
                    each.reuse(journal.spent())
            opened.pop_all()
        return files

    @property
    def mismatch(self) -> str:
        """What this start was the first to see of files that are not of one moment; "" if they are."""
        found = [directory.mismatch for directory in self._directories if directory.mismatch]
        return "; ".join(dict.fromkeys(found))

    def _is_older(self, marks: tuple[JournalPosition, ...]) -> bool:
        return any(journal.starts_after(mark) for journal, mark in zip(self._journals, marks, strict=True))

    @property
    def report(self) -> RecoveryReport:
        journals, directories = self._journals, self._directories
        counts: Counter[str] = Counter()
        for part in (*(j.counts for j in journals), *(d.counts for d in directories)):
            counts.update(part)
        return RecoveryReport(
            journals_read=counts["journals"],
            groups_read=counts["groups"],
            entries_replayed=counts["replayed"],
            entries_known=counts["known"],
            entries_of_deleted_ledgers=counts["deleted"],
            entries_lost=counts["lost"],
            torn_bytes=counts["torn"],
            damages=tuple(damage for journal in journals for damage in journal.damages),
            headers_restored=tuple(path for journal in journals for path in journal.headers_restored),
            index_rebuilt=self._rebuilt(),
            entries_indexed=sum(directory.entries_indexed for directory in directories),
            mismatch=self.mismatch,
            entries_found=sum(directory.entries_found for directory in directories),
            entries_moved=sum(directory.entries_moved for directory in directories),
            logs_missing=tuple(log_id for directory in directories for log_id in directory.logs_missing),
            logs_cut=tuple(log_id for directory in directories for log_id in directory.logs_cut),
            logs_damaged=tuple(text for directory in directories for text in directory.logs_damaged),
            entries_missing=sum(run.last - run.first + 1 for d in directories for run in d.missing),
        )

    @property
    def missing(self) -> list[list[Run]]:
        """For each ledger directory, the entries in the index that no log and no journal has."""
        return [directory.missing for directory in self._directories]

    def _rebuilt(self) -> str:
        if len(self._directories) == 1:
            return self._directories[0].index_rebuilt
        rebuilt = [directory for directory in self._directories if directory.index_rebuilt]
        return "; ".join(f"{directory.path}: {directory.index_rebuilt}" for directory in rebuilt)
