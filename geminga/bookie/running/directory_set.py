"""All ledger directories of a bookie. A ledger belongs to one of them for good; all are flushed together."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence

import trio

from geminga.bookie.journal.journal_set import JournalSet
from geminga.bookie.records.file_names import journal_directory
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.records.ledger_mapping import directory_index, needed_from
from geminga.bookie.records.records import Run, Segment
from geminga.bookie.records.segment_map import SegmentMap
from geminga.bookie.records.settings import BookieSettings, ledger_directory_share
from geminga.bookie.running.disk_space import DiskSpace
from geminga.bookie.running.garbage_collector import ExistingLedgers
from geminga.bookie.running.healing import Healing
from geminga.bookie.running.ledger_directory import LedgerDirectory
from geminga.bookie.running.lifeline import Lifeline
from geminga.bookie.running.opening import Opened
from geminga.bookie.running.reader import LedgerReader
from geminga.errors import ReadOnly, StorageError

log = logging.getLogger("geminga.bookie")


class DirectorySet:
    """Belongs to the event loop."""

    def __init__(
        self,
        opened: Opened,
        settings: BookieSettings,
        journals: JournalSet,
        lifeline: Lifeline,
        space: DiskSpace,
        *,
        existing_ledgers: ExistingLedgers | None,
        topic_of: Callable[[int], str],
    ) -> None:
        """`settings` are the bookie's."""
        journal_files = [journal_directory(path) for path in opened.journal_directories]
        self._journals = journals
        # Shares are fixed: lent memory could not be taken back while a slow disk keeps the borrower from
        # flushing.
        share = ledger_directory_share(settings, len(opened.storages))
        self.all = tuple(
            LedgerDirectory(
                path,
                storage,
                share,
                journals.positions,
                lifeline,
                space,
                existing_ledgers=existing_ledgers,
                healing=Healing(storage, journal_files, lifeline, topic_of=topic_of, named=missing),
                queued_bytes=lambda: journals.queued_bytes,
                release_journals=self._release_journals,
                on_full=self._start_flushes,
            )
            for path, storage, missing in zip(
                opened.ledger_directories, opened.storages, opened.missing, strict=True
            )
        )
        self.only = self.all[0] if len(self.all) == 1 else None

    def of(self, ledger_id: int) -> LedgerDirectory:
        return self.only or self.all[directory_index(ledger_id, len(self.all))]

    def start(self, nursery: trio.Nursery) -> None:
        """Flush, read ahead and collect garbage in tasks of the nursery."""
        for directory in self.all:
            directory.start(nursery)

    def add(self, segments: Sequence[Segment]) -> None:
        """Add a group's durable entries to the write caches."""
        if self.only is not None:
            self.only.caches.add(segments)
            return
        parts: dict[LedgerDirectory, list[Segment]] = {}
        for segment in segments:
            parts.setdefault(self.of(segment.ledger_id), []).append(segment)
        for directory, part in parts.items():
            # A group's buffer is shared. A directory with a small part of it would keep all of it alive until
            # its flush.
            directory.caches.add_part(part)

    async def read_runs(
        self, runs: Sequence[Run], bytes_max: int, ahead: Sequence[Run]
    ) -> dict[Run, list[bytes]]:
        """See `Bookie.read_runs`."""
        readers: dict[LedgerReader, list[Run]] = {}
        for run in runs:
            readers.setdefault(self.of(run.ledger_id).reader, []).append(run)
        brought: dict[Run, list[bytes]] = {}
        for reader, part in readers.items():
            soon = [run for run in ahead if self.of(run.ledger_id).reader is reader]
            try:
                # One directory's damage must not keep what another has already read from its consumer.
                brought |= await reader.read_runs(part, bytes_max, soon)
            except StorageError:
                if not brought:
                    raise
        return brought

    def flush_if_full(self) -> None:
        """A group was added: start a flush in the background if a cache is full."""
        for directory in self.all:
            directory.note_written()
            if directory.caches.flushing is None and directory.caches.is_full():
                self._start_flushes()

    def _start_flushes(self) -> None:
        """One cache is full: flush all of them, so that no single one keeps journals from being released."""
        for directory in self.all:
            directory.start_flush()

    async def flush(self) -> None:
        """See `Bookie.flush`."""
        full: ReadOnly | None = None
        for directory in self.all:
            try:
                await directory.flush()
            except ReadOnly as error:  # another one's disk may have space
                full = full or error
        if full is not None:
            raise full

    async def finish(self) -> None:
        """Flush all entries in memory and close the entry logs, as far as there is space."""
        for directory in self.all:
            try:
                while directory.has_unflushed():
                    await directory.flush()
            except ReadOnly as error:
                log.warning(
                    "%s: the next start reads the last entries from the journal: %s", directory.path, error
                )
            await directory.storage.finish_log()

    def has_unflushed(self) -> bool:
        """Whether entries are in memory only, and in journals."""
        return any(directory.has_unflushed() for directory in self.all)

    async def settle(self, marks: tuple[JournalPosition, ...]) -> None:
        """At a close, with all entries flushed: set the marks to the beginnings of journals that do not
        exist. That tells the next start that none is missing behind the last one. Durable on return. Does
        nothing on a full disk.
        """
        for directory in self.all:
            with contextlib.suppress(ReadOnly):
                await directory.storage.flush(SegmentMap(), marks, lambda: None)

    def pause_or_resume(self, read_only: str) -> None:
        """A disk is full, for this reason; "" means that no disk is full any more."""
        for directory in self.all:
            directory.writers.pause_or_resume(read_only)
            # A flush that found no space keeps its cache. Without this it would wait for the flush interval.
            if not read_only:
                directory.resume_flush()

    def stop(self) -> None:
        """Refuse entries, and begin no more garbage collections."""
        for directory in self.all:
            directory.stop()

    def _release_journals(self) -> None:
        """Release journals up to the earliest marks. Call on any thread."""
        # The earliest of all marks: a journal's entries belong to ledgers of every directory, and the slowest
        # one still needs them after a crash.
        self._journals.release(needed_from(directory.storage.index.marks for directory in self.all))
