"""The journals that a start finds in a directory: which it has to read, and which are gone.

Every journal but the first after a start names the previous one and its end; the index's mark names the first
journal to read. So a start notices any journal that was begun and cannot be read.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from geminga.bookie.journal.headers import (
    USUAL_ALIGNMENT,
    FoundHeader,
    HeaderState,
    find_header,
    foreign_id,
    stated_groups,
)
from geminga.bookie.journal.journal_format import FILE_HEADERS_BYTES_MAX, FileHeader
from geminga.bookie.journal.scan import Damage, JournalScan
from geminga.bookie.records.file_names import JOURNAL_SUFFIX, ids_in, journal_path, parse_id
from geminga.bookie.records.journal_position import JournalPosition
from geminga.errors import StorageError
from geminga.storage.disk import Disk, File

# Both can be read, and both are reported: the next sector to go bad may be the copy that was used.
_DAMAGED = (HeaderState.COPIED, HeaderState.REBUILT)


class MisnamedJournals(StorageError):
    """Files have the names of other journals than their headers say. Nothing was written."""


class JournalInventory:
    """The journals of one directory at construction. Blocking; writes nothing."""

    def __init__(
        self, disk: Disk, directory: str, *, file_bytes: int | None = None, alignment: int = USUAL_ALIGNMENT
    ) -> None:
        """`file_bytes` is the length at which a journal file is full, if known. Both values are likely to be
        those with which the journals were written.
        """
        self._disk = disk
        self._file_bytes = file_bytes
        self._directory = directory
        self.found: dict[int, FoundHeader] = {}
        """Paths by id, ascending."""
        self._let_go = 0
        self._others: dict[int, int] = {}
        """By id: the other journal whose header the file has."""
        self._later: set[int] = set()
        """Those of them that have groups of a journal with a greater id."""
        for journal_id in sorted(ids_in(directory, disk.list(directory), JOURNAL_SUFFIX)):
            with self.open(journal_id) as file:
                self.found[journal_id] = find_header(file, journal_id, alignment=alignment)
                foreign = foreign_id(file, journal_id)
                has_groups = foreign > journal_id and any(id_ == foreign for id_, _ in stated_groups(file))
            # The earlier of the two had been released by every mark, so an index whose mark still needs it is
            # an old copy. Without this it would pass for current, and the entries it calls for be missed in
            # silence.
            if foreign:
                self._others[journal_id] = foreign
                if has_groups:
                    self._later.add(journal_id)
                self._let_go = max(self._let_go, min(foreign, journal_id))

    @property
    def last_id(self) -> int:
        """The greatest id; 0 if there is no journal, begun or not."""
        return max(self.found, default=0)

    def path(self, journal_id: int) -> str:
        return journal_path(self._directory, journal_id)

    @contextmanager
    def open(self, journal_id: int) -> Iterator[File]:
        file = self._disk.open(self.path(journal_id))
        try:
            yield file
        finally:
            file.close()

    def check_names(self, mark: JournalPosition) -> None:
        """Raise MisnamedJournals if journals from the mark on have other names than their headers say. The
        text has the steps that name them right.

        A crash in the preparation for reuse leaves another's header as well: an old journal has the name of
        the one that follows on the last, or, if its new name was lost, the header of a later one, without a
        group of it.
        """
        # The mark of a new index, or of one that is rebuilt, is 0 and says nothing of what was released.
        needed = [
            (name, journal_id)
            for name, journal_id in self._others.items()
            if 0 < mark.journal_id <= journal_id < name
        ]
        if self._later or not all(self._was_prepared(*each) for each in needed):
            # Those that were released as well: they may have the name of one that is needed.
            wrong = {
                name: journal_id
                for name, journal_id in self._others.items()
                if journal_id < name or name in self._later
            }
            names = {
                os.path.basename(self.path(name)): os.path.basename(self.path(journal_id))
                for name, journal_id in sorted(wrong.items())
            }
            steps = _renames(names, {os.path.basename(self.path(name)) for name in self.found})
            raise MisnamedJournals(
                f"{self._directory}: journals are there under other names than their headers say. Do this "
                "there, in this order, and start again: all that they have is served then. Nothing was "
                "written or deleted.\n" + "\n".join(f"  {step}" for step in steps)
            )

    def _was_prepared(self, name: int, journal_id: int) -> bool:
        """Whether the file may be one that was released and prepared for reuse, although the mark still needs
        it: then the index is an older copy. The oldest one gets the name behind the last.
        """
        own = self.found.keys() - self._others.keys()
        return name - 1 in own and journal_id < min(own)

    def starts_after(self, mark: JournalPosition) -> bool:
        """Whether a later mark than this existed. Journals are released oldest first, and only after the mark
        has passed them. So a later mark existed if the mark's own journal is missing while a later one
        exists, or if a journal that the mark needs was prepared for reuse.
        """
        # An old copy of the index (restored from a backup, say) has a mark that the journals have passed. Its
        # rows miss what was flushed since; trusting it would lose entries that had receipts.
        if self._let_go >= mark.journal_id:
            return True
        later = any(found.begun for journal_id, found in self.found.items() if journal_id > mark.journal_id)
        own = self.found.get(mark.journal_id)
        # A mark of an orderly stop. Crashes of the next starts may leave its journal without a header, and a
        # later one with one; the first start that is completed sets a new mark and removes both.
        if own is not None and not mark.offset:
            return False
        # If a later one follows it, it was begun: then it is damaged, and `damages` says so.
        return later and (own is None or not (own.begun or self._is_followed(mark.journal_id)))

    def _is_followed(self, journal_id: int) -> bool:
        return self.stated_end(journal_id) is not None

    def stated_end(self, journal_id: int) -> int | None:
        """The end of this journal according to the next one; None if the next one does not have it."""
        headers = (found.header for found in self.found.values())
        ends = (each.previous_end for each in headers if each is not None and each.previous_id == journal_id)
        return next(ends, None)

    def readable(self, mark: JournalPosition) -> list[FileHeader]:
        """The journals to replay, oldest first."""
        return [found.header for found in self._from(mark).values() if found.header is not None]

    def synced_end(self, journal_id: int, mark: JournalPosition) -> int | None:
        """The position up to which a later journal proves that this one was synced; None for the last
        journal.

        A next journal that has lost this information still proves that this journal was full, and so synced
        at least to the usual length.
        """
        stated = self.stated_end(journal_id)
        if stated is not None:
            return stated
        followed = False
        for later, (header, state) in self.found.items():
            lost = header is None or state is HeaderState.REBUILT
            followed = followed or (later > journal_id and lost and state is not HeaderState.UNUSED)
        # Without a mark this may be the last journal of one start, and the later one another's.
        # "Full" is a lower bound: a journal is left only at this length or beyond. What is damaged below it
        # is thus known to have been synced, and is reported rather than cut as a torn end.
        return self._file_bytes if followed and mark.journal_id else None

    def restored(self, mark: JournalPosition) -> list[str]:
        """Paths of readable journals with a damaged header."""
        return [self.path(id_) for id_, found in self._from(mark).items() if found.state in _DAMAGED]

    def damages(self, mark: JournalPosition) -> list[Damage]:
        """Damage in the journals from the mark on: journals that were begun and cannot be read, and groups
        that a reconstructed header may not know of.
        """
        synced: dict[int, int] = {}
        if mark.offset:
            synced[mark.journal_id] = mark.offset
        damages = []
        for journal_id, (header, state) in self._from(mark).items():
            if state is HeaderState.UNREADABLE:
                with self.open(journal_id) as file:
                    synced[journal_id] = file.size()
            elif state is HeaderState.REBUILT and header is not None:
                damages += self._before_first_group(header)
            # Under a new index (no mark) the oldest journals may follow others that are not needed.
            if header is not None and mark.journal_id and header.previous_id >= mark.journal_id:
                before = JournalPosition(header.previous_id, header.previous_end)
                if before > mark:
                    synced[header.previous_id] = max(header.previous_end, synced.get(header.previous_id, 0))
        damages += [
            Damage(self.path(journal_id), 0, length)
            for journal_id, length in synced.items()
            if journal_id not in self.found or self.found[journal_id].header is None
        ]
        return sorted(damages)

    def missing(self, damages: Iterable[Damage]) -> list[int]:
        """The journals that were begun and are not there, as `damages` names them; ascending."""
        ids = {parse_id(damage.path.rpartition("/")[2], JOURNAL_SUFFIX) for damage in damages}
        return sorted(id_ for id_ in ids if id_ is not None and id_ not in self.found)

    def _before_first_group(self, header: FileHeader) -> list[Damage]:
        """Zeros, or the groups from which the alignment was concluded are not the first ones."""
        begin = FILE_HEADERS_BYTES_MAX
        with self.open(header.journal_id) as file:
            between = file.pread(begin, max(0, header.first_group - begin))
        return [Damage(self.path(header.journal_id), begin, len(between))] if any(between) else []

    def spent(self, damages: list[Damage], mark: JournalPosition) -> list[str]:
        """Journals that may be overwritten after all journals from the mark on were replayed, which found
        `damages`; oldest first.

        If both headers of a journal are damaged, the journal remains as it is at every start, unless all its
        groups could be read: an operator may recover more from it.
        """
        damaged = {damage.path for damage in damages}
        return [
            self.path(journal_id)
            for journal_id, found in self.found.items()
            # A whole header is enough, damaged groups or not: what they lost is in the index as lost rows by
            # then, and a second replay could get no more out of the file.
            if found.state in (HeaderState.WHOLE, HeaderState.COPIED)
            or (self.path(journal_id) not in damaged and self._is_readable(journal_id, found, mark))
        ]

    def _is_readable(self, journal_id: int, found: FoundHeader, mark: JournalPosition) -> bool:
        if found.header is None:
            return not found.begun
        with self.open(journal_id) as file:
            scan = JournalScan(file, found.header, synced_end=self.synced_end(journal_id, mark))
            for _ in scan.groups(0):
                pass
        return not scan.damages and not self._before_first_group(found.header)

    def _from(self, mark: JournalPosition) -> dict[int, FoundHeader]:
        return {id_: found for id_, found in self.found.items() if id_ >= mark.journal_id}


def _renames(wrong: Mapping[str, str], existing: Collection[str]) -> Iterator[str]:
    """The steps that give these files their right names, and overwrite none of the existing ones."""
    taken, todo = set(existing), dict(wrong)
    while todo:
        name = next((each for each, right in todo.items() if right not in taken), "")
        if name:
            yield f"mv {name} {todo[name]}"
            taken.add(todo[name])
        elif name := next((each for each, right in todo.items() if right not in todo), ""):
            yield (
                f"{name} is a copy of {todo[name]}, which is there: move it out of this directory, and put "
                "back the right file of its name if there is one"
            )
        else:  # they have each other's names
            name, right = next(iter(todo.items()))
            yield f"mv {name} {name}.moved"
            todo[f"{name}.moved"] = right
        del todo[name]
        taken.discard(name)
