"""What is to be called when a ledger has lost entries for good: one function for each ledger, for a room
above that can make up for the loss.
"""

from __future__ import annotations

from collections.abc import Callable


class LedgerWatch:
    """Of one ledger directory. On the loop. A ledger is told of once, and forgotten then."""

    def __init__(self) -> None:
        self._tell: dict[int, Callable[[int], None]] = {}

    def watch(self, ledger_id: int, tell: Callable[[int], None]) -> None:
        """Call `tell` with the ledger's id when it has lost entries; instead of what was to be called."""
        self._tell[ledger_id] = tell

    def unwatch(self, ledger_id: int) -> None:
        self._tell.pop(ledger_id, None)

    def lost(self, ledger_id: int) -> None:
        """It is deleted, or some of its entries are damaged and in no journal."""
        tell = self._tell.pop(ledger_id, None)
        if tell is not None:
            tell(ledger_id)
