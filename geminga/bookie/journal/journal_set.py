"""All journals of a bookie: each with its own queue, disk and thread; none waits for another's sync."""

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

LastEntries = list[tuple[Adder, int]]
"""(adder, the last entry id of it in the group)"""


class JournalSet:
    """Belongs to the event loop, but for `release`."""

    def __init__(
        self,
        files: Sequence[JournalFiles],
        settings: BookieSettings,
        *,
        on_group: Callable[[int, WrittenGroup, LastEntries], None],
        on_failed: Callable[[StorageError], None],
        threaded: bool,
    ) -> None:
        """`settings` are the bookie's. `on_group` is called with a journal's number and each group of it,
        `on_failed` for the failure of any.
        """
        self.positions = [each.position for each in files]
        """Each journal's end as of the last group whose entries can be found. `on_group` moves it on together
        with what it does with them: a flush makes the marks of it.
        """
        # Shared evenly and fixed: a pool that one slow disk fills would stop the publishers of all the
        # others.
        share = journal_share(settings, len(files))
        self.queue_bytes_max = share.queue_bytes_max
        """Of one journal."""
        self._journals = tuple(
            Journal(
                each,
                share,
                on_group=functools.partial(on_group, number),
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
        """Of records accepted and not yet reported durable."""
        return sum([journal.queued_bytes for journal in self._journals])

    def queued_counts(self) -> tuple[int, int]:
        """Entries that no group has taken; groups that are durable and not reported."""
        journals = self._journals
        return sum(each.queued_entries for each in journals), sum(each.groups_unreported for each in journals)

    def is_queue_full(self) -> bool:
        """Whether one of the journals has its share of what may wait."""
        # Any, not all: which journal a publisher's next entries go to is not known here, and the share is a
        # bound on memory.
        return any(journal.queued_bytes >= self.queue_bytes_max for journal in self._journals)

    async def run(self) -> None:
        """Until `stop`, or all have failed. Cancelling writes what is queued first."""
        async with trio.open_nursery() as nursery:
            for journal in self._journals:
                nursery.start_soon(self._run, journal)

    async def _run(self, journal: Journal) -> None:
        with contextlib.suppress(StorageError):  # `on_failed` has it already
            await journal.run()

    def hurry(self) -> None:
        """A publisher waits for what was appended last: have it written at once. Otherwise an entry that
        comes within a millisecond of the last group may wait until that is over.
        """
        for journal in self._journals:
            # All of them: the caller does not know which journal has the entry it waits for, and an early
            # group on an idle journal costs nothing.
            journal.hurry()

    @contextlib.contextmanager
    def following_turns(self) -> Iterator[None]:
        """Meanwhile the caller calls `begin_turn` and `end_turn` at the edges of each turn of the loop, which
        saves wake-ups of threads and tasks.
        """
        for journal in self._journals:
            journal.follow_turns(True)
        try:
            yield
        finally:
            for journal in self._journals:
                journal.follow_turns(False)

    def begin_turn(self) -> None:
        """The loop has looked for events, and no task has run since: report what is durable."""
        for journal in self._journals:
            journal.begin_turn()

    def end_turn(self) -> None:
        """The loop is about to look for events: begin with what was appended. Wakes no task."""
        for journal in self._journals:
            journal.end_turn()

    def release(self, needed: Sequence[JournalPosition]) -> None:
        """Every file before the one of its journal's position may be written over. On any thread."""
        for journal, position in zip(self._journals, needed, strict=True):
            journal.files.release(position)

    def keep_files(self, kept: bool) -> None:
        """While kept no journal file is written over, renamed or deleted."""
        for journal in self._journals:
            journal.files.keep(kept)

    def stop(self) -> None:
        """Write what is queued, then let `run` return."""
        for journal in self._journals:
            journal.stop()

    def close_files(self) -> None:
        """Blocking; once `run` has returned."""
        for journal in self._journals:
            journal.files.close()
