"""Read-only on a full disk, and back by itself. After BookKeeper's disk checker and its two thresholds."""

from __future__ import annotations

import logging
from collections.abc import Callable

from geminga.bookie.settings import BookieSettings
from geminga.disk import Disk

log = logging.getLogger("geminga.bookie")


def refusal(free_bytes: int, total_bytes: int, settings: BookieSettings, *, read_only: bool) -> str:
    """Why nothing should be written; "" if there is space. Once read-only, more space is asked for, so that
    the state does not flicker.
    """
    usage_max = settings.disk_usage_lwm_threshold if read_only else settings.disk_usage_threshold
    free_min = settings.disk_free_bytes_min * (3 if read_only else 2) // 2
    usage = 1 - free_bytes / total_bytes if total_bytes else 1.0
    if free_bytes < free_min:
        return f"{free_bytes >> 20} MiB are free, {free_min >> 20} MiB are needed"
    if usage > usage_max and free_bytes < settings.disk_free_bytes_enough:
        return f"it is {usage:.1%} full, more than {usage_max:.1%}"
    return ""


class DiskSpace:
    """Looks at one directory's disk now and then. On the loop."""

    def __init__(
        self, disk: Disk, directory: str, settings: BookieSettings, on_change: Callable[[], None]
    ) -> None:
        """`on_change` is called when `reason` has become, or is no longer, empty."""
        self.reason = ""
        """Why the bookie is read-only; "" if it is not."""
        self._disk = disk
        self._directory = directory
        self._settings = settings
        self._on_change = on_change

    async def check(self) -> None:
        """Look now. StorageError if the disk cannot even be asked."""
        free, total = await self._disk.run(_space, self._disk, self._directory)
        self._become(refusal(free, total, self._settings, read_only=bool(self.reason)))

    def is_full(self, text: str) -> None:
        """A write has found out; the next check may know better."""
        self._become(text)

    def _become(self, why: str) -> None:
        reason = f"the bookie is read-only, its disk is full: {why}" if why else ""
        changed = bool(reason) != bool(self.reason)
        self.reason = reason
        if changed:
            if reason:
                log.error("%s (%s)", reason, self._directory)
            else:
                log.warning("the bookie takes entries again, there is space in %s", self._directory)
            self._on_change()


def _space(disk: Disk, directory: str) -> tuple[int, int]:
    return disk.free_bytes(directory), disk.total_bytes(directory)
