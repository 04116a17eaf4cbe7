"""Notices directories that are removed, or replaced by others, while the broker runs.

Files that are open go on taking writes and syncs after their directory is gone, so nothing fails by itself,
and receipts would be given for entries that no later start can find.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from geminga.errors import StorageError
from geminga.storage.disk import Disk

LOOK_S = 2.0
"""Between two looks: one trip to a thread and a `stat` for each directory."""


class DirectoryWatch:
    """Of some directories that are there when it is made. Belongs to the event loop."""

    def __init__(self, disk: Disk, paths: Sequence[str]) -> None:
        """Blocking: a `stat` for each."""
        self._disk = disk
        self._known = {path: disk.identity(path) for path in paths}

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. StorageError, which names the directory and says what to do, once one is gone."""
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
        """The first directory that is not what it was; "" if all are."""
        return await self._disk.run(self._gone)

    def _gone(self) -> str:
        for path, identity in self._known.items():
            if self._disk.identity(path) != identity:
                return path
        return ""
