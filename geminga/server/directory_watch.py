"""Notices directories that are removed, or replaced by others, while the broker runs.

Open files accept writes and syncs even after their directory is gone, so nothing fails by itself, and the
broker would confirm entries that no later start can find.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from geminga.errors import StorageError
from geminga.storage.disk import Disk

LOOK_S = 2.0
"""The interval between two checks; a check is one trip to a thread and a `stat` for each directory."""


class DirectoryWatch:
    """Watches directories that exist at construction. Belongs to the event loop."""

    def __init__(self, disk: Disk, paths: Sequence[str]) -> None:
        """Blocking: a `stat` for each directory."""
        self._disk = disk
        self._known = {path: disk.identity(path) for path in paths}

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Check until cancelled. Raises StorageError, which names the directory and the next step, once one
        is gone.
        """
        # By identity, since the open files of a removed directory can still be written without an error.
        # Receipts of the last two seconds may be lost; to look at each write would cost more than the write.
        task_status.started()
        while True:
            await trio.sleep(LOOK_S)
            if gone := await self.gone():
                raise StorageError(
                    f"{gone}: the directory was removed, replaced or unmounted while the broker ran; what "
                    f"was written in the last {LOOK_S:g} s may be in no file. Put it back and start again"
                )

    async def gone(self) -> str:
        """The first directory that is gone or was replaced; "" if there is none."""
        return await self._disk.run(self._gone)

    def _gone(self) -> str:
        for path, identity in self._known.items():
            if self._disk.identity(path) != identity:
                return path
        return ""
