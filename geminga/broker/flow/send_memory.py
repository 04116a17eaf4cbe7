"""The memory of what waits to be sent: bytes that all outboxes hold, and which of them may hold more.

Up to `bytes_max` an outbox may fill to its own limit. Beyond that ("tight") an outbox is given one small read
at a time, and the next one only when the system has taken that and says that the socket can take more: a peer
that reads goes on at nearly its usual rate, and a peer that does not read holds one read at most. At
`BEYOND_BYTES` more ("full"), which takes large messages and many such peers, nothing is given to any outbox
until there is room, and a peer that takes next to nothing while others wait is disconnected.
"""

from __future__ import annotations

from collections.abc import Callable

from geminga.limits import KIB, MIB

BEYOND_BYTES = 32 * MIB
"""So far beyond their part the outboxes may go for the sake of peers that read."""
READ_BYTES_TIGHT = 128 * KIB
"""What an outbox may be given at once when memory is tight, or one message if that is larger."""


class SendMemory:
    """One per broker; all outboxes share it."""

    __slots__ = ("_waiting", "bytes_max", "full_bytes", "pending_bytes", "waits")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.full_bytes = bytes_max + BEYOND_BYTES
        self.pending_bytes = 0
        self.waits = 0
        """How often an outbox that had room of its own had to wait for others."""
        self._waiting: dict[Callable[[], None], None] = {}

    def take(self, size_bytes: int) -> bool:
        """An outbox holds so much more; whether memory is tight now."""
        self.pending_bytes += size_bytes
        return self.pending_bytes > self.bytes_max

    def is_tight(self) -> bool:
        return self.pending_bytes > self.bytes_max

    def is_full(self) -> bool:
        return self.pending_bytes >= self.full_bytes

    def has_waiting(self) -> bool:
        """Whether `give` may have something to tell."""
        return bool(self._waiting)

    def is_wanted(self) -> bool:
        """Whether an outbox waits for what others hold."""
        return bool(self._waiting) and self.is_full()

    def read_bytes_max(self, own_bytes: int) -> int:
        """How much may be read for an outbox that has room for `own_bytes` by its own limit."""
        return max(READ_BYTES_TIGHT, min(own_bytes, self.bytes_max - self.pending_bytes))

    def wait(self, has_room: Callable[[], None]) -> None:
        """Have `has_room` called, once, when memory is not full any more."""
        if has_room not in self._waiting:
            self._waiting[has_room] = None
            self.waits += 1

    def leave(self, has_room: Callable[[], None]) -> None:
        """It need not be called any more."""
        self._waiting.pop(has_room, None)

    def give(self, size_bytes: int) -> None:
        """An outbox holds so much less; those that wait are told in the order of their coming."""
        self.pending_bytes -= size_bytes
        assert self.pending_bytes >= 0
        if self._waiting and not self.is_full():
            waiting, self._waiting = self._waiting, {}
            for has_room in waiting:
                has_room()
