"""One journal's part of a recovery: reads its files and passes the entries to the ledger directories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from geminga.bookie.journal.files import JournalFiles
from geminga.bookie.journal.inventory import JournalInventory
from geminga.bookie.journal.journal_format import FileHeader
from geminga.bookie.journal.scan import Damage, JournalScan, ScannedGroup
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.records.ledger_mapping import directory_index
from geminga.bookie.records.owner import Owner
from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.recovery.directory_replay import DirectoryReplay
from geminga.storage.disk import Disk


class JournalReplay:
    """Blocking; for one recovery: `replay`, then `begin`. `counts` has `journals` read, `groups` and `torn`
    bytes.
    """

    def __init__(
        self, disk: Disk, directory: str, settings: BookieSettings, number: int, instance_id: str
    ) -> None:
        """`directory` has the files; `number` is the journal's index in all lists of marks. `instance_id` is
        for the header of the new journal; "" if it is not known.
        """
        self.counts: Counter[str] = Counter()
        self.damages: list[Damage] = []
        self.headers_restored: list[str] = []
        self._disk = disk
        self._directory = directory
        self._settings = settings
        self._number = number
        self._owner = Owner(instance_id, number + 1)
        # One look at the directory for all of the recovery: listed again later, files that this start makes
        # itself would be among those to replay.
        self._inventory = JournalInventory(
            disk,
            directory,
            file_bytes=settings.journal_file_bytes,
            alignment=settings.journal_alignment_bytes,
        )
        self._start = JournalPosition(0, 0)

    @property
    def last_id(self) -> int:
        """The greatest journal id; 0 if there is no journal, begun or not."""
        return self._inventory.last_id

    def check_names(self, marks: Iterable[JournalPosition]) -> None:
        """See `JournalInventory.check_names`; the earliest of the directories' marks counts."""
        self._inventory.check_names(min(marks))

    def starts_after(self, mark: JournalPosition) -> bool:
        """Whether all directories had a later mark than this."""
        return self._inventory.starts_after(mark)

    def replay(self, start: JournalPosition, directories: Sequence[DirectoryReplay]) -> None:
        """Pass to each directory the entries that it has not flushed. `start` is the earliest of their
        marks.
        """
        self._start = start
        for mark in sorted({directory.marks[self._number] for directory in directories}):
            # Each directory's mark is asked: a lost index (mark 0) must not hide that a journal which another
            # directory still needs is gone.
            # Without a mark little can be told; another directory's may tell more.
            told = {damage.path for damage in self.damages}
            self.damages += [each for each in self._inventory.damages(mark) if each.path not in told]
        self.headers_restored = self._inventory.restored(start)
        # Oldest first: `DirectoryReplay.take` tells known entries by the last entry id, so a ledger's entries
        # have to come in order.
        for header in self._inventory.readable(start):
            self._replay_file(header, directories)

    def refill(self, directories: Sequence[DirectoryReplay]) -> None:
        """Pass to directories with missing or truncated logs the entries of these logs that old journals,
        before the marks, still have.
        """
        # From the very beginning, since what a lost log held had been flushed, and the marks had passed it.
        # Kept journals (`journalMaxBackups`) are the only other place.
        for header in self._inventory.readable(JournalPosition(0, 0)):
            with self._inventory.open(header.journal_id) as file:
                for group in JournalScan(file, header, synced_end=None).groups(0):
                    _tell_names(group, directories)
                    end = JournalPosition(header.journal_id, group.end)
                    for segment in group.segments:
                        directory = directories[directory_index(segment.ledger_id, len(directories))]
                        # What is behind the mark comes again with `replay`; taken here too it would overlap
                        # itself.
                        if directory.wants_refill and end <= directory.marks[self._number]:
                            directory.refill(segment)
                            directory.flush_if_full()

    def replay_old(self, directories: Sequence[DirectoryReplay]) -> None:
        """Pass to directories that look into them the entries of journals before their marks."""
        if not any(directory.looks_into_old_journals for directory in directories):
            return
        for header in self._inventory.readable(JournalPosition(0, 0)):
            with self._inventory.open(header.journal_id) as file:
                for group in JournalScan(file, header, synced_end=None).groups(0):
                    end = JournalPosition(header.journal_id, group.end)
                    for segment in group.segments:
                        directory = directories[directory_index(segment.ledger_id, len(directories))]
                        if directory.looks_into_old_journals and end <= directory.marks[self._number]:
                            directory.take_old(segment, (self._number, header.journal_id))
                            directory.flush_if_full()

    def lost_files(self) -> dict[tuple[int, int], str]:
        """After `replay`: the paths of journals that were begun and are not there, by the directory's number
        and their id.
        """
        ids = self._inventory.missing(self.damages)
        return {(self._number, journal_id): self._inventory.path(journal_id) for journal_id in ids}

    @property
    def found(self) -> set[tuple[int, int]]:
        """The journals that are there: the directory's number, and their id."""
        return {(self._number, journal_id) for journal_id in self._inventory.found}

    def begin(self, journal_id: int) -> JournalFiles:
        """Start a new journal, durable on return. Journals that were read are not overwritten yet."""
        return JournalFiles(
            self._disk,
            self._directory,
            self._settings,
            journal_id=journal_id,
            # None before it: all that was replayed is flushed before the marks name this file, so a damaged
            # older journal can be of no concern to it.
            previous=JournalPosition(0, 0),
            free=[],
            owner=self._owner,
        )

    def spent(self) -> list[str]:
        """The journals that may be overwritten once all replayed entries are flushed."""
        return self._inventory.spent(self.damages, self._start)

    def _replay_file(self, header: FileHeader, directories: Sequence[DirectoryReplay]) -> None:
        journal_id, start = header.journal_id, self._start
        with self._inventory.open(journal_id) as file:
            scan = JournalScan(file, header, synced_end=self._inventory.synced_end(journal_id, start))
            self.counts["journals"] += 1
            # Only the first file is entered in its middle. In a later one the offset would belong to another
            # file.
            for group in scan.groups(start.offset if journal_id == start.journal_id else 0):
                self.counts["groups"] += 1
                _tell_names(group, directories)
                end = JournalPosition(journal_id, group.end)
                for segment in group.segments:
                    directory = directories[directory_index(segment.ledger_id, len(directories))]
                    # The end of the group is compared: a mark always lies at the end of one.
                    if end > directory.marks[self._number]:
                        directory.take(segment)
                        directory.flush_if_full()
        # A directory whose mark lies behind the group had flushed its entries before the group was damaged,
        # and has lost nothing.
        self.damages += scan.damages
        self.counts["torn"] += scan.torn_bytes
        for damage in scan.damages:
            end = JournalPosition(journal_id, damage.offset + damage.length)
            for run in damage.lost:
                directory = directories[directory_index(run.ledger_id, len(directories))]
                if end > directory.marks[self._number]:
                    directory.lose(run, str(damage))


def _tell_names(group: ScannedGroup, directories: Sequence[DirectoryReplay]) -> None:
    for ledger_id, name in group.names.items():
        directories[directory_index(ledger_id, len(directories))].names[ledger_id] = name
