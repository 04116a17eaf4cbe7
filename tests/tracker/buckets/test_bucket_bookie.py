"""Buckets on the real bookie and the real disk, with real threads."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
import trio

from geminga.managed_ledger.cursor.cursor import Cursor
from geminga.tracker.buckets.bucket_settings import BucketSettings
from geminga.tracker.buckets.bucket_store import BucketStore, BucketWriter, CursorOwner
from geminga.tracker.buckets.buckets import Buckets
from geminga.tracker.buckets.recovery import Recovery
from geminga.tracker.buckets.tasks import run_buckets
from geminga.tracker.index.index import IndexSettings
from geminga.tracker.index.view import View
from tests.managed_ledger.conftest import HandClock, Rooms, open_rooms
from tests.tracker.taking import take

SEALS, BUCKETS_MAX, ROWS = 200, 50, 100
FIRST_LEDGER = 1_000_000


class Life:
    """One process's index and buckets of the one subscription."""

    def __init__(self, rooms: Rooms, store: BucketStore, cursor: Cursor) -> None:
        index_settings = IndexSettings(strict=True, exact=True, indexes_min=ROWS)
        settings = BucketSettings(indexes_min=ROWS, segment_indexes_max=50, buckets_max=BUCKETS_MAX)
        self.buckets = Buckets(store, CursorOwner(cursor), rooms.clock, index_settings, settings)
        self.index = self.buckets.index
        self.view = View(self.index)

    async def settled(self) -> None:
        with trio.fail_after(60):
            while (  # noqa: ASYNC110 - nobody is told that they are done
                self.buckets.frozen
                or self.buckets.dying
                or len(self.buckets.stored) > BUCKETS_MAX
                or self.index.wanted(self.index.now_ms())
            ):
                await trio.sleep(0.002)


async def open_life(rooms: Rooms) -> tuple[Life, Cursor]:
    topic = await rooms.open()
    cursor = await topic.open_cursor("s", initial="earliest")
    life = Life(rooms, BucketStore(topic.storage), cursor)
    await rooms.nursery.start(run_buckets, life.buckets)
    return life, cursor


async def test_200_seals_at_most_50_buckets_write_little_more_than_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pulsar writes 9.9 bytes for each byte here, 56 with at most 10, and does not keep up with the bound."""
    clock = HandClock()
    chance = random.Random(4)
    truth = {
        (FIRST_LEDGER + number, entry_id): clock.ms + 100_000 + chance.randrange(10**7)
        for number in range(SEALS)
        for entry_id in range(ROWS)
    }
    written: dict[int, int] = {}
    append = BucketWriter.append

    async def counted(writer: BucketWriter, entries: Iterable[bytes]) -> None:
        listed = list(entries)
        written[writer.ledger_id] = written.get(writer.ledger_id, 0) + sum(map(len, listed))
        await append(writer, listed)

    monkeypatch.setattr(BucketWriter, "append", counted)
    async with open_rooms(tmp_path, clock, crash=True) as rooms:
        life, _ = await open_life(rooms)
        once = 0
        sealed = life.index.sealed

        def sealing(frozen, bucket) -> None:
            nonlocal once
            once += bucket.bytes
            sealed(frozen, bucket)

        life.index.sealed = sealing  # type: ignore[method-assign]
        for number in range(SEALS):
            ledger_id = FIRST_LEDGER + number
            times_ms = [truth[ledger_id, entry_id] for entry_id in range(ROWS)]
            assert not life.view.add_many(ledger_id, range(ROWS), times_ms)
            life.index.feed.freeze_all()
            await life.settled()
        assert len(life.buckets.stored) <= BUCKETS_MAX
        counts = life.buckets.operations.counts
        assert (counts["create"].succeeded, counts["create"].failed) == (SEALS, 0)
        amplification = sum(written.values()) / once
        print(
            f"{SEALS} seals, at most {BUCKETS_MAX} buckets: {amplification:.2f} bytes for each written once, "
            f"{counts['merge'].succeeded} merges, {len(life.buckets.stored)} buckets"
        )
        assert amplification <= 4
        rooms.nursery.cancel_scope.cancel()
    async with open_rooms(tmp_path, clock) as rooms:
        life, cursor = await open_life(rooms)
        started = trio.current_time()
        recovery = Recovery(
            life.buckets,
            wanted=dict,
            on_known=lambda first, last: None,
        )
        await recovery.run()
        print(f"{len(life.view)} known after {(trio.current_time() - started) * 1000:.0f} ms")
        assert len(life.view) == len(truth)
        clock.ms += 2 * 10**7
        life.buckets.poke()
        taken: list[tuple[int, int]] = []
        with trio.fail_after(60):
            while len(taken) < len(truth):
                some = take(life.view, 1000)
                taken += some
                if not some:
                    await trio.sleep(0.002)
        assert len(set(taken)) == len(taken)
        assert set(taken) == set(truth)
        with trio.fail_after(60):
            while cursor.properties or life.buckets.dying:  # noqa: ASYNC110 - nobody tells
                await trio.sleep(0.002)
        rooms.nursery.cancel_scope.cancel()
