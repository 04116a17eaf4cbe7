"""Buckets that are looked at while they serve, and what the bookie says of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio

from geminga.bookie.records.records import Run
from geminga.chaos.bucket_damage import IsLost, damage_bucket
from geminga.errors import StorageError
from geminga.tracker.buckets.bucket_settings import BucketSettings
from geminga.tracker.buckets.verify import Verdict, Verifier, Wrong, inspect
from geminga.tracker.format.bucket_format import DirectoryBuilder, members_of
from geminga.tracker.format.stored_bucket import KeyRange, StoredBucket
from tests.tracker.bucket_world import World, at_once

ROOMY = BucketSettings(indexes_min=10**6, segment_span_ms=10**7, segment_indexes_max=4, buckets_max=-1)


async def two_buckets(world: World) -> None:
    await world.seal(10, after_ms=600_000)
    await world.seal(10, after_ms=600_000)


async def look_at_all(world: World) -> list[Verdict]:
    return [await inspect(world.buckets, bucket, "verify") for bucket in world.buckets.stored]


def test_good_buckets_stay_and_nothing_of_them_is_kept_in_memory() -> None:
    world = World(1, ROOMY)

    async def script(world: World) -> None:
        await two_buckets(world)
        await world.bookie.flush()
        cached = [directory.reader.cache_bytes for directory in world.bookie.directories]
        verdicts = await look_at_all(world)
        assert [(v.state, v.segments, v.rows, v.wrong) for v in verdicts] == [("ok", 5, 20, ())] * 2
        assert [v.bytes for v in verdicts] == [b.bytes for b in world.buckets.stored]
        assert [directory.reader.cache_bytes for directory in world.bookie.directories] == cached
        assert (len(world.buckets.stored), world.rereads) == (2, [])
        assert not any(bucket.loaded for _, bucket in world.index.buckets.items())

    assert world.run(script)


@pytest.mark.parametrize(
    ("how", "state", "text"),
    [
        ("lose", "lost", "is deleted"),
        ("truncate", "damaged", "the end of a bucket"),
        ("corrupt", "damaged", "segment 0: a segment of a bucket"),
    ],
)
def test_what_is_damaged_quietly_is_found_by_looking(how: Any, state: str, text: str) -> None:
    world = World(1, ROOMY)

    async def script(world: World) -> None:
        await two_buckets(world)
        first, second = world.buckets.stored
        del world.owner.swap  # what it names now is no whole bucket
        await damage_bucket(world.buckets, how, first.ledger_id, quietly=True)
        await world.settled()
        await trio.sleep(60)
        assert world.buckets.stored == [first, second], "it has not found out by itself"
        verdicts = await look_at_all(world)
        assert [verdict.state for verdict in verdicts] == [state, "ok"]
        assert text in verdicts[0].text
        assert world.buckets.stored == [second]
        assert world.rereads == [(first.start_ledger, first.end_ledger)]
        assert world.buckets.losses.by == {"start": 0, "load": 0, "verify": 1, "told": 0}

    assert world.run(script)


@pytest.mark.parametrize("how", ["lose", "truncate", "corrupt"])
def test_what_is_damaged_aloud_is_lost_at_once_and_only_once(how: Any) -> None:
    world = World(1, ROOMY)

    async def script(world: World) -> None:
        await two_buckets(world)
        first, second = world.buckets.stored
        del world.owner.swap
        ledger_id = await damage_bucket(world.buckets, how, None, quietly=False)
        assert world.buckets.stored == [second]
        assert world.rereads == [(first.start_ledger, first.end_ledger)]
        with pytest.raises(IsLost, match=f"the bucket in ledger {ledger_id} is lost already"):
            await damage_bucket(world.buckets, "lose", ledger_id, quietly=False)
        await world.settled()
        assert world.buckets.losses.by["told"] == 1
        assert world.bucket_ledgers() == {second.ledger_id}

    assert world.run(script)


def test_a_ledger_that_is_deleted_under_a_bucket_is_noticed_at_once() -> None:
    world = World(1, ROOMY)

    async def script(world: World) -> None:
        await two_buckets(world)
        first, second = world.buckets.stored
        started_s = trio.current_time()
        await world.bookie.delete_ledger(first.ledger_id)
        await trio.testing.wait_all_tasks_blocked()
        assert trio.current_time() == started_s
        assert world.buckets.stored == [second]
        assert world.buckets.losses.by["told"] == 1

    assert world.run(script)


def test_a_damaged_entry_that_the_scrub_finds_is_noticed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the entry is in the read cache still, and the bucket could be read as it is."""
    world = World(1, ROOMY)

    async def script(world: World) -> None:
        await two_buckets(world)
        first, second = world.buckets.stored
        (directory,) = world.bookie.directories
        await world.bookie.flush()
        await world.store.read_segment(first, 1)
        damaged = Run(first.ledger_id, 1, 1)

        async def of_these(runs: Any) -> list[Run]:
            return [run for run in runs if run == damaged]

        peek = world.bookie.peek

        async def peek_damaged(ledger_id: int, *asked: int, bytes_max: int) -> list[bytes]:
            (entry, *others) = await peek(ledger_id, *asked, bytes_max=bytes_max)
            cached = directory.reader.read_memory(ledger_id, 1, 1, 1)
            assert not cached or ledger_id != first.ledger_id
            return [entry[:-1] + b"?" if ledger_id == first.ledger_id else entry, *others]

        monkeypatch.setattr(directory.storage, "damaged", of_these, raising=False)
        monkeypatch.setattr(directory.healing, "_search", lambda _: _found_none())
        monkeypatch.setattr(world.bookie, "peek", peek_damaged)
        assert not await directory.healing.heal([damaged])
        await trio.testing.wait_all_tasks_blocked()
        assert world.buckets.stored == [second]
        assert world.buckets.losses.by["told"] == 1

    assert world.run(script)


async def _found_none() -> Any:
    return SimpleNamespace(entries=0, find=lambda *_: None)


def test_a_bucket_that_cannot_be_read_now_is_unreadable_and_stays() -> None:
    world = World(1, ROOMY)

    async def script(world: World) -> None:
        await two_buckets(world)
        before = world.buckets.stored
        peek = world.store.peek

        async def failing(*_: Any) -> Any:
            raise StorageError("Too many open files")

        world.store.peek = failing  # type: ignore[method-assign]
        assert [(v.state, v.text) for v in await look_at_all(world)] == [
            ("unreadable", "Too many open files")
        ] * 2
        world.buckets.tell(before[0].ledger_id)
        await trio.sleep(100)
        assert (world.buckets.stored, world.rereads) == (before, [])
        world.store.peek = peek  # type: ignore[method-assign]
        await trio.sleep(6)
        assert (world.buckets.stored, world.buckets.told) == (before, set())

    assert world.run(script)


async def promise_another(world: World, good: StoredBucket) -> tuple[int, KeyRange]:
    """A ledger with the sound segments of `good`, whose directory names another entry in place of one of
    theirs, as a faulty writer would leave it; and the range that its name would have.
    """
    builder = DirectoryBuilder(good.start_ledger, good.end_ledger)
    segments, codes = [], []
    for number in range(good.directory.segments):
        rows = good.directory.decode_segment(number, await world.store.read_segment(good, number))
        codes += rows.codes.tolist()
        segments.append(builder.add(rows))
    members = members_of(np.array(codes, np.int64))
    # The first and the last position stay: the directory alone gives no hint.
    promised = members[good.start_ledger]
    promised.remove(4)
    promised.add(400)
    async with world.store.writing() as writer:
        await writer.append([*segments, *builder.finish(members)])
        await writer.finish()
        writer.begin_naming()
    return writer.ledger_id, good.covered


def test_a_directory_that_promises_other_messages_than_its_segments_have_is_damaged() -> None:
    """The promised message would never come, and the message that the directory leaves out neither."""
    world = World(1, ROOMY)

    async def script(world: World) -> None:
        await two_buckets(world)
        good = world.buckets.stored[0]
        ledger_id, covered = await promise_another(world, good)
        verifier = Verifier(world.store, at_once)
        for served in (None, good.directory):
            verdict = await verifier.look(ledger_id, covered, served)
            assert (verdict.state, verdict.segments, verdict.rows) == ("damaged", 5, 20)
            assert verdict.wrong == (Wrong(None, "the directory has other messages than the segments"),)
        assert (await verifier.look(good.ledger_id, covered, None)).state == "ok"

    assert world.run(script)


def test_a_serving_bucket_that_promises_other_messages_is_lost_and_read_again() -> None:
    world = World(1, ROOMY)

    async def first_life(world: World) -> None:
        await two_buckets(world)
        good = world.buckets.stored[0]
        ledger_id, _ = await promise_another(world, good)
        await world.owner.swap({good.key: ledger_id}, {})

    async def second_life(world: World) -> None:
        wrong, good = sorted(world.buckets.stored, key=lambda bucket: bucket.start_ledger)
        world.rereads.clear()
        verdicts = {b.ledger_id: (await inspect(world.buckets, b, "verify")).state for b in (wrong, good)}
        assert verdicts == {wrong.ledger_id: "damaged", good.ledger_id: "ok"}
        assert world.buckets.stored == [good]
        assert world.rereads == [(wrong.start_ledger, wrong.end_ledger)]

    assert world.run(first_life)
    assert world.run(second_life)
