"""Metadata that is older than the ledgers; and a topic whose last ledger has lost its first entry."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from geminga.errors import CorruptData
from geminga.managed_ledger.orphans import sweep_unrecorded_ledgers
from geminga.metadata import records


async def test_nothing_is_deleted_when_the_metadata_is_an_old_copy(
    rooms: Any, publish: Any, tmp_path: Path
) -> None:
    async with rooms() as r:
        await publish(await r.open(), [b"first"])
    shutil.copytree(tmp_path / "metadata", tmp_path / "old")
    async with rooms() as r:
        [position] = await publish(await r.open(), [b"second"])
        held = r.bookie.ledgers()
        assert position.ledger_id in held
    shutil.rmtree(tmp_path / "metadata")
    (tmp_path / "old").rename(tmp_path / "metadata")
    async with rooms() as r:
        with pytest.raises(CorruptData, match=f"ledger {position.ledger_id}, .* older than the ledgers"):
            await sweep_unrecorded_ledgers(r.bookie, r.metadata)
        assert r.bookie.ledgers() == held


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


async def test_a_lost_index_after_all_topics_were_deleted_does_not_refuse_a_start(
    rooms: Any, publish: Any, tmp_path: Path
) -> None:
    async with rooms() as r:
        ledger = await r.open()
        [position] = await publish(ledger, [b"of a topic that was deleted"])
        await ledger.delete()
        assert r.metadata.children(records.LEDGERS) == []
    shutil.rmtree(tmp_path / "index")
    (tmp_path / "index").mkdir()
    async with rooms() as r:
        assert r.bookie.ledgers() == {position.ledger_id}
        assert await sweep_unrecorded_ledgers(r.bookie, r.metadata) == [position.ledger_id]
        assert r.bookie.ledgers() == set()
