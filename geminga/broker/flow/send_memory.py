"""The memory of unsent bytes: what all outboxes hold, and which of them may hold more.

Up to `bytes_max` an outbox may fill to its own limit. Beyond that ("tight") it gets one small read at a time,
and the next one only when the system has taken that and the socket can take more: a peer that reads goes on
at nearly its usual rate, and a peer that does not read holds one read at most. At `BEYOND_BYTES` more
("full"), which takes large messages and many such peers, no outbox gets messages until there is room, and a
peer that takes next to nothing while others wait is disconnected.
"""

from __future__ import annotations

from collections.abc import Callable

from geminga.limits import KIB, MIB

# A hard bound at `bytes_max` would stop the peers that read for the sake of those that do not.
BEYOND_BYTES = 32 * MIB
"""The outboxes may exceed their part of the memory by so much, so that peers that read go on."""
READ_BYTES_TIGHT = 128 * KIB
"""The most that an outbox gets at once when memory is tight, or one message if that is larger."""


class SendMemory:
    """One per broker; all outboxes share it."""

    __slots__ = ("_waiting", "bytes_max", "full_bytes", "pending_bytes", "waits")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.full_bytes = bytes_max + BEYOND_BYTES
        self.pending_bytes = 0
        self.waits = 0
        """How often an outbox that had room of its own had to wait for others."""
        # A dict for its order: the outbox that waited longest is called first.
        self._waiting: dict[Callable[[], None], None] = {}

    def take(self, size_bytes: int) -> bool:
        """An outbox holds so many bytes more. Returns True if memory is tight now."""
        # Never refused: the bytes exist already, and a receipt must not be lost for want of room.
        self.pending_bytes += size_bytes
        return self.pending_bytes > self.bytes_max

    def is_tight(self) -> bool:
        return self.pending_bytes > self.bytes_max

    def is_full(self) -> bool:
        return self.pending_bytes >= self.full_bytes

    def has_waiting(self) -> bool:
        """True if `give` may have callbacks to call."""
        return bool(self._waiting)

    def is_wanted(self) -> bool:
        """True if an outbox waits for the memory that others hold."""
        return bool(self._waiting) and self.is_full()

    def read_bytes_max(self, own_bytes: int) -> int:
        """How many bytes to read for an outbox that has room for `own_bytes` by its own limit."""
        # Never 0: with all memory used up, the peer that reads fastest still gets one small read after the
        # other.
        return max(READ_BYTES_TIGHT, min(own_bytes, self.bytes_max - self.pending_bytes))

    def wait(self, has_room: Callable[[], None]) -> None:
        """Have `has_room` called, once, when memory is no longer full."""
        # `is_writable` is asked again and again while memory is full: it counts as one wait.
        if has_room not in self._waiting:
            self._waiting[has_room] = None
            self.waits += 1

    def leave(self, has_room: Callable[[], None]) -> None:
        """Undo `wait`."""
        self._waiting.pop(has_room, None)

    def give(self, size_bytes: int) -> None:
        """An outbox holds so many bytes less. Calls those that wait, in the order of their calls."""
        self.pending_bytes -= size_bytes
        assert self.pending_bytes >= 0
        if self._waiting and not self.is_full():
            # Swapped first: a call that finds the memory full again waits for the next time.
            waiting, self._waiting = self._waiting, {}
            for has_room in waiting:
                has_room()
