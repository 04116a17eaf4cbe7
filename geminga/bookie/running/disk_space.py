"""Makes the bookie read-only on a full disk, and writable again. After BookKeeper's disk checker and its two
thresholds.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Sequence

import trio

from geminga.bookie.records.settings import BookieSettings
from geminga.limits import MIB
from geminga.storage.disk import Disk

log = logging.getLogger("geminga.bookie")

FREE_INODES_MIN = 128
"""With fewer free inodes than this the bookie becomes read-only, too: journals, entry logs and the tables of
the databases are files. A start needs about 50 of them.
"""


def refusal(free_bytes: int, total_bytes: int, settings: BookieSettings, *, read_only: bool) -> str:
    """Why nothing should be written; "" if there is enough space. A read-only bookie needs more space to
    become writable, so that the state does not flicker; the text names what it needs then.
    """
    # BookKeeper's low-water mark: with one threshold each deleted file would let a few entries in and close
    # again.
    again_bytes = settings.disk_free_bytes_min * 3 // 2
    usage_max = settings.disk_usage_lwm_threshold if read_only else settings.disk_usage_threshold
    free_min = again_bytes if read_only else settings.disk_free_bytes_min
    usage = 1 - free_bytes / total_bytes if total_bytes else 1.0
    again = f"; entries are taken again with {_again_mib(total_bytes, settings)} MiB"
    # Absolute space counts first: a share alone says nothing about whether the write cache still fits.
    if free_bytes < free_min:
        less = "" if read_only else f", less than {free_min >> 20} MiB"
        return f"{free_bytes >> 20} MiB are free{less}{again}"
    if usage > usage_max and free_bytes < settings.disk_free_bytes_enough:
        more = "" if read_only else f", more than {usage_max:.1%}"
        return f"it is {usage:.1%} full{more}{again} free"
    return ""


def _again_mib(total_bytes: int, settings: BookieSettings) -> int:
    """The free space with which a read-only bookie takes entries again: both conditions are met."""
    enough = settings.disk_free_bytes_enough
    by_share = math.ceil(total_bytes * (1 - settings.disk_usage_lwm_threshold)) if total_bytes else enough
    return -(-max(settings.disk_free_bytes_min * 3 // 2, min(by_share, enough)) // MIB)


def inode_refusal(free_inodes: int | None, *, read_only: bool) -> str:
    """As `refusal`, for the number of files that can still be made; None: the file system has no limit."""
    again_inodes = FREE_INODES_MIN * 3 // 2
    inodes_min = again_inodes if read_only else FREE_INODES_MIN
    if free_inodes is None or free_inodes >= inodes_min:
        return ""
    less = "" if read_only else f", fewer than {inodes_min}"
    return f"{free_inodes} inodes are free{less}; entries are taken again with {again_inodes}"


def flush_refusal(free_bytes: int, wanted_bytes: int, settings: BookieSettings) -> str:
    """Why this many bytes should not be written to an entry log now; "" if they may. The last quarter of the
    required free space is reserved for the indexes and the next start, because a database does not open
    without space.
    """
    reserve = settings.disk_free_bytes_min // 4
    if free_bytes >= wanted_bytes + reserve:
        return ""
    return f"{free_bytes >> 20} MiB are free, a flush needs {(wanted_bytes + reserve + MIB - 1) >> 20} MiB"


class DiskSpace:
    """Checks the disks of some directories regularly, and whenever much was written. One full disk makes the
    whole bookie read-only, because the directory of a ledger is fixed. On the loop.
    """

    def __init__(
        self, disk: Disk, directories: Sequence[str], settings: BookieSettings, on_change: Callable[[], None]
    ) -> None:
        """`on_change` is called when `reason` becomes empty or non-empty."""
        self.reason = ""
        """Why the bookie is read-only; "" if it is not."""
        self._disk = disk
        self._reasons = dict.fromkeys(directories, "")
        self._settings = settings
        self._on_change = on_change
        # A sixteenth: even if all that is written goes to this disk, fifteen are left when it is looked at.
        self._look_bytes = settings.disk_free_bytes_min // 16
        self._written_bytes = 0
        self._much_written = trio.Event()

    def wrote(self, written_bytes: int) -> None:
        """Count bytes that were written. A fast writer fills the reserve between two regular checks, so time
        alone does not suffice.
        """
        self._written_bytes += written_bytes
        if self._written_bytes > self._look_bytes:
            self._much_written.set()

    async def watch(self, free_space: Callable[[], Awaitable[None]]) -> None:
        """Check regularly, and when much was written, for ever; see `relieve`."""
        while True:
            with trio.move_on_after(self._settings.disk_check_interval_s) as regular:
                await self._much_written.wait()
            self._much_written = trio.Event()
            self._written_bytes = 0
            # Freeing again after each little write would turn a full disk into a busy one.
            if self.reason and not regular.cancelled_caught:
                await self.check()  # little is written now, and what can be freed was
            else:
                await self.relieve(free_space)

    async def relieve(self, free_space: Callable[[], Awaitable[None]]) -> None:
        """Check now. If a disk is full, free what can be freed and check again."""
        await self.check()
        if self.reason:
            await free_space()
            await self.check()

    async def check(self) -> None:
        """Check now. Raises StorageError if a disk cannot be checked."""
        for directory in self._reasons:
            free, total, inodes = await self._disk.run(_space, self._disk, directory)
            # A full disk has to have more free than one that is not: with one bound for both, each flush
            # would turn the bookie over.
            was_full = bool(self._reasons[directory])
            why = refusal(free, total, self._settings, read_only=was_full)
            self._become(directory, why or inode_refusal(inodes, read_only=was_full))

    def is_full(self, directory: str, text: str) -> None:
        """A write failed for lack of space; the next check may change the state."""
        self._become(directory, text)

    def _become(self, directory: str, why: str) -> None:
        reason = f"the bookie is read-only, its disk is full: {why} ({directory})" if why else ""
        if reason and not self._reasons[directory]:
            log.error("%s", reason)
        elif not reason and self._reasons[directory]:
            log.warning("there is space again in %s", directory)
        self._reasons[directory] = reason
        before, self.reason = self.reason, next(filter(None, self._reasons.values()), "")
        # Only at the edges: which disk is full may change meanwhile, and the writers are paused already.
        if bool(before) != bool(self.reason):
            if before:
                log.warning("the bookie takes entries again")
            self._on_change()


def _space(disk: Disk, directory: str) -> tuple[int, int, int | None]:
    return disk.free_bytes(directory), disk.total_bytes(directory), disk.free_inodes(directory)
