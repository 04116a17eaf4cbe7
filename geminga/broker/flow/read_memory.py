"""The memory of reads for consumers: bytes requested from the bookie that are not in an outbox yet.

A read takes its room before it begins and returns it when its entries are dispatched. Reads that find no
room wait in a queue, first come, first served. One read is always allowed, however large.
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
        # 200 consumers that did not read once took 717 MB of a budget of 192: 4 MiB in each outbox, and a
        # read for each that had nowhere to go.
        self._turn = trio.StrictFIFOLock()
        self._changed = trio.Event()

    def try_take(self, size_bytes: int) -> bool:
        """Take this many bytes if they fit now and no read waits."""
        if self._turn.locked() or not self._fits(size_bytes):
            return False
        self.used_bytes += size_bytes
        return True

    async def take(self, size_bytes: int) -> None:
        """Take this many bytes after the reads that have waited longer. Cancelling takes nothing."""
        self.waits += 1
        # A lock in front of the event: a large read would never find room while small ones pass it by.
        async with self._turn:
            while not self._fits(size_bytes):
                self._changed = trio.Event()
                await self._changed.wait()
            self.used_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        """Return what `take` or `try_take` took."""
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0
        self._changed.set()

    def _fits(self, size_bytes: int) -> bool:
        # A message that is larger than all of the memory has to be read too: alone.
        return not self.used_bytes or self.used_bytes + size_bytes <= self.bytes_max
