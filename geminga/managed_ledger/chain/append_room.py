"""How much waits for a ledger. While a topic's next ledger is made durable its entries queue."""

from __future__ import annotations

from collections.abc import Callable


class AppendRoom:
    """One per process, shared by all managed ledgers. It only counts: the bound is that of whoever reads from
    publishers.
    """

    __slots__ = ("on_freed", "waiting_bytes")

    def __init__(self) -> None:
        self.waiting_bytes = 0
        self.on_freed: Callable[[], None] = _nobody_waits

    def take(self, size_bytes: int) -> None:
        """An entry of that size begins to wait. Never refused: it has been read already."""
        self.waiting_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        """Entries have found their ledger, or have failed."""
        self.waiting_bytes -= size_bytes
        assert self.waiting_bytes >= 0
        self.on_freed()


def _nobody_waits() -> None:
    pass
