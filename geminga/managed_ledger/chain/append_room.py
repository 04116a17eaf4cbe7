"""The memory of entries that wait for a ledger: a topic's entries queue while its next ledger is made
durable.
"""

from __future__ import annotations

from collections.abc import Callable


class AppendRoom:
    """One per process, shared by all managed ledgers. Only counts: the code that reads publishers' sockets
    enforces the bound.
    """

    __slots__ = ("_listeners", "waiting_bytes")

    def __init__(self) -> None:
        self.waiting_bytes = 0
        self._listeners: list[Callable[[], None]] = []

    def take(self, size_bytes: int) -> None:
        """An entry of that size begins to wait. Never refused, because it has been read already."""
        self.waiting_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        """Entries have found their ledger, or have failed."""
        self.waiting_bytes -= size_bytes
        # Given back twice, the count would admit more than the memory budget has, and nothing else would
        # notice.
        assert self.waiting_bytes >= 0
        for tell in self._listeners:
            tell()

    def call_when_freed(self, tell: Callable[[], None]) -> None:
        """Call `tell` from now on, each time that memory is released."""
        self._listeners.append(tell)
