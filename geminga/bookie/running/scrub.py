"""Checking closed entry logs in the background: all that the index names is read, slowly, over and over, so
that a flipped bit is found while a journal may still have the entry.

The newest logs come first: theirs is what journals still have. The scrub stands still while others need the
disk: while 64 KiB of entries or more wait for a journal, while a write cache is flushed, and while a read
waits for an entry log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio

from geminga.bookie.entry_logs.compaction_plan import pause_s
from geminga.bookie.running.healing import Healing
from geminga.bookie.running.storage import LedgerStorage
from geminga.errors import StorageError

QUEUED_BYTES_MAX: Final = 64 << 10
"""Of entries that wait for a journal; with more the scrub waits."""
BUSY_S: Final = 0.1
"""So long until it looks again."""
START_S: Final = 1.0
"""After a start clients come first."""
REST_S: Final = 60.0
"""Between two passes over all logs."""
ENTRY_BYTES_MIN: Final = 512
"""A shorter entry counts as much: it costs as much time."""
log = logging.getLogger("geminga.bookie")


class Scrub:
    """Of one ledger directory. On the loop; files are read off it, 256 KiB at a time."""

    def __init__(
        self,
        storage: LedgerStorage,
        healing: Healing,
        *,
        rate_bytes_per_s: int,
        is_busy: Callable[[], bool],
    ) -> None:
        """A rate of 0: nothing is read."""
        self.bytes = self.passes = 0
        """Read so far; passes over all logs that were finished."""
        self._storage = storage
        self._healing = healing
        self._rate = rate_bytes_per_s
        self._is_busy = is_busy
        self._remarks: set[str] = set()
        self._running = trio.CancelScope()

    async def run(self) -> None:
        """Until `stop`. Where it was is forgotten then: the next start begins with the newest log."""
        with self._running:
            await trio.sleep(START_S)
            while self._rate:
                # The newest first: only what was written lately is still in a journal, from which damage can
                # be healed.
                for log_id in self._storage.closed_logs():
                    try:
                        await self._check(log_id)
                    except StorageError as error:
                        # A failed write has ended the bookie already; a log that cannot be read is no more
                        # damaged than it was.
                        self._remark(f"entry log {log_id} is not checked in full: {error}")
                self.passes += 1
                await trio.sleep(REST_S)

    def stop(self) -> None:
        """End `run` soon; what is being written is finished."""
        self._running.cancel()

    async def _check(self, log_id: int) -> None:
        disk, check = self._storage.disk, self._storage.log_check(log_id)
        while True:
            if self._is_busy():
                await trio.sleep(BUSY_S)
                continue
            started = trio.current_time()
            piece = await disk.run(check.next)
            if piece is None:
                break
            self.bytes += piece.bytes
            # Healed at once, before the journal that has the entries is written over.
            if piece.damaged:
                await self._healing.heal(piece.damaged)
            # Bytes alone would let a log of tiny entries take a whole core: each record costs its Python
            # part.
            weight = max(piece.bytes, piece.entries * ENTRY_BYTES_MIN)
            await trio.sleep(pause_s(weight, trio.current_time() - started, self._rate))
        for remark in await disk.run(self._storage.remarks, log_id):
            self._remark(f"{remark}; all entries can be read")

    def _remark(self, text: str) -> None:
        if text not in self._remarks and len(self._remarks) < 1000:
            self._remarks.add(text)
            log.warning("%s", text)
