"""The files of a running bookie, with respect to others: kept while a backup copies them beside the writers,
looked for in case that something else removes them, and then written again.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Collection, Sequence

import trio

from geminga.bookie.journal.journal_set import JournalSet
from geminga.bookie.records.file_names import JOURNAL_SUFFIX
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.running.ledger_directory import LedgerDirectory
from geminga.errors import ReadOnly, StorageError
from geminga.storage.disk import Disk

NAMED_MAX = 10
"""The number of files that a line of the log names."""
ROUNDS_MAX = 3
"""How often files are written again while others go on removing them."""
RETRY_S = 1.0
"""Between two tries to write removed files again on a full disk."""
log = logging.getLogger("geminga.bookie")


class BookieFiles:
    """Covers all journals and ledger directories. Belongs to the event loop."""

    def __init__(self, disk: Disk, journals: JournalSet, directories: Sequence[LedgerDirectory]) -> None:
        self._disk = disk
        self._journals = journals
        self._directories = directories
        paths = (*journals.paths, *(directory.storage.log_directory for directory in directories))
        self._identities = {path: disk.identity(path) for path in paths}
        # A closed log that something else removes is lost unless a journal has its entries. The next look for
        # removed files is up to two seconds away, and a fast publisher fills all spare journals in that time.
        journals.overwrite_if(self._are_logs_in_place)

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

    def gone(self) -> list[str]:
        """The paths of journals and entry logs that something else has removed, moved or replaced. Blocking;
        call on any thread. Raises StorageError if a directory cannot be listed.
        """
        gone = self._journals.gone_files()
        for directory in self._directories:
            gone += directory.storage.gone_files()
        return gone

    async def write_gone_again(self) -> None:
        """If files are gone, bring every confirmed entry that is in memory or in an open file back into files
        that have names, durable on return. No task of the bookie may run. What cannot be written is logged:
        the journals that are left are kept, and the next start reads them. A full disk is waited for, since
        the only copy is in this process.

        Does nothing while a directory is another one than at the start. What was written there would be
        hidden as soon as the right disk is mounted again.
        """
        gone: set[str] = set()
        failures: list[StorageError] = []
        rounds = 0
        is_told = False
        still = set(await self._disk.run(self._gone_in_place))
        while still and rounds < ROUNDS_MAX:
            gone |= still
            self._journals.keep_files(True)
            failures = await self._write_again()
            still = set(await self._disk.run(self._gone_in_place))
            full = next((error for error in failures if isinstance(error, ReadOnly)), None)
            if full is not None and still:
                if not is_told:
                    log.critical("%s", waiting_text(full))
                    is_told = True
                await trio.sleep(RETRY_S)
                continue
            # Once more if further files have gone meanwhile: what removes them may still be at it.
            if still <= gone:
                break
            rounds += 1
        for error in failures:
            log.error("not written again: %s", error)
        journals = {path for path in still if path.endswith(JOURNAL_SUFFIX)} if not failures else set()
        if written := gone - still:
            log.warning("written again: %s", _named(written))
        if journals:
            log.warning("not needed any more, all entries are in entry logs: %s", _named(journals))
        if lost := still - journals:
            log.error(
                "lost, nothing has them open any more: %s; the next start takes from the journals what they "
                "still have, and says what is missing",
                _named(lost),
            )

    def _are_logs_in_place(self) -> bool:
        """Blocking; call on any thread."""
        try:
            return not any(directory.storage.gone_files() for directory in self._directories)
        except StorageError:
            return False

    def _gone_in_place(self) -> list[str]:
        try:
            if any(self._disk.identity(path) != known for path, known in self._identities.items()):
                return []
            return self.gone()
        except StorageError as error:
            log.error("not looked for removed files: %s", error)
            return []

    async def _write_again(self) -> list[StorageError]:
        """Returns why some could not be written: one disk that is full must not keep the others' entries from
        being saved.
        """
        failures: list[StorageError] = []
        try:
            await self._disk.run(self._journals.write_files_again)
        except StorageError as error:
            failures.append(error)
        for directory in self._directories:
            try:
                await directory.write_again()
            except StorageError as error:
                failures.append(error)
        return failures


def waiting_text(full: StorageError) -> str:
    """What an operator is to do while removed files cannot be written again."""
    return (
        f"{full}; process {os.getpid()} waits for space there, since its open files are the only copy of "
        "what was removed; a second SIGTERM gives it up"
    )


def _named(paths: Collection[str]) -> str:
    """The first of the paths, and the number of the others."""
    more = len(paths) - NAMED_MAX
    return ", ".join(sorted(paths)[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
