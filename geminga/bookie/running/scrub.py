"""Checks closed entry logs in the background: reads all records that the index names, slowly, over and over,
so that a flipped bit is found while a journal may still have the entry.

The newest logs come first, because journals still have their entries. The scrub pauses while other work
needs the disk: while 64 KiB of entries or more wait for a journal, while a write cache is flushed, and while
a read waits for an entry log.
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
"""The limit of entry bytes that wait for a journal; above it the scrub pauses."""
BUSY_S: Final = 0.1
"""The pause before the scrub checks again whether the disk is free."""
START_S: Final = 1.0
"""The delay after a start, when clients come first."""
REST_S: Final = 60.0
"""The pause between two passes over all logs."""
ENTRY_BYTES_MIN: Final = 512
"""A shorter entry counts as this many bytes, because it takes as much time."""
log = logging.getLogger("geminga.bookie")


class Scrub:
    """The scrub of one ledger directory. On the loop; reads files off it, 256 KiB at a time."""

    def __init__(
        self,
        storage: LedgerStorage,
        healing: Healing,
        *,
        rate_bytes_per_s: int,
        is_busy: Callable[[], bool],
    ) -> None:
        """A rate of 0 turns the scrub off."""
        self.bytes = self.passes = 0
        """Bytes read so far; completed passes over all logs."""
        self._storage = storage
        self._healing = healing
        self._rate = rate_bytes_per_s
        self._is_busy = is_busy
        self._remarks: set[str] = set()
        self._running = trio.CancelScope()

    async def run(self) -> None:
        """Run until `stop`. The progress is not stored: the next start begins with the newest log."""
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
        """End `run` soon, after a write that is under way."""
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
