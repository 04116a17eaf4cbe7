"""How much waits for a ledger. While a topic's next ledger is made durable its entries queue."""

from __future__ import annotations

from collections.abc import Callable


class AppendRoom:
    """One per process, shared by all managed ledgers. It only counts: the bound is held where publishers'
    sockets are read.
    """

    __slots__ = ("_listeners", "waiting_bytes")

    def __init__(self) -> None:
        self.waiting_bytes = 0
        self._listeners: list[Callable[[], None]] = []

    def take(self, size_bytes: int) -> None:
        """An entry of that size begins to wait. Never refused: it has been read already."""
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
        """Have `tell` called from now on, each time that something was given back."""
        self._listeners.append(tell)
