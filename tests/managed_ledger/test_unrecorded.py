"""Metadata and bookie compared: which side is behind, and what is said of it."""

from __future__ import annotations

from typing import Any

from geminga.bookie.index.index_format import Usage
from geminga.bookie.offline.held_ledgers import HeldLedgers
from geminga.bookie.records.ledger_name import LedgerName
from geminga.managed_ledger.restore import HOLDER, Restorer, StoredLedgers
from geminga.managed_ledger.unrecorded import TOPICS_NAMED_MAX, compare, ledgers_by_topic, ranges_text
from geminga.metadata import records
from geminga.metadata.records import (
    CursorRecord,
    LedgerIdsRecord,
    LedgerInfo,
    LedgerRecord,
    ManagedLedgerRecord,
    encode,
)

PATH = "/managed-ledgers/public/default/persistent/orders"
NONE: frozenset[int] = frozenset()


def held(*ids: int, aside: Any = NONE, deleted: Any = NONE, doubtful: Any = NONE) -> HeldLedgers:
    return HeldLedgers({each: Usage(10, 100) for each in ids}, set(aside), set(deleted), set(doubtful))


async def fill(metadata: Any, ids: list[int], named: list[int]) -> None:
    await metadata.put(LedgerIdsRecord.path, encode(LedgerIdsRecord(next_id=101)))
    for each in ids:
        record = LedgerRecord(topic=PATH, purpose="data", created_ms=1)
        await metadata.put(records.ledger_path(each), encode(record))
    topic = ManagedLedgerRecord(ledgers=[LedgerInfo(ledger_id=each) for each in named])
    await metadata.put(PATH, encode(topic))


async def test_what_a_crash_leaves_is_not_behind(rooms: Any) -> None:
    async with rooms() as r:
        await fill(r.metadata, [3, 4, 5, 6], [3, 4])
        # 5 is deleted, with its record left; 6 has no entry yet.
        found = compare(held(3, 4, deleted=[5]), r.metadata)
        assert not found.is_behind


async def test_a_held_ledger_without_a_record_is_behind_unless_its_index_is_new(rooms: Any) -> None:
    async with rooms() as r:
        await fill(r.metadata, [3], [3])
        found = compare(held(3, 4), r.metadata)
        assert (found.is_behind, found.unrecorded, found.doubtful) == (True, [4], [])
        found = compare(held(3, 4, doubtful=[3, 4]), r.metadata)
        assert (found.is_behind, found.unrecorded, found.doubtful) == (False, [], [4])
        found = compare(held(3, 4, aside=[4]), r.metadata)
        assert (found.is_behind, found.aside) == (False, [4])


async def test_an_id_that_was_never_given_is_behind_whatever_the_index(rooms: Any) -> None:
    async with rooms() as r:
        await fill(r.metadata, [3], [3])
        found = compare(held(3, 101, doubtful=[3, 101]), r.metadata)
        assert (found.is_behind, found.unrecorded) == (True, [101])
        assert compare(held(3, deleted=[101]), r.metadata).is_behind


async def test_a_topic_that_names_a_deleted_ledger_is_behind(rooms: Any) -> None:
    async with rooms() as r:
        await fill(r.metadata, [3, 4], [3, 4])
        found = compare(held(4, deleted=[3]), r.metadata)
        assert (found.is_behind, found.deleted) == (True, {PATH: [3]})


def test_no_metadata_is_behind_any_ledger() -> None:
    assert compare(held(1), None).unrecorded == [1]
    assert not compare(held(), None).is_behind


def test_ledgers_are_told_by_topic() -> None:
    names = {3: LedgerName("data", PATH), 4: LedgerName("data", PATH), 6: LedgerName("cursor", PATH)}
    assert ledgers_by_topic([3, 4, 6, 9], held(3, 4, 6, 9).held, names) == [
        "persistent://public/default/orders: 2 ledgers (3-4), 20 entries",
        "persistent://public/default/orders (cursors): 1 ledger (6), 10 entries",
        "of a topic that no file names: 1 ledger (9), 10 entries",
    ]
    many = {each: LedgerName("data", f"{PATH}-{each}") for each in range(50)}
    assert ledgers_by_topic(range(50), {}, many)[TOPICS_NAMED_MAX:] == ["... and 30 more topics"]
    assert ranges_text([1, 2, 3, 5, 8, 9]) == "1-3, 5, 8-9"


async def test_a_topic_that_gets_ledgers_back_gets_a_subscription_before_them(rooms: Any) -> None:
    stored = StoredLedgers(lambda _: 10, lambda _: 9, lambda _: 100, lambda *_: [])
    async with rooms() as r:
        restorer = Restorer(r.metadata, stored, cluster="standalone", now_ms=1)
        for added, holder in (([7, 8], HOLDER), ([], ""), ([3], f"{HOLDER}-2")):
            result = await restorer.restore(PATH, added, [])
            assert (result.holder if result else "") == holder
        for name, first in ((HOLDER, 7), (f"{HOLDER}-2", 3)):
            path = records.cursor_path(PATH, name)
            held = records.decode(CursorRecord, r.metadata.get(path).value, path)
            assert (held.mark_delete, held.cursor_ledger_id) == ((first, -1), -1)
        assert await restorer.restore(PATH, [], [], is_cursor_lost=True) is None
