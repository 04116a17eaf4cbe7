"""Notices files and directories that something else removes, moves, replaces or cuts while the broker runs.

Open files accept writes and syncs even after their name or their directory is gone, so nothing fails by
itself, and the broker would confirm entries that no later start can find.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import trio

from geminga.bookie.running.bookie import Bookie
from geminga.bookie.running.bookie_files import RETRY_S, waiting_text
from geminga.bookie.running.directory_lists import COOKIE, LOCK
from geminga.errors import StorageError
from geminga.storage.disk import Disk
from geminga.storage.disk_errors import DiskFull

LOOK_S = 2.0
"""The interval between two checks. A check is one trip to a thread: a `stat` for each directory and open
file, and a listing of the directories of journals, entry logs and databases.
"""
NAMED_MAX = 3
"""The number of files that a text names."""
log = logging.getLogger("geminga.server")


class Database(Protocol):
    """A `RocksKeyValue`, or an index, which wraps one."""

    def gone_files(self) -> list[str]: ...

    def write_files_again(self) -> list[str]: ...


class Gone(NamedTuple):
    """What something else has removed, moved, replaced or cut short."""

    directory: str = ""
    """The first such directory; then `files` is empty."""
    files: Sequence[str] = ()

    def __str__(self) -> str:
        """The paths for a message; "" if nothing is gone."""
        more = len(self.files) - NAMED_MAX
        return self.directory or ", ".join(self.files[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


class FileWatch:
    """Watches directories that exist at construction, their locks and cookies, and all files that the bookie
    and the databases need at any time. Belongs to the event loop.
    """

    def __init__(
        self, disk: Disk, directories: Sequence[str], bookie: Bookie, databases: Sequence[Database]
    ) -> None:
        """Blocking: a `stat` for each directory."""
        self._disk = disk
        self._known = {path: disk.identity(path) for path in directories}
        above = dict.fromkeys(os.path.dirname(path) for path in directories)
        # Without its lock a directory can be opened by a second broker, and without its cookie by none.
        self._locks = self._identities(f"{path}/{LOCK}" for path in above)
        self._cookies = self._identities(f"{path}/{COOKIE}" for path in above)
        self._cookie_bytes = {path: disk.read_file(path) for path in self._cookies}
        self._bookie = bookie
        self._databases = databases

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Check until something is gone, end the bookie for it, and return when it has ended; `Bookie.run`
        then raises the error, which names what is gone. Raises StorageError if nothing can be looked at.
        """
        # At most the receipts of the last two seconds are for entries in such a file. To look at each write
        # would cost more than the write, and `Bookie.run` writes the entries again.
        task_status.started()
        while True:
            await trio.sleep(LOOK_S)
            if await self.end_if_gone():
                return

    async def end_if_gone(self) -> bool:
        """Check once. If something is gone, no receipt leaves from then on; returns True when the bookie has
        ended.
        """
        gone = await self.gone()
        if not str(gone):
            return False
        if gone.directory:
            # Nothing is written again here: where a disk is not mounted any more, it would be hidden later.
            text = (
                f"{gone}: the directory was removed, replaced or unmounted while the broker ran; what "
                f"was written in the last {LOOK_S:g} s may be in no file. Put it back and start again"
            )
        else:
            text = (
                f"{gone}: removed, moved, replaced or cut short while the broker ran. Publishing has "
                "stopped. What is in memory, in open files or in journals is written again under the same "
                "names, and the log says what is not. Stop what removes or cuts files (of logrotate: "
                "copytruncate), and start again"
            )
        with trio.CancelScope(shield=True):
            await self._bookie.abandon(StorageError(text))
        return True

    async def gone(self) -> Gone:
        """What is gone now. Raises StorageError if a directory cannot be listed."""
        return await self._disk.run(self._gone)

    async def write_again(self) -> None:
        """After a failure, when the bookie and the metadata have ended: write cookies again, and bring all
        that was written to the databases back into files that have names. A database that lacks a file takes
        no more writes after that. What cannot be written is logged. A full disk is waited for: the only copy
        is in this process' open files.
        """
        with trio.CancelScope(shield=True):
            is_told = False
            while full := await self._disk.run(self._write_again):
                if not is_told:
                    log.critical("%s", waiting_text(full))
                    is_told = True
                await trio.sleep(RETRY_S)

    def _gone(self) -> Gone:
        if directory := self._gone_directory():
            return Gone(directory)
        try:
            files = self._changed(self._locks) + self._changed(self._cookies) + self._bookie.files.gone()
            for database in self._databases:
                files += database.gone_files()
        except StorageError:
            # The directory may have gone since.
            if directory := self._gone_directory():
                return Gone(directory)
            raise
        return Gone(files=files)

    def _gone_directory(self) -> str:
        return next(iter(self._changed(self._known)), "")

    def _identities(self, paths: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Of those of the files that exist."""
        found = ((path, self._disk.identity(path)) for path in paths)
        return {path: identity for path, identity in found if identity is not None}

    def _changed(self, known: Mapping[str, tuple[int, int] | None]) -> list[str]:
        return [path for path, identity in known.items() if self._disk.identity(path) != identity]

    def _write_again(self) -> DiskFull | None:
        """Returns why the rest has to wait for space; None if nothing has."""
        full: DiskFull | None = None
        if not self._gone_directory():
            for path in self._changed(self._cookies):
                try:
                    self._disk.replace_file(path, self._cookie_bytes[path])
                    log.warning("written again: %s", path)
                except StorageError as error:
                    log.error("not written again: %s", error)
        for database in self._databases:
            try:
                found = database.gone_files()
                still = database.write_files_again() if found else []
            except DiskFull as error:
                full = error
                continue
            except StorageError as error:
                log.error("not written again: %s", error)
                continue
            if len(found) > len(still):
                log.warning("written again: %s", Gone(files=sorted({*found} - {*still})))
            if still:
                log.error("not written again: %s", Gone(files=still))
        return full
