"""Ledgers without a record; and a topic whose last ledger has lost its first entry."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from geminga.errors import CorruptData, LedgerNotFound
from geminga.managed_ledger.unrecorded import set_aside_unrecorded
from geminga.metadata import records


async def test_a_lost_first_entry_does_not_refuse_the_others(
    rooms: Any, publish: Any, tmp_path: Path
) -> None:
    async with rooms(crash=True) as r:
        ledger = await r.open()
        [lost] = await publish(ledger, [b"the one that is lost"])
        [kept] = await publish(ledger, [b"the one that is kept"])
    hit = 0
    for journal in (tmp_path / "bookie" / "journal").iterdir():
        content = journal.read_bytes()
        hit += content.count(b"the one that is lost")
        journal.write_bytes(content.replace(b"the one that is lost", b"the one that is l0st"))
    assert hit == 1
    async with rooms() as r:
        assert r.bookie.recovery.entries_lost == 1
        ledger = await r.open()
        [entry] = await ledger.read_positions([kept])
        assert entry.body == b"the one that is kept"
        with pytest.raises(CorruptData):
            await ledger.read_positions([lost])


async def test_a_lost_index_after_all_topics_were_deleted_sets_their_ledgers_aside(
    rooms: Any, publish: Any, tmp_path: Path
) -> None:
    async with rooms() as r:
        ledger = await r.open()
        [position] = await publish(ledger, [b"of a topic that was deleted"])
        await ledger.life.delete()
        assert r.metadata.children(records.LEDGERS) == []
    shutil.rmtree(tmp_path / "index")
    (tmp_path / "index").mkdir()
    async with rooms(crash=True):
        pass  # the index is made anew, and nobody has looked at its ledgers yet
    async with rooms() as r:
        assert r.bookie.inventory.unsorted() == {position.ledger_id}
        assert await set_aside_unrecorded(r.bookie, r.metadata) == [position.ledger_id]
        assert r.bookie.inventory.ledgers() == set()
        assert r.bookie.inventory.unsorted() is None
        await r.bookie.collect_garbage()
    async with rooms() as r:
        assert await set_aside_unrecorded(r.bookie, r.metadata) == []
        assert r.bookie.inventory.aside() == {position.ledger_id}
        with pytest.raises(LedgerNotFound, match="set aside"):
            await r.bookie.read(position.ledger_id, 0, 0, bytes_max=100)
        await r.bookie.inventory.set_aside([], lift=[position.ledger_id])
        [body] = await r.bookie.read(position.ledger_id, 0, 0, bytes_max=100)
        assert body == b"of a topic that was deleted"


async def test_a_ledger_aside_is_served_again_once_it_has_a_record(rooms: Any, publish: Any) -> None:
    async with rooms() as r:
        [position] = await publish(await r.open(), [b"of a topic whose record was away"])
        await r.bookie.inventory.set_aside([position.ledger_id])
    async with rooms() as r:
        assert r.bookie.inventory.ledgers() == set()
        assert await set_aside_unrecorded(r.bookie, r.metadata) == []
        assert r.bookie.inventory.ledgers() == {position.ledger_id}
        [entry] = await (await r.open()).read_positions([position])
        assert entry.body == b"of a topic whose record was away"
