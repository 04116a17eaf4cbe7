"""The memory of unsent bytes: the total of all outboxes, and which of them may grow.

Up to `bytes_max` an outbox may fill to its own limit. Above that, memory is "tight": an outbox gets one
small read at a time, and the next one only when the system has taken that and the socket can take more. So a
peer that reads continues at nearly its usual rate, and a peer that does not read holds one read at most. At
`BEYOND_BYTES` more, memory is "full", which takes large messages and many peers that do not read. Then no
outbox gets messages until there is room, and a peer that takes next to nothing while others wait is
disconnected.
"""

from __future__ import annotations

from collections.abc import Callable

from geminga.limits import KIB, MIB

# A hard bound at `bytes_max` would stop the peers that read for the sake of those that do not.
BEYOND_BYTES = 32 * MIB
"""The outboxes may exceed their part of the memory by this much, so that peers that read continue."""
READ_BYTES_TIGHT = 128 * KIB
"""The limit of one read for an outbox when memory is tight; a single larger message is allowed."""


class SendMemory:
    """One per broker; all outboxes share it."""

    __slots__ = ("_waiting", "bytes_max", "full_bytes", "pending_bytes", "waits")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.full_bytes = bytes_max + BEYOND_BYTES
        self.pending_bytes = 0
        self.waits = 0
        """How often an outbox with room of its own had to wait for others."""
        # A dict for its order: the outbox that waited longest is called first.
        self._waiting: dict[Callable[[], None], None] = {}

    def take(self, size_bytes: int) -> bool:
        """An outbox has grown by this many bytes. Returns True if memory is tight now."""
        # Never refused: the bytes exist already, and a receipt must not be lost for want of room.
        self.pending_bytes += size_bytes
        return self.pending_bytes > self.bytes_max

    def is_tight(self) -> bool:
        return self.pending_bytes > self.bytes_max

    def is_full(self) -> bool:
        return self.pending_bytes >= self.full_bytes

    def has_waiting(self) -> bool:
        """Whether `give` may have callbacks to call."""
        return bool(self._waiting)

    def is_wanted(self) -> bool:
        """Whether an outbox waits for the memory of others."""
        return bool(self._waiting) and self.is_full()

    def read_bytes_max(self, own_bytes: int) -> int:
        """How many bytes to read for an outbox with room for `own_bytes` by its own limit."""
        # Never 0: with all memory used up, the peer that reads fastest still gets one small read after the
        # other.
        return max(READ_BYTES_TIGHT, min(own_bytes, self.bytes_max - self.pending_bytes))

    def wait(self, has_room: Callable[[], None]) -> None:
        """Call `has_room` once, when memory is no longer full."""
        # `is_writable` is asked again and again while memory is full: it counts as one wait.
        if has_room not in self._waiting:
            self._waiting[has_room] = None
            self.waits += 1

    def leave(self, has_room: Callable[[], None]) -> None:
        """Undo `wait`."""
        self._waiting.pop(has_room, None)

    def give(self, size_bytes: int) -> None:
        """An outbox has shrunk by this many bytes. Calls the callbacks that wait, in the order of their
        registration.
        """
        self.pending_bytes -= size_bytes
        assert self.pending_bytes >= 0
        if self._waiting and not self.is_full():
            # Swapped first: a call that finds the memory full again waits for the next time.
            waiting, self._waiting = self._waiting, {}
            for has_room in waiting:
                has_room()
