"""How many bytes are behind a position, wherever it is: what a backlog quota by size is judged by."""

from __future__ import annotations

from geminga.managed_ledger.managed_ledger import ManagedLedgerSettings
from geminga.position import Position

BODY_BYTES = 100


async def test_the_bytes_behind_every_position_of_several_ledgers(rooms, publish):
    async with rooms() as r:
        ledger = await r.open(ManagedLedgerSettings(ledger_entries_max=10, rollover_min_ms=0))
        positions = await publish(ledger, [b"x" * BODY_BYTES] * 25)
        assert len({position.ledger_id for position in positions}) == 3
        behind = [ledger.estimated_bytes_after(position) for position in positions]
        assert behind == [BODY_BYTES * left for left in range(24, -1, -1)]
        assert (
            ledger.estimated_bytes_after(Position(positions[0].ledger_id, -1))
            == ledger.total_size_bytes
            == 2500
        )


async def test_only_the_ledger_of_the_position_counts_by_share(rooms, publish):
    """Entries of the other ledgers are of another size."""
    async with rooms() as r:
        ledger = await r.open(ManagedLedgerSettings(ledger_entries_max=4, rollover_min_ms=0))
        positions = await publish(ledger, [b"x" * 10, b"x" * 30] * 2 + [b"x" * 1000] * 4 + [b"x"] * 2)
        assert ledger.estimated_bytes_after(positions[0]) == 60 + 4000 + 2
        assert ledger.estimated_bytes_after(positions[2]) == 20 + 4000 + 2
        assert ledger.estimated_bytes_after(positions[5]) == 2000 + 2
