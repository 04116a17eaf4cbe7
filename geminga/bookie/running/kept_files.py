"""Keeps the files of a running bookie while a backup copies them beside the writers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

from geminga.bookie.journal.journal_set import JournalSet
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.running.ledger_directory import LedgerDirectory


class KeptFiles:
    """Covers all journals and ledger directories. Belongs to the event loop."""

    def __init__(self, journals: JournalSet, directories: Sequence[LedgerDirectory]) -> None:
        self._journals = journals
        self._directories = directories

    @contextlib.asynccontextmanager
    async def keeping(self) -> AsyncIterator[None]:
        """While the context is open, no journal file and no entry log is deleted, renamed or overwritten;
        files only grow, and new files appear. One context at a time.
        """
        self._journals.keep_files(True)
        for directory in self._directories:
            directory.storage.keep_logs(True)
        try:
            # A deletion that had begun is over.
            for directory in self._directories:
                await directory.storage.settle_deletions()
            yield
        finally:
            for directory in self._directories:
                directory.storage.keep_logs(False)
            self._journals.keep_files(False)

    def journal_ends(self) -> list[JournalPosition]:
        """For each journal, the end of the last group whose entries are durable and can be read."""
        return list(self._journals.positions)
