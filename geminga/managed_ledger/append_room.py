"""How much may wait for a ledger. While a topic's next ledger is made durable its entries queue."""

from __future__ import annotations

import trio

from geminga.limits import ENTRY_BYTES_MAX, MIB

WAITING_BYTES_MAX = 8 * MIB
"""Above this, over all topics, publishers should be held back."""

assert WAITING_BYTES_MAX > ENTRY_BYTES_MAX


class AppendRoom:
    """One per process, shared by all managed ledgers. Who reads from publishers asks it and the bookie."""

    __slots__ = ("_freed", "waiting_bytes")

    def __init__(self) -> None:
        self.waiting_bytes = 0
        self._freed = trio.Event()

    def has_room(self) -> bool:
        return self.waiting_bytes < WAITING_BYTES_MAX

    async def wait_room(self) -> None:
        """Return once `has_room()`. Cancelling leaves nothing behind."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self.has_room():
            if self._freed.is_set():
                self._freed = trio.Event()
            await self._freed.wait()

    def take(self, size_bytes: int) -> None:
        """An entry of that size begins to wait. Never refused: it is up to the publisher's reader to ask."""
        self.waiting_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        """Entries have found their ledger, or have failed."""
        self.waiting_bytes -= size_bytes
        assert self.waiting_bytes >= 0
        self._freed.set()
