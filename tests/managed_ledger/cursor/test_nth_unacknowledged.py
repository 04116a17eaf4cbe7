"""The n-th entry of a backlog, over holes and ledgers."""

from __future__ import annotations

import pytest

from geminga.managed_ledger.managed_ledger import ManagedLedgerSettings


@pytest.mark.parametrize(
    "acknowledged",
    [
        set(),
        {0, 1, 3, *range(6, 32)},
        {9, 10, 19, 20, 34},
        set(range(0, 35, 2)),
        set(range(35)),
        {*range(5), *range(12, 28)},
    ],
    ids=["nothing", "a run", "ends of ledgers", "every other", "everything", "a whole ledger"],
)
async def test_each_number_finds_its_entry(rooms, publish, acknowledged):
    async with rooms() as r:
        ledger = await r.open(ManagedLedgerSettings(ledger_entries_max=10, rollover_min_ms=0))
        positions = await publish(ledger, [b"%d" % number for number in range(35)])
        cursor = await ledger.open_cursor("s", initial="earliest")
        cursor.acknowledge([positions[number] for number in sorted(acknowledged)])
        backlog = [positions[number] for number in range(35) if number not in acknowledged]
        found = [cursor.nth_unacknowledged(number) for number in range(1, len(backlog) + 2)]
        assert found == [*backlog, None]
        assert cursor.nth_unacknowledged(2**31 - 1) is None
