"""Space on the metadata's disk that is kept for what ends a full disk."""

from __future__ import annotations

from geminga.limits import MIB
from geminga.storage.disk import Disk

RESERVED_INODES = 32
"""Files that the databases of a start, and of a backup, may have to make."""


class SpaceReserve:
    """The last bytes and inodes of one disk. Only deletions, trims and acknowledgements may use them."""

    def __init__(self, disk: Disk, directory: str, reserved_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._reserved_bytes = reserved_bytes
        self._is_kept = False

    def begin(self) -> None:
        """Keep the reserve from now on. A start may use it, since it cannot wait for space."""
        self._is_kept = True

    def refusal(self) -> str:
        """Why nothing new should be written; "" if there is enough space. Asks the system each time, which
        takes microseconds. Raises StorageError if it does not answer.
        """
        if not self._is_kept:
            return ""
        free_bytes = self._disk.free_bytes(self._directory)
        if free_bytes < self._reserved_bytes:
            return (
                f"{self._directory}: disk full: {free_bytes // MIB} MiB are free, and the last "
                f"{self._reserved_bytes // MIB} MiB are kept for deletions and acknowledgements; free "
                "some space"
            )
        free_inodes = self._disk.free_inodes(self._directory)
        if free_inodes is not None and free_inodes < RESERVED_INODES:
            return (
                f"{self._directory}: disk full: {free_inodes} inodes are free, and the last "
                f"{RESERVED_INODES} are kept for deletions and acknowledgements; free "
                "some space"
            )
        return ""
