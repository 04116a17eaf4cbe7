"""What is told of a managed ledger that is not open: the figures that opening it finds."""

from __future__ import annotations

import pytest

from geminga.errors import TopicNotFound
from geminga.managed_ledger.cursor.cursor_ledger import Storage
from geminga.managed_ledger.managed_ledger import ManagedLedgerSettings
from geminga.managed_ledger.unopened import read_unopened
from geminga.metadata import records

SMALL = ManagedLedgerSettings(ledger_entries_max=10, rollover_min_ms=0)
TOPIC = "persistent://public/default/orders"


def storage_of(r, topic: str = TOPIC) -> Storage:
    path = records.managed_ledger_path(records.TopicName.parse(topic))
    return Storage(topic, path, r.bookie, r.metadata, r.ledger_ids, r.clock, SMALL)


@pytest.mark.parametrize("crash", [False, True], ids=["closed in order", "killed"])
async def test_the_figures_are_those_that_a_load_finds(rooms, publish, crash):
    async with rooms(crash=crash) as r:
        ledger = await r.open(SMALL)
        first = await ledger.open_cursor("far behind", initial="earliest")
        holes = await ledger.open_cursor("with holes", initial="earliest")
        positions = await publish(ledger, [b"x" * 100] * 25)
        await ledger.open_cursor("at the end", initial="latest")
        first.acknowledge(positions[:3])
        holes.acknowledge([*positions[:12], positions[15], positions[20]])
        await ledger.persist_cursors()
        await ledger.life.note_delayed(True)
        if not crash:
            await ledger.life.close()
    async with rooms() as r:
        before = r.metadata.statistics().requests
        told = await read_unopened(storage_of(r))
        assert r.metadata.statistics().requests == before, "something was written"
        found = {cursor.name: cursor.backlog_entries for cursor in told.cursors}
        assert found == {"far behind": 22, "with holes": 11, "at the end": 0}
        assert (told.entries, told.size_bytes) == (25, 2500)
        assert told.holds_delayed
        assert not told.has_buckets
        ledger = await r.open(SMALL)
        assert found == {name: cursor.backlog_entries() for name, cursor in ledger.cursors.items()}
        assert (told.entries, told.size_bytes, told.created_ms) == (
            ledger.number_of_entries,
            ledger.total_size_bytes,
            ledger.created_ms,
        )
        assert ledger.holds_delayed


async def test_one_without_an_entry_and_one_that_is_not_there(rooms):
    async with rooms() as r:
        ledger = await r.open(SMALL)
        await ledger.open_cursor("s", initial="earliest")
        await ledger.life.close()
    async with rooms() as r:
        told = await read_unopened(storage_of(r))
        assert [(cursor.name, cursor.backlog_entries) for cursor in told.cursors] == [("s", 0)]
        assert told.entries == told.size_bytes == 0
        with pytest.raises(TopicNotFound):
            await read_unopened(storage_of(r, "persistent://public/default/other"))
