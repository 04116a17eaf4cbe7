"""All journals of a bookie. Each has its own queue, disk and thread; none waits for another's sync."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence

import trio

from geminga.bookie.journal.files import JournalFiles, WrittenGroup
from geminga.bookie.journal.journal import Adder, Journal
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.records.ledger_mapping import directory_index
from geminga.bookie.records.settings import BookieSettings, journal_share
from geminga.errors import StorageError
from geminga.storage.disk_errors import DiskFull

LastEntries = list[tuple[Adder, int]]
"""(adder, its last entry id in the group)"""


class JournalSet:
    """Belongs to the event loop, except `release`."""

    def __init__(
        self,
        files: Sequence[JournalFiles],
        settings: BookieSettings,
        *,
        on_group: Callable[[int, WrittenGroup, LastEntries], None],
        on_full: Callable[[int, DiskFull], None],
        on_failed: Callable[[StorageError], None],
        threaded: bool,
    ) -> None:
        """`settings` are the bookie's. `on_group` is called with a journal's number and each of its groups,
        `on_full` with the number of one that has no space, and `on_failed` for the failure of any journal.
        """
        self.paths = [each.directory for each in files]
        """The directories of the journals' files."""
        self.positions = [each.position for each in files]
        """For each journal, the end of the last group whose entries can be found. `on_group` advances it
        together with its work on the entries; a flush turns the positions into marks.
        """
        # Shared evenly and fixed: a pool that one slow disk fills would stop the publishers of all the
        # others.
        share = journal_share(settings, len(files))
        self.queue_bytes_max = share.queue_bytes_max
        """The limit for one journal."""
        self._journals = tuple(
            Journal(
                each,
                share,
                on_group=functools.partial(on_group, number),
                on_full=functools.partial(on_full, number),
                on_failed=on_failed,
                threaded=threaded,
            )
            for number, each in enumerate(files)
        )
        # The usual case of one journal skips a modulo and an index for each entry appended.
        self.only = self._journals[0] if len(self._journals) == 1 else None

    def of(self, ledger_id: int) -> Journal:
        """The journal that takes the ledger's entries."""
        return self._journals[directory_index(ledger_id, len(self._journals))]

    @property
    def queued_bytes(self) -> int:
        """Bytes of records that were accepted and not yet reported durable."""
        return sum([journal.queued_bytes for journal in self._journals])

    def is_writing(self) -> bool:
        """Whether entries were accepted and not yet reported durable."""
        return self.queued_bytes > 0

    def queued_counts(self) -> tuple[int, int]:
        """Entries that no group has taken; groups that are durable and not reported."""
        journals = self._journals
        return sum(each.queued_entries for each in journals), sum(each.groups_unreported for each in journals)

    def is_queue_full(self) -> bool:
        """Whether the queue of some journal is full."""
        # Any, not all: which journal a publisher's next entries go to is not known here, and the share is a
        # bound on memory.
        return any(journal.queued_bytes >= self.queue_bytes_max for journal in self._journals)

    async def run(self) -> None:
        """Run until `stop`, or until all journals have failed. Cancelling first writes the queues."""
        async with trio.open_nursery() as nursery:
            for journal in self._journals:
                nursery.start_soon(self._run, journal)

    async def _run(self, journal: Journal) -> None:
        with contextlib.suppress(StorageError):  # `on_failed` has it already
            await journal.run()

    def hurry(self) -> None:
        """A publisher waits for the last appended entry: have it written at once. Otherwise, an entry that
        arrives within a millisecond of the last group may wait until that millisecond is over.
        """
        for journal in self._journals:
            # All of them: the caller does not know which journal has the entry it waits for, and an early
            # group on an idle journal costs nothing.
            journal.hurry()

    @contextlib.contextmanager
    def following_turns(self) -> Iterator[None]:
        """Within this context the caller calls `begin_turn` and `end_turn` at the edges of each turn of the
        loop, which saves wake-ups of threads and tasks.
        """
        for journal in self._journals:
            journal.follow_turns(True)
        try:
            yield
        finally:
            for journal in self._journals:
                journal.follow_turns(False)

    def begin_turn(self) -> None:
        """The loop has collected its events, and no task has run since: report durable groups."""
        for journal in self._journals:
            journal.begin_turn()

    def end_turn(self) -> None:
        """The loop is about to wait for events: begin to write the appended entries. Wakes no task."""
        for journal in self._journals:
            journal.end_turn()

    def release(self, needed: Sequence[JournalPosition]) -> None:
        """Allow every file before the one of its journal's position to be overwritten. Call on any thread."""
        for journal, position in zip(self._journals, needed, strict=True):
            journal.files.release(position)

    def keep_files(self, kept: bool) -> None:
        """Within this context no journal file is overwritten, renamed or deleted."""
        for journal in self._journals:
            journal.files.keep(kept)

    def overwrite_if(self, may_overwrite: Callable[[], bool]) -> None:
        """See `JournalFiles.overwrite_if`; for all journals."""
        for journal in self._journals:
            journal.files.overwrite_if(may_overwrite)

    def gone_files(self) -> list[str]:
        """See `JournalFiles.gone`; of all journals. Blocking."""
        return [path for journal in self._journals for path in journal.files.gone()]

    def last_ids(self) -> list[int]:
        """For each journal, the id of the file that it writes."""
        return [journal.files.position.journal_id for journal in self._journals]

    def write_files_again(self) -> None:
        """See `JournalFiles.write_again`; of all journals, after `run` has returned. Blocking."""
        for journal in self._journals:
            journal.files.write_again()

    def stop(self) -> None:
        """Write the queues, then let `run` return."""
        for journal in self._journals:
            journal.stop()

    def close_files(self) -> None:
        """Close all files, after `run` has returned. Blocking."""
        for journal in self._journals:
            journal.files.close()
