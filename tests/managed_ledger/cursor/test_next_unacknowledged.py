"""Where a cursor goes on from any place, over what was acknowledged beyond its mark-delete position."""

from __future__ import annotations

from geminga.managed_ledger.managed_ledger import ManagedLedgerSettings
from geminga.position import EARLIEST


async def test_the_next_unacknowledged_entry_is_found_over_runs_and_ledgers(rooms, publish):
    async with rooms() as r:
        ledger = await r.open(ManagedLedgerSettings(ledger_entries_max=10, rollover_min_ms=0))
        positions = await publish(ledger, [b"%d" % number for number in range(35)])
        cursor = await ledger.open_cursor("s", initial="earliest")
        acknowledged = {0, 1, 3, *range(6, 32)}
        cursor.acknowledge([positions[number] for number in acknowledged])
        after = [min(set(range(number, 35)) - acknowledged) for number in range(35)]
        assert [cursor.next_unacknowledged(place) for place in positions] == [positions[n] for n in after]
        assert cursor.next_unacknowledged(EARLIEST) == positions[2]
        cursor.acknowledge(positions[32:])
        assert cursor.next_unacknowledged(positions[6]) == positions[34].next()
