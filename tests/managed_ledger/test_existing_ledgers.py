"""The metadata's word on which ledgers there are, which the bookie deletes by."""

from __future__ import annotations

from typing import Any

from geminga.managed_ledger.orphans import existing_ledgers


async def test_every_ledger_that_a_topic_writes_exists_and_others_do_not(rooms: Any) -> None:
    async with rooms() as r:
        ledger = await r.open()
        await ledger.open_cursor("sub", initial="earliest")
        for body in (b"a", b"b"):
            ledger.append([body], None)
        while ledger.last_confirmed.entry_id < 1:
            await r.bookie.flush()
        cursor = ledger.cursors["sub"]
        cursor.acknowledge([ledger.last_confirmed])
        await cursor.persist()
        there = r.bookie.inventory.ledgers()
        assert len(there) == 2
        wanted = [*there, 10**6]
        assert await existing_ledgers(r.metadata, wanted) == there
