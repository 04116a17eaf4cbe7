"""How fast a topic's managed ledger reads from the bookie, and writes the states of its cursors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from geminga.broker.flow.rates import Rate

if TYPE_CHECKING:
    from geminga.managed_ledger.managed_ledger import ManagedLedger


class LedgerRates:
    """Over the last interval."""

    __slots__ = ("mark_deletes", "read_bytes", "reads")

    def __init__(self) -> None:
        self.reads = Rate()
        """Entries that were not in the tail cache..."""
        self.read_bytes = Rate()
        """...and their bytes."""
        self.mark_deletes = Rate()
        """States of durable cursors that were written."""

    def measure(self, ledger: ManagedLedger, saved: int, elapsed_s: float) -> None:
        """Close one interval of `elapsed_s` seconds. `saved`: of all cursors, since they were opened."""
        self.reads.measure(ledger.reads.entries_from_bookie, elapsed_s)
        self.read_bytes.measure(ledger.reads.bytes_read, elapsed_s)
        self.mark_deletes.measure(saved, elapsed_s)
