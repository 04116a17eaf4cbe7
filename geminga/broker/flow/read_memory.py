"""The memory of what is being read for consumers: bytes asked of the bookie and not handed to an outbox yet.

A read takes its room before it begins and gives it back when its entries are handed out. Reads that find none
queue up and begin in the order of their coming. One read is always allowed, however large.
"""

from __future__ import annotations

import trio


class ReadMemory:
    """One per broker; all dispatchers share it."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self.waits = 0
        """How often a read had to wait."""
        self._turn = trio.StrictFIFOLock()
        self._changed = trio.Event()

    def try_take(self, size_bytes: int) -> bool:
        """Take that much if it fits now and no read waits."""
        if self._turn.locked() or not self._fits(size_bytes):
            return False
        self.used_bytes += size_bytes
        return True

    async def take(self, size_bytes: int) -> None:
        """Take that much after those who came earlier. Cancelling leaves nothing behind."""
        self.waits += 1
        async with self._turn:
            while not self._fits(size_bytes):
                self._changed = trio.Event()
                await self._changed.wait()
            self.used_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        """What `take` or `try_take` took."""
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0
        self._changed.set()

    def _fits(self, size_bytes: int) -> bool:
        return not self.used_bytes or self.used_bytes + size_bytes <= self.bytes_max
