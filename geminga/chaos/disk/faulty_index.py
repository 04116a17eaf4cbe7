"""The bookie's index, with faults in its database."""

from __future__ import annotations

import os
from collections.abc import Iterable

from geminga.bookie.index.database import IndexDatabase
from geminga.bookie.records.owner import Owner
from geminga.chaos.disk.faulty_disk import failed
from geminga.chaos.rules.can_hit import kinds_at
from geminga.chaos.rules.deciding import Facts
from geminga.chaos.rules.faults import Faults
from geminga.chaos.rules.killing import Points, has, kill_process
from geminga.errors import ReadOnly, StorageError
from geminga.storage.disk import Disk
from geminga.storage.rocksdb import BlockCache


class FaultyIndexDatabase(IndexDatabase):
    """As RocksDB, it refuses every write after a failed one."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        *,
        block_cache: BlockCache | None = None,
        owner: Owner | None = None,
        faults: Faults,
    ) -> None:
        self._door = faults.doors["index"]
        self._points = Points(faults.doors["process"])
        self._failure: StorageError | None = None
        if self._door.armed:
            hit = self._door.hit(Facts(operation="open"), kinds_at("index", "open"))
            failed(self._door, hit, "open", path)
        super().__init__(disk, path, block_cache=block_cache, owner=owner)
        self._points.passed("index-opened")

    def get(self, key: bytes) -> bytes | None:
        if self._door.armed:
            hit = self._door.hit(Facts(operation="read"), kinds_at("index", "read"))
            failed(self._door, hit, "read", self.path)
        return super().get(key)

    def write(
        self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = (), *, sync: bool
    ) -> None:
        is_torn = self._check("write")
        logs = self._log_sizes() if is_torn else {}
        super().write(puts, deletes, sync=sync)
        if is_torn:
            self._tear(logs)
        self._points.passed("index-written")

    def flush(self) -> None:
        self._check("sync")
        super().flush()

    def _check(self, operation: str) -> bool:
        """Raise or wait as the rules say. True if the write has to be torn."""
        if self._failure is not None:
            raise StorageError(f"{self.path}: refused after an earlier failure: {self._failure}")
        if not self._door.armed:
            return False
        hit = self._door.hit(Facts(operation=operation), kinds_at("index", operation))
        try:
            failed(self._door, hit, operation, self.path)
        except ReadOnly:
            raise  # nothing was written
        except StorageError as error:
            self._failure = error
            raise
        return has(hit, "torn")

    def _log_sizes(self) -> dict[str, int]:
        paths = [os.path.join(self.path, name) for name in os.listdir(self.path) if name.endswith(".log")]
        return {path: os.path.getsize(path) for path in paths}

    def _tear(self, before: dict[str, int]) -> None:
        """Cut off half of what the write-ahead log has grown by."""
        for path, now_bytes in self._log_sizes().items():
            grown_bytes = now_bytes - before.get(path, 0)
            if grown_bytes > 0:
                os.truncate(path, now_bytes - (grown_bytes + 1) // 2)
        kill_process()
